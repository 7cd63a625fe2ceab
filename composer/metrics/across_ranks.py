"""Compute metrics over the data of all ranks, including ranks that had no data (uneven inputs).

torchmetrics all-gathers each state, so that every rank receives the states of all ranks. States that are sums, maxima
or minima are all-reduced instead: what a rank receives does not grow with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torchmetrics import Metric

__all__ = ["compute_across_ranks"]


def compute_across_ranks(metrics: Mapping[str, Metric], group: ProcessGroup | None = None) -> dict[str, Any]:
    """Compute over the data of all ranks the metrics that any rank has updated. All ranks must call this.

    Args:
        metrics: The metrics by name.
        group: The process group whose ranks together hold all of the data. None is the default group.

    >>> compute_across_ranks({})
    {}
    """
    if dist.get_world_size() == 1 or not metrics:
        return {name: metric.compute() for name, metric in metrics.items() if metric.update_called}
    seen = torch.tensor([metric.update_called for metric in metrics.values()], dtype=torch.uint8)
    dist.all_reduce(seen, "MAX")
    found = [item for item, any_has in zip(metrics.items(), seen.tolist(), strict=True) if any_has]
    modules = [module for _, metric in found for module in metric.modules() if hasattr(module, "_computed")]
    for module in modules:
        # A cached value is stale if other ranks have been updated since, and a rank without data must count as updated.
        # Both are done as in torchmetrics' loading of a state.
        module._computed = None  # type: ignore[assignment]
        module.process_group = cast(Any, group)
        module._update_count = max(cast(Any, module)._update_count, 1)  # type: ignore[assignment]
    with _states_reduced(modules):
        return {name: metric.compute() for name, metric in found}


@contextmanager
def _states_reduced(modules: list[Any]) -> Generator[None]:
    """All-reduce the states of metrics where that gives what torchmetrics computes from all of them."""
    chosen = [module for module in modules if getattr(module, "dist_sync_fn", _gather) is None]
    for module in chosen:
        module.dist_sync_fn = _StateSync(module)
    try:
        yield
    finally:
        for module in chosen:
            module.dist_sync_fn = None


class _StateSync:
    """Synchronizes a state of a metric: returns what torchmetrics reduces, the states of all ranks or their reduction.

    Args:
        metric: The metric.
    """

    def __init__(self, metric: Any) -> None:
        from torchmetrics.utilities.data import dim_zero_max, dim_zero_min, dim_zero_sum

        self._metric = metric
        self._operations: dict[Any, str] = {dim_zero_sum: "SUM", dim_zero_max: "MAX", dim_zero_min: "MIN"}

    def __call__(self, tensor: Tensor, group: Any = None) -> list[Tensor]:
        """Return one reduced state, or those of all ranks.

        Args:
            tensor: The state of this rank.
            group: The process group; None is the default group.
        """
        metric = self._metric
        by = next((by for name, by in metric._reductions.items() if getattr(metric, name) is tensor), None)
        # A sum of booleans counts, and a reduction of them does not.
        operation = None if tensor.dtype == torch.bool else self._operations.get(by)
        if operation is None:
            return _gather(tensor, group)
        reduced = tensor.contiguous().clone()
        dist.all_reduce(reduced, operation, group)
        return [reduced]


def _gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    from torchmetrics.utilities.distributed import gather_all_tensors

    return gather_all_tensors(tensor, group)
