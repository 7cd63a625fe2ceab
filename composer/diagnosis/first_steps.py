"""Compare the first steps of a run with and without a remedy: whether the remedy changes numbers."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from composer import dist, trees
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["Difference", "FirstSteps", "Steps", "difference"]

Difference = Literal["none", "rounding", "batches", "numbers", "unknown"]

_FILE = "first_steps.json"
_COUNT = 4
# Relative difference of the first loss up to which it is rounding, by precision; it grows with each step.
_ROUNDING, _HALF_ROUNDING, _GROWTH = 2e-5, 2e-2, (1, 10, 100, 100)


@dataclass(frozen=True)
class Steps:
    """The first steps of a run.

    Args:
        losses: Loss of each step.
        batches: A checksum of each batch.

    >>> Steps([0.7], [17]).losses
    [0.7]
    """

    losses: list[float]
    batches: list[int]

    @classmethod
    def read(cls, folder: Path) -> Steps | None:
        """Return what :class:`FirstSteps` wrote in the folder of a trial, or None if it did not come that far.

        Args:
            folder: The folder.

        >>> Steps.read(Path("no such folder"))
        """
        try:
            return cls(**json.loads((folder / _FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None


class FirstSteps(Callback):
    """Writes down losses and checksums of the batches of the first steps; does nothing afterwards.

    Args:
        folder: Folder of the trial.
        is_active: Whether the first ``fit`` is the one that is meant.

    Attributes:
        is_active: Whether to write the steps down.

    >>> FirstSteps(Path("trial")).writes_output
    False
    """

    def __init__(self, folder: Path, is_active: bool = True) -> None:
        self.is_active = is_active
        self._folder = folder
        self._losses: list[float] = []
        self._batches: list[int] = []

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Note the batch."""
        if self.is_active and len(self._batches) < _COUNT:
            self._batches.append(_checksum(state.batch))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Note the loss."""
        if not self.is_active or len(self._losses) == _COUNT:
            return
        self._losses.append(float(state.total_loss_dict["loss/train/total"]))
        if len(self._losses) == _COUNT and dist.get_global_rank() == 0:
            told = {"losses": self._losses, "batches": self._batches}
            (self._folder / _FILE).write_text(json.dumps(told), encoding="utf-8")


def difference(before: Steps | None, again: Steps | None, after: Steps | None, precision: str = "fp32") -> Difference:
    """Return what a remedy changes in the numbers of a run.

    Args:
        before: The first steps of the unchanged run.
        again: Those of the unchanged run, run again.
        after: Those with the remedy.
        precision: Precision of the run, which says how large rounding is.

    Returns:
        "none" if all losses are the same, "rounding" if they differ in their last digits, "batches" if the batches are
        others (the order of the samples, or random augmentation), "numbers" if the losses differ though the batches do
        not, and "unknown" if the unchanged run is not reproducible.

    >>> steps = Steps([0.7, 0.6], [1, 2])
    >>> difference(steps, steps, Steps([0.7, 0.6000001], [1, 2]))
    'rounding'
    """
    if before is None or again is None or after is None or not _same(before.losses, again.losses):
        return "unknown"
    if _same(before.losses, after.losses):
        return "none"
    if before.batches != after.batches:
        # Those of a float64 run in float32 have other bytes, and the remedy says so itself.
        return "batches"
    rounding = _ROUNDING if precision == "fp32" else _HALF_ROUNDING
    for one, two, growth in zip(before.losses, after.losses, _GROWTH, strict=False):
        if not abs(one - two) <= min(rounding * growth, max(rounding, 0.05)) * abs(one):
            return "numbers"
    return "rounding"


def _same(one: list[float], two: list[float]) -> bool:
    """Return whether losses are equal; those that are not numbers are equal, too."""
    return len(one) == len(two) and all(a == b or (a != a and b != b) for a, b in zip(one, two, strict=True))


def _checksum(batch: Any) -> int:
    """Return a checksum of the tensors of a batch, whatever their memory format."""
    found = 0
    for leaf in trees.leaves(batch):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_quantized:
            values = leaf.detach().to("cpu").contiguous().reshape(-1)
            found = zlib.crc32(values.view(torch.uint8).numpy().tobytes(), found)
    return found
