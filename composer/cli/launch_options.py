"""The options of the launcher."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from composer._text import did_you_mean
from composer._version import __version__
from composer.cli.launch_rank import FORMAT_NAMES

__all__ = ["COMMANDS", "PROGRAMS", "parse", "parser"]

# The words that are commands, and no script to launch.
COMMANDS = {
    "checkpoint": "look into checkpoints and convert them",
    "env": "report versions, accelerators and what else a report of a problem needs",
}

# The words that are programs of ours, launched as modules.
PROGRAMS = {"train": "composer.hparams"}

_USAGE = "composer [-n N] [OPTION ...] SCRIPT [ARGUMENT ...]"

_DESCRIPTION = """\
Run a program in several processes, the ranks, which find each other: one for each accelerator of this machine, or on
several machines. When one fails the others are ended, its traceback is shown, and its exit code is passed on."""

_COMMANDS = [
    ("composer SCRIPT", "launch a program; the options below are about this"),
    ("composer train", "launch the training that a YAML file describes; see composer train --help"),
    ("composer checkpoint inspect", "show what a checkpoint holds"),
    ("composer checkpoint convert", "write a checkpoint in another form"),
    ("composer env", COMMANDS["env"]),
]

_EXAMPLES = [
    ("composer train.py --lr 0.1", "as many ranks as there are accelerators"),
    ("composer -n 8 train.py --lr 0.1", "8 ranks"),
    ("composer -n 8 -m package.train", "a module, as python -m does"),
    ("composer -n 8 train run.yaml --seed 3", "what a file of hyperparameters describes"),
    ("composer -n 8 --nnodes 2 --node_rank 0 --master_addr HOST --master_port 29500 train.py", "two nodes"),
    ("composer -n 8 --nnodes 1:4 --max-restarts 3 --rdzv-endpoint HOST:29500 train.py", "an elastic run"),
    ("srun --ntasks-per-node=1 composer -n 8 train.py", "or with a task for each rank: srun composer train.py"),
]

_CLOSE = """\
In the names of options _ and - are the same. A script named like a command is launched by its path: composer ./env"""


class _Parser(argparse.ArgumentParser):
    """Answers a mistyped option with the right one."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"composer: {message}\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what was given, each option under its name; leave the program with code 2 where it cannot be understood.

    Args:
        arguments: What was written after ``composer``.

    The words of ``PROGRAMS`` become the modules that they stand for.

    >>> given = parse(["-n", "2", "train.py", "-n", "3"])
    >>> given.nproc, given.script, given.arguments
    ('2', 'train.py', ['-n', '3'])
    """
    understood, unknown = parser().parse_known_args(arguments)
    if unknown:
        options = [option for action in parser()._actions for option in action.option_strings]
        parser().error(f"there is no option {unknown[0]!r}.{did_you_mean(unknown[0].partition('=')[0], options)}")
    if understood.script in PROGRAMS and not understood.module_mode and not understood.command_mode:
        understood.script, understood.module_mode = PROGRAMS[understood.script], True
    return understood


def parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's options, whose text is that of ``composer --help``.

    >>> print(parser().format_usage().strip())
    usage: composer [-n N] [OPTION ...] SCRIPT [ARGUMENT ...]
    """
    width = max(shutil.get_terminal_size().columns - 2, 20)
    made = _Parser(
        prog="composer",
        usage=_USAGE,
        description=f"{textwrap.fill(_DESCRIPTION, width)}\n\n{_two_columns('commands', _COMMANDS, width)}",
        epilog=f"{_two_columns('examples', _EXAMPLES, width)}\n\n{textwrap.fill(_CLOSE, width)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"composer {__version__}")
    _option(made, "-v", "--verbose", action="store_true", help="tell what the launcher does")
    _add_program(made)
    _add_places(made.add_argument_group("several nodes", "Each has a default in the environment, in SLURM or in MPI."))
    _add_elastic(made.add_argument_group("elastic runs", "What ends is started again; nodes may come and go."))
    return made


def _two_columns(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    """Lay out what is typed and what it does; where there is no room beside, the latter goes below."""
    column = max((len(left) for left, _ in rows if len(left) <= width // 2), default=0) + 4
    lines = [f"{title}:"]
    for left, right in rows:
        if len(left) + 4 > column:
            lines += [f"  {left}", *textwrap.wrap(right, width - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)]
        else:
            begin = f"  {left}".ljust(column)
            lines += textwrap.wrap(right, width, initial_indent=begin, subsequent_indent=" " * column)
    return "\n".join(lines)


def _add_program(made: argparse.ArgumentParser) -> None:
    _option(
        made, "-n", "--nproc", "--nproc-per-node", metavar="N",
        help="ranks on this node; 'auto', the default, is one for each accelerator, or LOCAL_WORLD_SIZE",
    )  # fmt: skip
    _option(made, "-m", "--module_mode", action="store_true", help="SCRIPT is the name of a module, as in python -m")
    _option(made, "-c", "--command_mode", action="store_true", help="SCRIPT is a command, not of Python")
    patterns = ", ".join(f"{{{name}}}" for name in FORMAT_NAMES)
    _option(
        made, "--stdout", metavar="PATTERN",
        help="files for the standard output of ranks; the first one of a node writes to the terminal. "
        f"The names {patterns} are filled in. By default files in a temporary folder, which a failure leaves there",
    )  # fmt: skip
    _option(made, "--stderr", metavar="PATTERN", help="the same for standard error; may be the same files")
    _option(
        made, "--grace_period", type=int, metavar="SECONDS",
        help="after SIGTERM, Ctrl-C and other signals, which are passed on, ranks may save for so long before they are "
        "killed (default 120; some versions of torch fix it at 30)",
    )  # fmt: skip
    made.add_argument("script", metavar="SCRIPT", help="the program that each rank runs")
    made.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="its arguments; ~ and $NAME are filled in"
    )


def _add_places(group: Any) -> None:
    _option(group, "--nnodes", metavar="N[:MAX]", help="number of nodes; N:MAX for an elastic run")
    _option(group, "--world_size", type=int, metavar="N", help="ranks on all nodes (WORLD_SIZE)")
    _option(group, "--node_rank", type=int, metavar="I", help="number of this node, from 0 (NODE_RANK)")
    _option(group, "--base_rank", type=int, metavar="I", help="number of the first rank of this node (BASE_RANK)")
    _option(group, "--master_addr", metavar="HOST", help="the first node, as all others reach it (MASTER_ADDR)")
    _option(group, "--master_port", type=int, metavar="PORT", help="a free port there (MASTER_PORT)")
    _option(group, "--local_addr", metavar="HOST", help="this node, as the others reach it, where its name will not do")


def _add_elastic(group: Any) -> None:
    _option(
        group, "--max_restarts", type=int, default=0, metavar="N",
        help="how often all ranks are started again after one failed (default 0)",
    )  # fmt: skip
    _option(group, "--rdzv_endpoint", metavar="HOST:PORT", help="where nodes meet; it numbers them")
    _option(group, "--rdzv_backend", metavar="NAME", help="how: c10d (default), etcd-v2, or one that is registered")
    _option(group, "--rdzv_id", metavar="NAME", help="name of the run, where several meet at one place")
    _option(group, "--rdzv_conf", metavar="KEY=VALUE,...", help="settings of the backend, such as join_timeout=600")
    _option(
        group, "--monitor_interval", type=float, default=0.1, metavar="SECONDS",
        help="how often ranks and nodes are looked after (default 0.1)",
    )  # fmt: skip


def _option(group: Any, *names: str, **settings: Any) -> None:
    """Add an option under names in which ``_`` and ``-`` are the same."""
    action = group.add_argument(*names, **settings)
    for name in names:
        for other in {name.replace("_", "-"), "--" + name[2:].replace("-", "_")} - {name}:
            if name.startswith("--"):
                hidden = {**settings, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
                group.add_argument(other, dest=action.dest, **hidden)
