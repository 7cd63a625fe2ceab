"""``composer replay``: repeat a training step of a run, bit for bit, and show what happened in it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from composer._secrets.masking import is_masked, mask_text
from composer.cli.launch_options import COMMANDS
from composer.cli.usage import UsageError, usage_errors

if TYPE_CHECKING:
    from composer.checkpoint.at_step import CheckpointFacts
    from composer.trainer.replay.record import ReplayedStep
    from composer.trials.target import Target

__all__ = [
    "Program",
    "add_to",
    "changes_of",
    "check_step",
    "find_program",
    "program_of",
    "program_to_run",
    "words_of",
]

# Shared by the help texts of replay, blame and fork.
RUN_HELP = "folder (path or URI) with the checkpoints of the run, or one of its checkpoints"
STEP_HELP = "the training step, counted from 0, as in the logs: N steps were trained before it"
ALLOW_HELP = "go on if the data or the initial weights are not those of the run"
FIT_HELP = (
    "which call of Trainer.fit trained the step, if the script calls it several times (default: as the checkpoints say)"
)
PROGRAM_HELP = (
    "The training script is started again with the command that the checkpoint records; give SCRIPT and its arguments, "
    "or -m MODULE, to run another one."
)
EXIT_CODES = "Exit code: 0 on success, 1 if the script or the command fails, 2 if the command line is wrong."

# A call by import path, as in "algorithms+=package.Method()", or of a function.
_IMPORTS = re.compile(r"(?:\.\s*\w+|\b[a-z_]\w*)\s*\(")


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> from composer.cli.usage import CommandParser
    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> commands.choices["replay"].parse(["runs/night", "--step", "1203"]).step
    1203
    """
    command = commands.add_parser(
        "replay",
        help=COMMANDS["replay"],
        description="Repeat a training step of a run, bit for bit: load the last checkpoint before the step, train up "
        "to the step, and show its samples, losses, gradient norms and learning rates. Nothing is written. "
        f"{PROGRAM_HELP}",
        usage="composer replay RUN --step N [OPTION ...] [SCRIPT [ARGUMENT ...]]",
        epilog=EXIT_CODES,
    )
    command.num_positionals = 1
    command.add_argument("source", metavar="RUN", help=RUN_HELP)
    command.add_argument("--step", type=int, required=True, metavar="N", help=STEP_HELP)
    command.add_argument("--json", action="store_true", help="print the step as JSON")
    command.add_argument("--pdb", action="store_true", help="start the Python debugger right before the step")
    command.add_argument("--fit", type=int, metavar="N", help=FIT_HELP)
    command.add_argument("--allow-changes", action="store_true", help=ALLOW_HELP)
    command.set_defaults(run=_replay)


class Program(NamedTuple):
    """How to have a step of a run again.

    Attributes:
        target: The program of the run; its ``fit`` is the first call of the trainer.
        facts: The checkpoint from which the step is had.
        last_fit: The last call of ``fit`` of the trainer that the checkpoints tell of.

    >>> Program._fields
    ('target', 'facts', 'last_fit')
    """

    target: Target
    facts: CheckpointFacts
    last_fit: int


def check_step(option: str, step: int) -> None:
    """Raise if a step is negative.

    Args:
        option: The option that gives it.
        step: The step.

    Raises:
        ValueError: It is.

    >>> check_step("--step", 0)
    """
    if step < 0:
        raise ValueError(f"{option} must not be negative: the first step is 0; got {step}.")


