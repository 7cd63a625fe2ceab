"""``composer blame``: rank the rows of data in steps of a run by loss and gradient norm, to explain a spike."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from typing import TYPE_CHECKING, Any

from composer.cli.launch_options import COMMANDS
from composer.cli.replay import (
    ALLOW_HELP,
    EXIT_CODES,
    FIT_HELP,
    PROGRAM_HELP,
    RUN_HELP,
    STEP_HELP,
    Program,
    changes_of,
    check_step,
    find_program,
    program_to_run,
)
from composer.cli.usage import usage_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from composer.trainer.blame_report import Blame
    from composer.trainer.replay.replay import Replay
    from composer.trainer.step_samples import StepSamples

__all__ = ["add_to"]

# Number of samples to list on the terminal.
_TOP = 10


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> from composer.cli.usage import CommandParser
    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> commands.choices["blame"].parse(["runs/night", "--from", "1150", "--to", "1210"]).last
    1210
    """
    command = commands.add_parser(
        "blame",
        help=COMMANDS["blame"],
        description="Find the training samples behind a spike of the loss or of the gradient norm: replay one or more "
        "training steps of a run, compute the loss and the gradient norm of each sample, and list the samples that "
        "stand out, with their indices in the dataset. Nothing is written. "
        f"{PROGRAM_HELP}",
        usage="composer blame RUN (--step N | --from N --to N) [OPTION ...] [SCRIPT [ARGUMENT ...]]",
        epilog=EXIT_CODES,
    )
    command.num_positionals = 1
    command.add_argument("source", metavar="RUN", help=RUN_HELP)
    command.add_argument("--step", type=int, metavar="N", help=STEP_HELP)
    command.add_argument("--from", dest="first", type=int, metavar="N", help="first step of a range, instead of --step")
    command.add_argument("--to", dest="last", type=int, metavar="N", help="last step of the range")
    command.add_argument("--top", type=int, metavar="K", help="number of samples to list (default 10, all with --json)")
    command.add_argument("--json", action="store_true", help="print the samples as JSON")
    command.add_argument("--fit", type=int, metavar="N", help=FIT_HELP)
    command.add_argument("--allow-changes", action="store_true", help=ALLOW_HELP)
    command.set_defaults(run=_blame)


def _blame(given: argparse.Namespace) -> None:
    from composer import dist

    with usage_errors():
        first, last = _steps(given)
    top = [] if given.top is None else ["--top", str(given.top)]
    options = ["--from", str(first), "--to", str(last), *top, *(["--json"] if given.json else [])]
    options += ["--allow-changes"] if given.allow_changes else []
    program = program_to_run(given, first, last, ["blame", given.source, *options])
    if program is None:
        return
    found = _found(given, program, first, last)
    while found.broken and found.broken <= first:  # an earlier step is to blame
        if dist.get_global_rank() == 0:
            text = f"parameters were NaN or infinite before step {found.broken}: looking at step {found.broken - 1}"
            print(f"composer: {text}", file=sys.stderr)  # noqa: T201 - this is a program
        first = last = found.broken - 1
        with usage_errors():
            program = find_program(given.source, first, given.program, given.fit)
        found = _found(given, program, first, last)
    if dist.get_global_rank() == 0:
        text = json.dumps(found.to_json(given.top), indent=2) if given.json else found.text(given.top or _TOP)
        print(text)  # noqa: T201 - this is a program


def _found(given: argparse.Namespace, program: Program, first: int, last: int) -> Blame:
    from composer.cli.replay_program import replay_program

    observe = functools.partial(_observe, last=last, steps=[])  # a range may span several calls of fit
    return replay_program(
        program.target,
        given.source,
        first,
        last_fit=program.last_fit,
        quiet=given.json,
        observe=observe,
        changes=changes_of(program.facts),
        allow_changes=given.allow_changes,
    )


def _observe(
    replay: Replay, fit: Callable[..., None], *, last: int, steps: list[StepSamples], **arguments: Any
) -> Blame | None:
    from composer.trainer.blame import blame_replay

    return blame_replay(replay, fit, last, steps, **arguments)


def _steps(given: argparse.Namespace) -> tuple[int, int]:
    """Return the first and the last step."""
    step, first, last = (vars(given)[name] for name in ("step", "first", "last"))
    if [step is None, first is None, last is None] not in ([False, True, True], [True, False, False]):
        raise ValueError("Give either --step N, or --from N and --to N.")
    if step is not None:
        first = last = step
    check_step("--step" if step is not None else "--from", first)
    if last < first:
        raise ValueError(f"--to must not be before --from {first}; got {last}.")
    if given.top is not None and given.top < 1:
        raise ValueError(f"--top must be at least 1; got {given.top}.")
    return first, last
