"""``composer blame``: rank the rows of data in steps of a run by loss and gradient norm, to explain a spike."""

from __future__ import annotations

import argparse
import functools
import json
from typing import TYPE_CHECKING, Any

from composer.cli.replay import program_to_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from composer.trainer.blame_report import Blame
    from composer.trainer.replay.replay import Replay
    from composer.trainer.step_samples import StepSamples

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> parser = argparse.ArgumentParser()
    >>> add_to(parser.add_subparsers())
    >>> parser.parse_args(["blame", "runs/night", "--from", "1150", "--to", "1210"]).last
    1210
    """
    command = commands.add_parser(
        "blame",
        help="rank the rows of data in a step of a run by loss and gradient norm",
        description="Replay one or more steps of a run without writing anything, and rank their rows by loss and "
        "gradient norm, with their indices in the dataset. The program that trains is the one that the checkpoint "
        "records, or the one after --.",
        usage="composer blame RUN (--step N | --from N --to N) [OPTION ...] [-- SCRIPT [ARGUMENT ...]]",
    )
    command.add_argument("source", metavar="RUN", help="folder (path or URI) of the run, or one of its checkpoints")
    command.add_argument("--step", type=int, help="number of batches trained before the step, as logged")
    command.add_argument("--from", dest="first", type=int, metavar="N", help="first step of a spike")
    command.add_argument("--to", dest="last", type=int, metavar="N", help="last step of a spike")
    command.add_argument("--top", type=int, default=10, metavar="K", help="number of rows to show (default 10)")
    command.add_argument("--json", action="store_true", help="print the rows as JSON")
    command.add_argument("--fit", type=int, default=1, help="which call of fit of the program is meant (default 1)")
    command.add_argument(
        "--allow-changes", action="store_true", help="go on if the data or the initial weights are not those of the run"
    )
    command.set_defaults(run=_blame, program=None)


def _blame(given: argparse.Namespace) -> None:
    from composer import dist
    from composer.cli.replay_program import replay_program

    first, last = _steps(given)
    options = ["--from", str(first), "--to", str(last), "--top", str(given.top), *(["--json"] if given.json else [])]
    options += ["--allow-changes"] if given.allow_changes else []
    program = program_to_run(given, first, ["blame", given.source, *options])
    if program is None:
        return
    target, changes = program
    observe = functools.partial(_observe, last=last, steps=[])  # a range may span several calls of fit
    found: Blame = replay_program(
        target,
        given.source,
        first,
        quiet=given.json,
        observe=observe,
        changes=changes,
        allow_changes=given.allow_changes,
    )
    if dist.get_global_rank() == 0:
        text = json.dumps(found.to_json(given.top), indent=2) if given.json else found.text(given.top)
        print(text)  # noqa: T201 - this is a program


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
    if last < first:
        raise ValueError(f"--to must not be before --from {first}; got {last}.")
    if given.top < 1:
        raise ValueError(f"--top must be at least 1; got {given.top}.")
    return first, last
