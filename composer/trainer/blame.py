"""Blame: find the rows of data that made the loss or the gradient norm of a training step jump."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._numbers import whole_number
from composer.trainer.blame_report import Blame
from composer.trainer.replay.replay import Replay, not_reached
from composer.trainer.row_contents import RowContents, describe_rows
from composer.trainer.row_ranking import rank_rows
from composer.trainer.step_samples import SampleRecorder, StepSamples, record_next_steps

if TYPE_CHECKING:
    from composer.trainer.trainer import Trainer

__all__ = ["blame", "blame_next_steps", "blame_replay"]


def blame_next_steps(trainer: Trainer, num_steps: int = 1) -> Blame:
    """Train the next steps, and rank their rows; all ranks must call this, and have the same result.

    The last step ends before its update, see :func:`.record_next_steps`: with one step, the run is left unchanged.

    Args:
        trainer: A trainer that would train these steps in its next ``fit``.
        num_steps: Number of steps.

    Raises:
        RuntimeError: Training ended before.
        ValueError: ``num_steps`` is not positive; or as in :meth:`.Trainer.fit`.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> x = torch.randn(8, 2)
    >>> x[5] *= 1000
    >>> data = DataLoader(TensorDataset(x, torch.tensor([0, 1] * 4)), batch_size=8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arguments = {"optimizers": optimizer, "max_duration": "1ep", "progress_bar": False, "seed": 1}
    >>> trainer = Trainer(model=model, train_dataloader=data, **arguments)
    >>> blame_next_steps(trainer).rows[0].index
    5
    """
    return _ranked(trainer.state.model, record_next_steps(trainer, num_steps))


def blame(
    trainer: Trainer,
    first: int,
    last: int,
    source: str | None,
    arguments: dict[str, Any],
    *,
    allow_changes: bool = False,
) -> Blame:
    """Replay steps of a run up to the last, and rank their rows; see :meth:`.Trainer.blame`.

    Args:
        trainer: Made with the arguments of the run.
        first: Number of the first step.
        last: Number of the last step.
        source: Path or URI of the run; None for the folder that the trainer saves to.
        arguments: Arguments of ``fit``, as in the run.
        allow_changes: Whether to go on if the data or the initial weights are not those of the run.

    Raises:
        ValueError: The steps are not part of the run, or cannot be repeated exactly.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> x = torch.randn(8, 2)
    >>> x[5] *= 1000
    >>> data = DataLoader(TensorDataset(x, torch.tensor([0, 1] * 4)), batch_size=8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arguments = {"optimizers": optimizer, "max_duration": "1ep", "progress_bar": False, "seed": 1}
    >>> trainer = Trainer(model=model, train_dataloader=data, **arguments)
    >>> blame(trainer, 0, 0, None, {}).rows[0].index
    5
    """
    run = trainer._run  # pyright: ignore[reportPrivateUsage]
    replay = Replay(trainer, run, first, source, allow_changes=allow_changes)
    last = whole_number("last_step", last)
    replay.load()
    found = blame_replay(replay, trainer.fit, last, **arguments)
    if found is None:
        raise ValueError(not_reached(last, run))
    return found


def blame_replay(
    replay: Replay, fit: Callable[..., None], last: int, steps: list[StepSamples] | None = None, **arguments: Any
) -> Blame | None:
    """Train a loaded replay up to a step, and rank the rows of its steps; None if training ends before.

    Args:
        replay: The replay of the first step, loaded.
        fit: The trainer's ``fit``.
        last: Number of the last step.
        steps: Receives the recorded steps, for a program that calls ``fit`` several times.
        **arguments: Arguments of ``fit``, as in the run.

    Raises:
        ValueError: The last step is before the first.

    >>> from types import SimpleNamespace
    >>> blame_replay(SimpleNamespace(step=5), None, 3)
    Traceback (most recent call last):
    ...
    ValueError: The last step must not be before the first, 5; got 3.
    """
    if last < replay.step:
        raise ValueError(f"The last step must not be before the first, {replay.step}; got {last}.")
    recorder = SampleRecorder(replay.run, replay.step, last, steps)
    try:
        replay.train_with(recorder, fit, **arguments)
    finally:
        recorder.release()
    found = [one for one in dist.all_gather_object(recorder.broken) if one is not None]
    broken = min(found, default=None)
    if broken is not None:  # by an earlier step, which is to blame for all that follow
        sound = [step for step in recorder.steps if step.step < broken]
        return dataclasses.replace(_ranked(replay.run.state.model, sound), broken=broken)
    if not recorder.steps or recorder.steps[-1].step < last:
        return None
    return _ranked(replay.run.state.model, recorder.steps)


def _ranked(model: Any, steps: Sequence[StepSamples]) -> Blame:
    """Gather the rows of all ranks, and rank them."""
    if not steps:
        return Blame((), ())
    tokenizer = getattr(model, "tokenizer", None)
    found: list[list[tuple[StepSamples, list[RowContents]]]] = []
    for step in steps:
        contents = [] if step.batch is None else describe_rows(step.batch, tokenizer)
        step.batch = None  # each rank describes its own rows; what is gathered is small
        found.append([one for one in dist.all_gather_object((step, contents)) if one[0].per_sample is not None])
    return rank_rows(found)