def program_of(facts: CheckpointFacts, fit: int = 1) -> Target:
    """Return the program that a checkpoint records.

    A checkpoint may come from anyone: its program is run only from the folder in which the run was started.

    Args:
        facts: What the checkpoint says.
        fit: Which call of ``fit`` of the program is meant.

    Raises:
        ValueError: The checkpoint has no program, its arguments contain masked secrets, or it was started elsewhere.
        FileNotFoundError: The program is no longer there.

    >>> from composer.checkpoint.at_step import CheckpointFacts
    >>> here = {
    ...     "kind": "module",
    ...     "name": "timeit",
    ...     "arguments": ["--lr", "1"],
    ...     "folder": str(Path.cwd()),
    ... }
    >>> words_of(program_of(CheckpointFacts("ep1.pt", 20, program=here)))
    ['-m', 'timeit', '--lr', '1']
    """
    from composer.trials.target import Target

    path, recorded = mask_text(facts.path), facts.program or {}
    kind, name, folder = (recorded.get(key) for key in ("kind", "name", "folder"))
    arguments = recorded.get("arguments")
    texts = [name, folder, *(arguments if isinstance(arguments, list) else [None])]
    if kind not in ("script", "module") or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{path!r} does not say which script started the run (a notebook, or an earlier version). Add the script "
            f"and its arguments to the command, as in: composer replay RUN --step N train.py --lr 0.1"
        )
    target = Target(kind, str(name), tuple(arguments or ()), fit)
    command = shlex.join(["python", *words_of(target)])
    if any(map(is_masked, target.arguments)):
        raise ValueError(
            f"{path!r} leaves out the secrets of its command, {command}. Add the script and its arguments to the "
            f"command."
        )
    if Path(str(folder)).resolve() != Path.cwd().resolve():
        raise ValueError(
            f"{path!r} was saved by {command}, started in {str(folder)!r}. Run this command in that folder, or add the "
            f"script and its arguments to it."
        )
    try:
        target.check_exists()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path!r} was saved by {command}. {error} If the script has another name now, add it and its arguments to "
            f"the command."
        ) from error
    return target


def words_of(target: Target) -> list[str]:
    """Return the command line of a script or module, after ``python``.

    Args:
        target: The script or module.

    >>> from composer.trials.target import Target
    >>> words_of(Target("script", "train.py", ("--lr", "1")))
    ['train.py', '--lr', '1']
    """
    return [*(["-m"] if target.kind == "module" else []), target.name, *target.arguments]


def find_program(
    source: str, step: int, program: Sequence[str] | None, fit: int | None = None, *, end: int | None = None
) -> Program:
    """Return the program of a run, and the checkpoint from which a step can be replayed.

    Args:
        source: Path or URI of the run.
        step: Number of batches trained before the step.
        program: The command line of the program; None for the one that the checkpoint records.
        fit: Which call of ``fit`` of the program is meant; None for the one that the checkpoints tell of.
        end: Number of batches that the run must have; by default those up to the step, and the step.

    Raises:
        ValueError: The run has no checkpoint from which it can be replayed, or none that records the program; it ended
            before the step; or the path has several runs.

    >>> find_program("no_such_run", 3, None)
    Traceback (most recent call last):
    ...
    FileNotFoundError: ...
    """
    from composer.checkpoint.at_step import history_of, run_folder
    from composer.trials.target import Target

    if fit is not None and fit < 1:
        raise ValueError(f"--fit must be at least 1, for the first call of fit; got {fit}.")
    target = Target.from_command(program) if program else None
    history = history_of(source, step)
    facts = history.before or history.after
    if facts is None:
        raise ValueError(
            f"{mask_text(source)!r} has no checkpoint from which the step can be replayed. {history.problems}"
        )
    newest = history_of(run_folder(source)).before
    if newest is None or newest.run_name != facts.run_name:
        newest = facts
    if newest.is_end and newest.batch < (end := step + 1 if end is None else end):
        raise ValueError(
            f"Step {end - 1} is not part of the run, which ends at batch {newest.batch}: its last step is "
            f"{newest.batch - 1}."
        )
    target = program_of(facts) if target is None else target
    # Numbers in a notebook are not those of a script.
    calls = newest.fit_calls if newest.program is not None else ()
    if not calls or fit not in (None, *calls):
        calls = (fit or 1,)
    return Program(dataclasses.replace(target, fit=calls[0]), facts, calls[-1])


