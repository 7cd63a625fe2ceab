"""The phases of a trainer (training, evaluation, prediction): data, timestamp and epoch iterator of each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from composer.core.first_batch_rng import FirstBatchRNG
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from composer.core.epoch_iterator import EpochIterator
    from composer.core.epoch_iterators import EpochIterators
    from composer.core.state import State
    from composer.core.types import Batch

__all__ = ["Phase", "TrainerMode"]


class TrainerMode(StrEnum):
    """What the trainer does: train, evaluate or predict. A :class:`Phase` has the data and progress of one mode.

    >>> TrainerMode("eval")
    <TrainerMode.EVAL: 'eval'>
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


@dataclass
class Phase:
    """Data and progress of training, evaluation or prediction.

    Attributes:
        mode: Which of the three.
        label: Name of the data, part of the metric names.
        loader: The data spec, or None.
        length: Number of batches per epoch, or None if unknown.
        timestamp: Its progress.
        batch_start_time: Clock reading, in seconds, at which the current batch began.
        iterator: The iterator of the current epoch, if any.
        repeated: The batches that every epoch repeats, with ``overfit_batches``.
        epoch_iterators: Creates the iterators.
        evaluation_event: The event of the current evaluation, or of that which follows if any is due, after which
            training continues; None otherwise.
        loaded_previous: The timestamp before the last step of the loaded checkpoint, if an evaluation is to follow.
        evaluators_done: Labels of the evaluators that have completed in the current evaluation, which are not run again
            if it is interrupted.
        evaluated_at: Number of batches trained when each evaluator last completed, by label.
        makes_up_evaluation: Whether this ``fit`` runs only the evaluation at the end, which an earlier one did not
            complete.
        resume_position: The position in the data from a checkpoint, at which the epoch resumes.
        first_batch_rng: Random states before the first batches, by label; "train" for the training data.
        last_epoch: Between two epochs, the iterator of the last one with its numbers of samples and batches; or, if the
            run resumed there, the position after it from the checkpoint.
        batches_per_step: Number of batches of the loader that are joined to the batch of a step.
        joins_batches: Whether that number changes during the run, so that the number of steps in an epoch is unknown.
        extra_batches: Batches of the loader trained in the current epoch, beyond one per step.
        batches_in_step: Number of batches of the loader that the current step takes on each rank, unless its data ends.
        num_fetched: Number of them that this rank had; 0 if its data has ended.
        metrics_logged_at: Number of batches trained when training metrics were last logged in this epoch.
        in_step: Whether a batch was fetched for a step that the timestamp does not count yet.
        restore_rates: Restores the learning rates that an algorithm changes during each step, before schedules are
            stepped; None if none does.

    >>> Phase(TrainerMode.TRAIN).timestamp.batch
    Time(0, TimeUnit.BATCH)
    """

    mode: TrainerMode
    label: str | None = None
    loader: Any = None
    length: int | None = None
    timestamp: Timestamp = field(default_factory=Timestamp)
    batch_start_time: float = 0.0
    iterator: Iterator[Batch] | None = None
    repeated: list[Batch] | None = None
    epoch_iterators: EpochIterators | None = None
    evaluation_event: str | None = None
    loaded_previous: Timestamp | None = None
    evaluators_done: list[str] = field(default_factory=list[str])
    evaluated_at: dict[str, int] = field(default_factory=dict[str, int])
    makes_up_evaluation: bool = False
    resume_position: dict[str, Any] | None = None
    last_epoch: tuple[EpochIterator, int, int] | dict[str, Any] | None = None
    batches_per_step: int = 1
    joins_batches: bool = False
    extra_batches: int = 0
    batches_in_step: int = 1
    num_fetched: int = 1
    metrics_logged_at: int | None = None
    in_step: bool = False
    restore_rates: Callable[[State], None] | None = None
    first_batch_rng: defaultdict[str, FirstBatchRNG] = field(default_factory=lambda: defaultdict(FirstBatchRNG))

    @property
    def batches_loaded(self) -> int:
        """Number of batches of the loader that were trained in the current epoch: steps may join several."""
        return self.timestamp.__fields__.batch_in_epoch + self.extra_batches

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps per epoch, or None if unknown, also because the number of joined batches changes."""
        return None if self.joins_batches else self.length

    def is_sized(self, batches: int) -> bool:
        """Return whether the number of batches determines where the epoch ends, of which so many are done.

        The data may end before ``train_subset_num_batches``, which is :attr:`length` also if the loader has none.

        Args:
            batches: Number of batches that are done.
        """
        has_length = self.epoch_iterators is not None and self.epoch_iterators.length is not None
        return self.length is not None and (has_length or batches >= self.length)

    @property
    def epochs_trained(self) -> float:
        """Number of epochs trained, with the fraction of the current one if the length of an epoch is known."""
        return self.fraction_of(1)

    def fraction_of(self, epochs: float) -> float:
        """Return the trained fraction of a number of epochs, with that of the current one if its length is known."""
        epoch, length = self.timestamp.__fields__.epoch, self.length
        if not length:
            return epoch / epochs
        # In one division: 3 of the 30 batches of 3 epochs are 0.1, while (3 / 10) / 3 is less.
        return (epoch * length + min(self.batches_loaded, length)) / (epochs * length)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the current iterator, which cannot be copied."""
        return {**vars(self), "iterator": None, "last_epoch": None}
