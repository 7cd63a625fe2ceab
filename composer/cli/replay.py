"""``composer replay``: have a step of a run again, bit for bit, with everything in it visible."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._secrets.masking import is_masked, mask_text

if TYPE_CHECKING:
    from composer.checkpoint.at_step import CheckpointFacts
    from composer.trainer import Trainer
    from composer.trainer.replay import Replay, ReplayedStep
    from composer.trials.target import Target

__all__ = ["add_to", "program_of", "words_of"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> parser = argparse.ArgumentParser()
    >>> add_to(parser.add_subparsers())
    >>> parser.parse_args(["replay", "runs/night", "--step", "1203"]).step
    1203
    """
    command = commands.add_parser(
        "replay",
        help="have a step of a run again, with everything in it visible",
        description="Train from the newest checkpoint at or before a step up to it, without writing anything, and show "
        "the step: samples, losses, gradient norms, learning rates. The program that trains is the one that the "
        "checkpoint records, or the one after --.",
        usage="composer replay RUN --step N [OPTION ...] [-- SCRIPT [ARGUMENT ...]]",
    )
    command.add_argument("source", metavar="RUN", help="folder (path or URI) of the run, or one of its checkpoints")
    command.add_argument("--step", type=int, required=True, help="number of batches trained before the step, as logged")
    command.add_argument("--json", action="store_true", help="print the step as JSON")
    command.add_argument("--pdb", action="store_true", help="stop in the Python debugger before the step")
    command.add_argument("--fit", type=int, default=1, help="which call of fit of the program is meant (default 1)")
    command.set_defaults(run=_replay, program=None)


def program_of(facts: CheckpointFacts, fit: int = 1) -> Target:
    """Return the program that a checkpoint records.

    A checkpoint may come from anyone: its program is run only from the folder in which the run was started.

    Args:
        facts: What the checkpoint says.
        fit: Which call of ``fit`` of the program is meant.

    Raises:
        ValueError: The checkpoint has no program, its arguments contain masked secrets, or it was started elsewhere.

    >>> from composer.checkpoint.at_step import CheckpointFacts
    >>> here = {
    ...     "kind": "module",
    ...     "name": "night.train",
    ...     "arguments": ["--lr", "1"],
    ...     "folder": str(Path.cwd()),
    ... }
    >>> words_of(program_of(CheckpointFacts("ep1.pt", 20, program=here)))
    ['-m', 'night.train', '--lr', '1']
    """
    from composer.trials.target import Target

    path, recorded = mask_text(facts.path), facts.program or {}
    kind, name, folder = (recorded.get(key) for key in ("kind", "name", "folder"))
    arguments = recorded.get("arguments")
    texts = [name, folder, *(arguments if isinstance(arguments, list) else [None])]
    if kind not in ("script", "module") or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{path!r} does not say which program started the run (a notebook, or an earlier version). Give the program "
            f"after --, as in: composer replay RUN --step N -- train.py --lr 0.1"
        )
    target = Target(kind, str(name), tuple(arguments or ()), fit)
    command = shlex.join(["python", *words_of(target)])
    if any(map(is_masked, target.arguments)):
        raise ValueError(f"{path!r} leaves out the secrets of its command, {command}. Give the program after --.")
    if Path(str(folder)).resolve() != Path.cwd().resolve():
        raise ValueError(
            f"{path!r} was saved by {command}, started in {str(folder)!r}. Start this command in that folder, or give "
            f"the program after --."
        )
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


def _replay(given: argparse.Namespace) -> None:
    from composer import dist
    from composer.checkpoint.at_step import history_of
    from composer.trainer.overrides import override_trainers
    from composer.trials.target import Target

    ranks = dist.get_world_size()
    target = Target.from_command(given.program, given.fit) if given.program else None
    if target is None or ranks == 1:
        history = history_of(given.source, given.step)
        facts = history.before or history.after
        if facts is None:
            lacking = [f"{mask_text(path)} lacks {', '.join(names)}" for path, names in history.incomplete.items()]
            raise ValueError(
                f"{mask_text(given.source)!r} has no checkpoint from which the run can be had again: "
                f"{'; '.join(lacking) or '; '.join(map(mask_text, history.unreadable.values()))}. Save full checkpoints."
            )
        target = program_of(facts, given.fit) if target is None else target
        print(f"composer: running {shlex.join(words_of(target))}", file=sys.stderr)  # noqa: T201 - this is a program
        if ranks == 1 and (facts.world_size or 1) > 1:
            _launch(given, target, facts.world_size or 1)
            return
    if given.pdb and ranks > 1:
        raise ValueError(f"--pdb works with one rank; the run has {ranks}.")
    overrides = _make_overrides(given, target.fit)
    output = contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext()
    try:
        with output, override_trainers(overrides):
            target.run()
    except overrides.End:
        pass
    except SystemExit as error:
        overrides.error = RuntimeError(f"The program exited with {error.code!r} before the step.")
    except Exception as error:
        traceback.print_exc()  # of the program
        raise SystemExit(1) from error
    if overrides.error is not None:
        raise overrides.error
    if overrides.record is None:
        raise ValueError(overrides.reason(given.step))
    _print(overrides.record, as_json=given.json)


def _launch(given: argparse.Namespace, target: Target, ranks: int) -> None:
    """Start the command again, on as many ranks as the run had."""
    from composer.cli import launcher

    options = [*(["--json"] if given.json else []), *(["--pdb"] if given.pdb else []), "--fit", str(given.fit)]
    command = ["replay", given.source, "--step", str(given.step), *options, "--", *words_of(target)]
    if code := launcher.main(["-n", str(ranks), "-m", "composer", *command]):
        raise SystemExit(code)


def _make_overrides(given: argparse.Namespace, fit: int) -> Any:
    """Return overrides that replay the step in the ``fit`` that is meant, and in those that follow."""
    from composer.trainer.overrides import TrainerOverrides
    from composer.trainer.replay.replay import Replay, not_reached
    from composer.trials.isolation import isolated

    class Overrides(TrainerOverrides):
        class End(BaseException):
            """Ends the program; not an Exception, which programs catch."""

        def __init__(self) -> None:
            self.calls = 0
            self.replay: Replay | None = None
            self.trainer: Trainer | None = None
            self.record: ReplayedStep | None = None
            self.error: Exception | None = None

        def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
            kept = {name: arguments[name] for name in ("run_name", "eval_batches_before_fit") if name in arguments}
            init(**{**isolated(arguments, "replay"), **kept})

        def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
            self.calls += 1
            if self.calls < fit_number:
                fit(**arguments)
                return
            try:
                if self.replay is None or self.trainer is not trainer:
                    run = trainer._run  # pyright: ignore[reportPrivateUsage]
                    self.replay, self.trainer = Replay(trainer, run, given.step, given.source), trainer
                    self.replay.load()
            except Exception as error:
                self.error = error
                raise self.End from error
            self.record = self.replay.train(fit, prompt=given.pdb, **arguments)
            if self.record is not None:
                trainer.close()
                raise self.End

        def reason(self, step: int) -> str:
            if self.trainer is None:
                return f"The program called Trainer.fit {self.calls} times; --fit {fit_number} does not exist."
            return not_reached(step, self.trainer._run)  # pyright: ignore[reportPrivateUsage]

    fit_number = fit
    return Overrides()


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
