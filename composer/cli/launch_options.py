"""The command-line options of the launcher, and its help text."""

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

# Words that are subcommands rather than scripts to launch.
COMMANDS = {
    "blame": "rank the samples of a training step by loss and gradient norm, to explain a spike",
    "checkpoint": "inspect and convert checkpoints",
    "compare": "compare runs or groups of seeds: results with intervals, curves, settings that differ",
    "doctor": "find out why a program is slow, and measure what makes it faster",
    "estimate": "estimate the memory that a program needs, and what makes it fit on a device",
    "explore": "find out which methods make a program faster or better, with intervals",
    "fork": "continue training from any step of a run, as a new run with changed settings",
    "report": "write a page with the curves, events and facts of a run, which opens offline",
    "env": "report versions, accelerators and other details for a bug report",
    "verify": "check that a script trains the same with other microbatches, ranks and restarts",
    "replay": "repeat a training step of a run exactly, and show what happened in it",
}

# Words that are programs of this package, launched as modules.
PROGRAMS = {"train": "composer.hparams"}

_USAGE = "composer [-n N] [OPTION ...] SCRIPT [ARGUMENT ...]"

_DESCRIPTION = """\
Run a program in multiple processes (ranks): one for each accelerator of this host, or on multiple nodes. If a rank
fails, the others are terminated, its traceback is shown, and its exit code is returned."""

_COMMANDS = [
    ("composer SCRIPT", "launch a program, with the options below"),
    ("composer train", "launch a run that is described by a YAML file; see composer train --help"),
    ("composer checkpoint inspect", "show the contents of a checkpoint"),
    ("composer checkpoint convert", "convert a checkpoint to another format"),
    ("composer estimate", COMMANDS["estimate"]),
    ("composer verify", COMMANDS["verify"]),
    ("composer doctor", COMMANDS["doctor"]),
    ("composer explore", COMMANDS["explore"]),
    ("composer replay", COMMANDS["replay"]),
    ("composer blame", COMMANDS["blame"]),
    ("composer fork", COMMANDS["fork"]),
    ("composer report", COMMANDS["report"]),
    ("composer compare", COMMANDS["compare"]),
    ("composer env", COMMANDS["env"]),
]

_EXAMPLES = [
    ("composer train.py --lr 0.1", "as many ranks as there are accelerators"),
    ("composer -n 8 train.py --lr 0.1", "8 ranks"),
    ("composer -n 8 -m package.train", "a module, as python -m does"),
    ("composer -n 8 train run.yaml --seed 3", "a run described by a YAML file"),
    ("composer -n 8 --nnodes 2 --node_rank 0 --master_addr HOST --master_port 29500 train.py", "two nodes"),
    ("composer -n 8 --nnodes 1:4 --max-restarts 3 --rdzv-endpoint HOST:29500 train.py", "an elastic run"),
    ("srun --ntasks-per-node=1 composer -n 8 train.py", "or with one task per rank: srun composer train.py"),
]

_CLOSE = """\
In option names _ and - are equivalent. To launch a script that is named like a command, use its path: composer ./env"""


class _Parser(argparse.ArgumentParser):
    """A parser whose usage errors are one line, without the full help."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"composer: {message}\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with code 2 on a usage error, with a suggestion for mistyped options.

    Args:
        arguments: The arguments after ``composer``.

    Words in ``PROGRAMS`` are replaced with their modules.

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
    """Return the parser of the launcher's options, which also prints ``composer --help``.

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
    _option(made, "-v", "--verbose", action="store_true", help="log what the launcher does")
    _add_program(made)
    _add_multi_node(made.add_argument_group("multiple nodes", "Defaults come from the environment, SLURM or MPI."))
    _add_elastic(made.add_argument_group("elastic runs", "Failed ranks are restarted; nodes may join and leave."))
    return made


def _two_columns(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    """Format commands and descriptions in two columns; a description goes below a command that is too long."""
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
    _option(made, "-c", "--command_mode", action="store_true", help="SCRIPT is a command, not a Python script")
    patterns = ", ".join(f"{{{name}}}" for name in FORMAT_NAMES)
    _option(
        made, "--stdout", metavar="PATTERN",
        help="files for the stdout of ranks, except local rank 0, which writes to the terminal. "
        f"The placeholders {patterns} are replaced. Default: files in a temporary folder, which is kept on failure",
    )  # fmt: skip
    _option(made, "--stderr", metavar="PATTERN", help="files for the stderr of ranks; may be the same files")
    _option(
        made, "--grace_period", type=int, metavar="SECONDS",
        help="time that ranks have to save and exit after SIGTERM, Ctrl-C and other signals, which are forwarded to "
        "them, before they are killed (default 120; some versions of torch always use 30)",
    )  # fmt: skip
    made.add_argument("script", metavar="SCRIPT", help="the program that each rank runs")
    made.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="its arguments; ~ and $NAME are expanded"
    )


def _add_multi_node(group: Any) -> None:
    _option(group, "--nnodes", metavar="N[:MAX]", help="number of nodes; N:MAX for an elastic run")
    _option(group, "--world_size", type=int, metavar="N", help="ranks on all nodes (WORLD_SIZE)")
    _option(group, "--node_rank", type=int, metavar="I", help="rank of this node, from 0 (NODE_RANK)")
    _option(group, "--base_rank", type=int, metavar="I", help="global rank of the first rank of this node (BASE_RANK)")
    _option(
        group, "--master_addr", metavar="HOST", help="address of the first node, reachable by all others (MASTER_ADDR)"
    )
    _option(group, "--master_port", type=int, metavar="PORT", help="a free port on the first node (MASTER_PORT)")
    _option(group, "--local_addr", metavar="HOST", help="address of this node, if others cannot reach it by its name")


def _add_elastic(group: Any) -> None:
    _option(
        group, "--max_restarts", type=int, default=0, metavar="N",
        help="how often all ranks are restarted after a failure (default 0)",
    )  # fmt: skip
    _option(group, "--rdzv_endpoint", metavar="HOST:PORT", help="rendezvous address, which assigns node ranks")
    _option(
        group, "--rdzv_backend", metavar="NAME", help="rendezvous backend: c10d (default), etcd-v2, or a registered one"
    )
    _option(group, "--rdzv_id", metavar="NAME", help="name of the run, if several runs use one rendezvous address")
    _option(group, "--rdzv_conf", metavar="KEY=VALUE,...", help="settings of the backend, such as join_timeout=600")
    _option(
        group, "--monitor_interval", type=float, default=0.1, metavar="SECONDS",
        help="interval at which ranks and nodes are checked (default 0.1)",
    )  # fmt: skip


def _option(group: Any, *names: str, **settings: Any) -> None:
    """Add an option whose names may be written with ``_`` or ``-``."""
    action = group.add_argument(*names, **settings)
    for name in names:
        for other in {name.replace("_", "-"), "--" + name[2:].replace("-", "_")} - {name}:
            if name.startswith("--"):
                hidden = {**settings, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
                group.add_argument(other, dest=action.dest, **hidden)
