"""``composer fork``: train a run on from any of its steps, as a new run with changed settings."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._secrets.masking import mask_text
from composer._text import did_you_mean
from composer.cli.launch_options import COMMANDS
from composer.cli.replay import EXIT_CODES, PROGRAM_HELP, RUN_HELP, changes_of, find_program, words_of
from composer.cli.usage import UsageError, usage_errors
from composer.core.name_placeholders import with_braces

if TYPE_CHECKING:
    from composer.checkpoint.at_step import CheckpointFacts
    from composer.trials.target import Target

__all__ = ["add_to", "choose_name"]

# What the fork sets itself, and the option for it.
_OPTIONS = {"run_name": "--name", "save_folder": "--folder"}


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> from composer.cli.usage import CommandParser
    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> commands.choices["fork"].parse(["runs/night", "--at", "1200", "--set", "optimizers.lr=0.0003"]).set
    ['optimizers.lr=0.0003']
    """
    command = commands.add_parser(
        "fork",
        help=COMMANDS["fork"],
        description="Start a new run from the exact state of another one after N training steps, with changed "
        "settings. The new run has its own name and folder, and its step numbers continue those of the other run, "
        "whose files are not changed. If there is no checkpoint at step N, the steps since the last one before it are "
        "repeated first. If the new run is interrupted, run the same command again to resume it. "
        f"{PROGRAM_HELP}",
        usage="composer fork RUN --at N [--set NAME=VALUE ...] [OPTION ...] [SCRIPT [ARGUMENT ...]]",
        epilog=EXIT_CODES,
    )
    command.num_positionals = 1
    command.add_argument("source", metavar="RUN", help=RUN_HELP)
    command.add_argument(
        "--at", type=int, required=True, metavar="N", help="number of steps after which the new run begins"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change an argument of the Trainer; may be repeated: optimizers.lr=0.0003, max_duration=2000ba, "
        "algorithms+=EMA(), algorithms-=MixUp, train_dataloader.batch_size=64",
    )
    command.add_argument("--name", help="name of the new run (default: RUN-fork-N, with a number if it exists)")
    command.add_argument("--folder", help="folder for its checkpoints (default: next to RUN)")
    command.add_argument(
        "-n", "--ranks", type=int, metavar="N", help="number of processes of the new run (default: as in RUN)"
    )
    command.add_argument("--state", help=argparse.SUPPRESS)  # for the processes that this command starts
    command.add_argument("--save-state", help=argparse.SUPPRESS)
    command.set_defaults(run=_fork)


def _fork(given: argparse.Namespace) -> None:
    from composer import dist
    from composer.cli.fork_program import save_state

    with usage_errors():
        _check(given)
    is_part = given.state is not None or given.save_state is not None
    if dist.get_world_size() > 1 and not is_part:
        ranks = dist.get_world_size()
        raise UsageError(f"composer fork starts the ranks itself: composer fork {given.source} ... -n {ranks}")
    with usage_errors():
        target, facts, last_fit = find_program(given.source, given.at, given.program, end=given.at)
    if given.save_state is not None:
        save_state(
            target,
            given.source,
            given.at,
            given.save_state,
            facts.run_name,
            changes_of(facts),
            last_fit=last_fit,
            checked=given.set,
        )
        return
    if is_part:
        _train(given, target, facts)
        return
    with usage_errors():
        name, folder, is_resumed = choose_name(given, facts)
    ranks = given.ranks or facts.world_size or 1
    verb = "continues" if is_resumed else "forks"
    # The new run alone writes, and only there.
    text = f"{name} {verb} {facts.run_name} at batch {given.at}; checkpoints go to {mask_text(folder)}"
    print(f"composer: {text}", file=sys.stderr)  # noqa: T201 - this is a program
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_empty_folders(folder, name))
        state = facts.path
        if not is_resumed and facts.batch != given.at:
            state = stack.enter_context(_exact_state(given, target, facts, folder))
        given.name, given.folder, given.state = name, folder, state
        if ranks == 1:
            _train(given, target, facts)
        else:
            changes = [word for text in given.set for word in ("--set", text)]
            words = [*_words(given), "--name", name, "--folder", folder, "--state", state, *changes]
            _start(ranks, [*words, "--", *words_of(target)])


def _check(given: argparse.Namespace) -> None:
    """Raise if an option has a value that cannot work, before anything is trained."""
    from composer.trainer.argument_types import check_arguments
    from composer.trials.assignments import Assignment, trainer_arguments

    if given.at < 1:
        raise ValueError(f"--at is the number of batches that both runs share, at least 1; got {given.at}.")
    if given.ranks is not None and given.ranks < 1:
        raise ValueError(f"--ranks must be at least 1; got {given.ranks}.")
    arguments = trainer_arguments()
    for text in given.set:
        assignment = Assignment.parse(text)
        name, _, rest = assignment.path.partition(".")
        if name in _OPTIONS:
            raise ValueError(f"--set {text}: use {_OPTIONS[name]}.")
        if name not in arguments:
            raise ValueError(f"--set {text}: Trainer has no argument {name!r}.{did_you_mean(name, arguments)}")
        if assignment.operator == "=" and not rest:
            check_arguments({name: assignment.value})


