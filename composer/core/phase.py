"""Training, evaluating, predicting: what each has of its own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from composer.core.first_batch_rng import FirstBatchRNG
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from composer.core.epoch_iterator import EpochIterator
    from composer.core.epoch_iterators import EpochIterators
    from composer.core.types import Batch

__all__ = ["Phase", "TrainerMode"]


class TrainerMode(StrEnum):
    """What the trainer is doing.

    >>> TrainerMode("eval")
    <TrainerMode.EVAL: 'eval'>
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


@dataclass
class Phase:
    """Data and time of one of the three things that a trainer does.

    Attributes:
        mode: Which of the three.
        label: Name of the data, part of the metrics' names.
        loader: What is iterated, or None.
        length: Number of batches in one pass, or None where it is not known.
        timestamp: How far it has come.
        mark: Clock reading, in seconds, from which the time of the batch in work counts.
        iterator: The pass under way, if any.
        repeated: The batches that every pass repeats, where a run is to overfit them.
        passes: Begins the passes.
        stage: The event whose evaluation is under way, after which training goes on; None outside of evaluations.
        resume: What a checkpoint says of the pass that is to be taken up.
        first_batch_rng: Random states before the first batches, by label; those of the training by "train".
        ended: The pass that has ended, while no other is under way, with its numbers of samples and batches.

    >>> Phase(TrainerMode.TRAIN).timestamp.batch
    Time(0, TimeUnit.BATCH)
    """

    mode: TrainerMode
    label: str | None = None
    loader: Any = None
    length: int | None = None
    timestamp: Timestamp = field(default_factory=Timestamp)
    mark: float = 0.0
    iterator: Iterator[Batch] | None = None
    repeated: list[Batch] | None = None
    passes: EpochIterators | None = None
    stage: str | None = None
    resume: dict[str, Any] | None = None
    ended: tuple[EpochIterator, int, int] | None = None
    first_batch_rng: defaultdict[str, FirstBatchRNG] = field(default_factory=lambda: defaultdict(FirstBatchRNG))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the pass under way: an iterator cannot be copied."""
        return {**vars(self), "iterator": None, "ended": None}
