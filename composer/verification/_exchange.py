"""Exchange samples between microbatches of the same size, which matters only to a loss that compares samples."""

from __future__ import annotations

from typing import Any

from composer.core.callback import Callback
from composer.core.data_spec import DataSpec
from composer.core.logger import Logger
from composer.core.state import State
from composer.verification.digests import row_digest

__all__ = ["Exchange", "exchanged"]


class Exchange(Callback):
    """Exchanges samples between the microbatches of each batch.

    Args:
        whole: Whether to exchange all samples, so that the microbatches are the same in another order.

    >>> Exchange().writes_output
    False
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Exchange samples of the batch.

        Raises:
            RuntimeError: No sample of the first batch can be exchanged.
        """
        size = state.microbatch_size or 1
        state.batch, count = exchanged(state.train_phase.loader, state.batch, size, whole=self._whole)
        if count == 0 and state.timestamp.batch.value == 0:
            raise RuntimeError("The first batch has no two microbatches of two samples or more.")


def exchanged(spec: DataSpec, batch: Any, size: int, *, whole: bool = False) -> tuple[Any, int]:
    """Return a batch whose microbatches have samples of each other at some places, and how many were exchanged.

    Samples keep their place in a microbatch, so that a loss that weights places finds the same ones there. Which places
    are exchanged has no period, so that no two places of a pattern, such as neighbors, always stay together.

    Args:
        spec: The data.
        batch: The batch.
        size: Samples of a microbatch.
        whole: Whether to exchange the samples at all places.

    Raises:
        RuntimeError: The microbatches do not have the samples of the batch.

    >>> exchanged(DataSpec([]), torch.arange(8), 4)
    (tensor([0, 5, 6, 3, 4, 1, 2, 7]), 2)
    """
    single = list(spec.split_batch(batch, 1))
    rows = [row_digest(each) for each in single]
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row, []).append(place)
    source = list(range(len(single)))
    parts = [[row_digest(each) for each in spec.split_batch(part, 1)] for part in spec.split_batch(batch, size)]
    if sorted(row for part in parts for row in part) != sorted(rows):
        raise RuntimeError("The microbatches do not have the samples of the batch.")
    order = [[places[row].pop(0) for row in part] for part in parts]
    count = 0
    for one, other in zip(order[::2], order[1::2], strict=False):
        for at, (a, b) in enumerate(zip(one, other, strict=False)):
            if (whole or at.bit_count() % 2) and rows[a] != rows[b]:
                source[a], source[b] = b, a
                count += 1
    return spec.join_batches([single[place] for place in source]), count