def choose_name(given: argparse.Namespace, facts: CheckpointFacts) -> tuple[str, str, bool]:
    """Return the name and the folder of a fork, and whether it was begun before.

    Args:
        given: The arguments of the command.
        facts: What the checkpoint says from which it starts.

    Raises:
        ValueError: The given folder is used by another run, or is that of the run.

    >>> from composer.checkpoint.at_step import CheckpointFacts
    >>> given = argparse.Namespace(source="runs/night", at=1200, set=[], name=None, folder=None)
    >>> choose_name(given, CheckpointFacts("runs/night/ep1.pt", 1200, run_name="night"))
    ('night-fork-1200', 'runs/night-fork-1200', False)
    """
    from composer.checkpoint.at_step import run_folder
    from composer.trainer.fork import check_folder

    base = run_folder(given.source)
    if base.rpartition("/")[2] in (".", "..", ""):
        base = str(Path(base).resolve())
    above = base[: len(base) - len(base.rpartition("/")[2])]
    parent = facts.run_name or base.rpartition("/")[2]
    changes = [*changes_of(facts), *given.set]
    number = 1
    while True:
        suffix = f"-fork-{given.at}" + (f"-{number}" if number > 1 else "")
        name = given.name or f"{parent}{suffix}"
        folder = given.folder or (f"{above}{name}" if given.name else f"{base}{suffix}")
        check_folder(folder, given.source, "Choose another --folder.")
        found = _newest_in(folder)
        if found is None:
            return name, folder, False
        origin = found.forked_from or {}
        if (origin.get("run_name"), origin.get("step"), origin.get("changes")) == (parent, given.at, changes):
            return given.name or found.run_name, folder, True
        if given.name or given.folder:
            raise ValueError(f"{mask_text(folder)!r} holds another run, {found.run_name!r}. Choose another --folder.")
        number += 1


def _newest_in(folder: str) -> CheckpointFacts | None:
    """Return the newest checkpoint in a folder, incomplete facts if it has other files, or None if it is free."""
    from composer.checkpoint.at_step import CheckpointFacts, history_of
    from composer.storage.uris import is_remote, local_path

    try:
        found = history_of(folder).before
    except FileNotFoundError:
        found = None
    if found is None and not is_remote(folder) and local_path(folder).is_dir() and any(local_path(folder).iterdir()):
        return CheckpointFacts(folder, 0, run_name="unknown")
    return found


@contextlib.contextmanager
def _exact_state(given: argparse.Namespace, target: Target, facts: CheckpointFacts, folder: str) -> Generator[str]:
    """Train the steps from a checkpoint to the step in processes of their own; yield the path of the state there."""
    from composer.storage.uris import is_remote, local_path

    if not is_remote(folder):
        local_path(folder).parent.mkdir(parents=True, exist_ok=True)
    where = None if is_remote(folder) else local_path(folder).parent  # which has room for checkpoints
    with tempfile.TemporaryDirectory(prefix=".composer-fork-", dir=where) as temporary:
        path = str(Path(temporary, "state.pt"))
        print(f"composer: training up to batch {given.at}", file=sys.stderr)  # noqa: T201 - this is a program
        changes = [word for text in given.set for word in ("--set", text)]  # which are checked before it trains
        words = [*_words(given), "--save-state", with_braces(path), *changes, "--", *words_of(target)]
        _start(facts.world_size or 1, words)
        yield temporary


@contextlib.contextmanager
def _no_empty_folders(*folders: str) -> Generator[None]:
    """Remove what a fork that fails leaves of its folders, if it has written nothing to them."""
    from composer.storage.uris import is_remote, local_path

    new = [path for path in (local_path(one) for one in folders if not is_remote(one)) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in new:
            for folder, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):  # it has files
                    Path(folder).rmdir()
        raise


def _start(ranks: int, words: Sequence[str]) -> None:
    """Run a part of this command in processes of its own.

    Raises:
        SystemExit: It failed.
    """
    from composer.cli import launcher

    if ranks > 1:
        code = launcher.main(["-n", str(ranks), "-m", "composer", *words])
    else:
        code = subprocess.run([sys.executable, "-m", "composer", *words], check=False).returncode
    if code:
        raise SystemExit(code)


def _train(given: argparse.Namespace, target: Target, facts: CheckpointFacts) -> None:
    from composer.cli.fork_program import ForkOverrides, fork_program

    overrides = ForkOverrides(
        given.state,
        given.at,
        parent=given.source,
        name=given.name,
        folder=given.folder,
        changes=given.set,
        inherited=changes_of(facts),
    )
    fork_program(target, overrides)


def _words(given: argparse.Namespace) -> list[str]:
    return ["fork", given.source, "--at", str(given.at)]