def changes_of(facts: CheckpointFacts) -> tuple[str, ...]:
    """Return the changes with which ``composer fork`` started the program of a run; empty for other runs.

    A checkpoint may come from anyone: changes that call other classes than those of Composer are applied only in the
    folder in which the run was started.

    Args:
        facts: What a checkpoint of the run says.

    Raises:
        ValueError: A change calls another class, and the run was started elsewhere.

    >>> from composer.checkpoint.at_step import CheckpointFacts
    >>> origin = {
    ...     "run_name": "night",
    ...     "step": 9,
    ...     "path": "night",
    ...     "changes": ["optimizers.lr=0.1"],
    ...     "by_command": True,
    ... }
    >>> changes_of(CheckpointFacts("ep1.pt", 20, forked_from=origin))
    ('optimizers.lr=0.1',)
    """
    origin = facts.forked_from
    if origin is None or not origin.get("by_command"):
        return ()
    changes = tuple(origin["changes"])
    if any(map(_IMPORTS.search, changes)):
        program_of(facts)  # imports and calls code: trusted as much as the program itself
    return changes


def program_to_run(given: argparse.Namespace, step: int, last: int, command: Sequence[str]) -> Program | None:
    """Return the program that this process runs to replay steps; None if it was started on several ranks instead.

    Args:
        given: The arguments of the command: ``source``, ``program`` and ``fit``.
        step: The step to replay.
        last: The last step to replay.
        command: The command with its arguments, to start it on as many ranks as the run had.

    Raises:
        UsageError: The run has no checkpoint from which it can be replayed, or none that records the program.

    >>> program_to_run(argparse.Namespace(source="no_such_run", program=None, fit=None), 3, 3, ["replay"])
    Traceback (most recent call last):
    ...
    composer.cli.usage.UsageError: ...
    """
    from composer import dist

    ranks = dist.get_world_size()
    with usage_errors():
        check_step("--step", step)
        found = find_program(given.source, step, given.program, given.fit, end=last + 1)
    words = words_of(found.target)
    if ranks == 1 or not given.program:
        print(f"composer: running {shlex.join(words)}", file=sys.stderr)  # noqa: T201 - this is a program
    if ranks > 1 or (found.facts.world_size or 1) == 1:
        return found
    from composer.cli import launcher

    fit = [] if given.fit is None else ["--fit", str(given.fit)]
    launched = ["-n", str(found.facts.world_size), "-m", "composer", *command, *fit, "--", *words]
    if code := launcher.main(launched):
        raise SystemExit(code)
    return None


def _replay(given: argparse.Namespace) -> None:
    from composer import dist
    from composer.cli.replay_program import replay_program

    options = [f"--{name.replace('_', '-')}" for name in ("json", "pdb", "allow_changes") if vars(given)[name]]
    words = ["replay", given.source, "--step", str(given.step), *options]
    found = program_to_run(given, given.step, given.step, words)
    if found is None:
        return
    if given.pdb and (ranks := dist.get_world_size()) > 1:
        raise UsageError(f"--pdb works with one rank; the run has {ranks}.")
    changes = changes_of(found.facts)
    record = replay_program(
        found.target,
        given.source,
        given.step,
        last_fit=found.last_fit,
        prompt=given.pdb,
        quiet=given.json,
        changes=changes,
        allow_changes=given.allow_changes,
    )
    _print(record, as_json=given.json)


def _print(record: ReplayedStep, *, as_json: bool) -> None:
    """Print the step on rank 0."""
    from rich.console import Console

    from composer import dist

    ranks: Sequence[dict[str, Any]] = dist.all_gather_object(record.to_json())
    if dist.get_global_rank() != 0:
        return
    if as_json:
        shown = {**ranks[0], "ranks": ranks} if len(ranks) > 1 else ranks[0]
        print(json.dumps(shown, indent=2))  # noqa: T201 - this is a program
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(record)
    if len(ranks) > 1:
        console.print(f"This is rank 0 of {len(ranks)}; --json shows all.")
