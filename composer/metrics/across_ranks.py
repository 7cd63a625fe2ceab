"""Compute metrics over the data of all ranks, including ranks that had no data (uneven inputs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

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
    for module in (module for _, metric in found for module in metric.modules() if hasattr(module, "_computed")):
        # A cached value is stale if other ranks have been updated since, and a rank without data must count as updated.
        # Both are done as in torchmetrics' loading of a state.
        module._computed = None  # type: ignore[assignment]
        module.process_group = cast(Any, group)
        module._update_count = max(cast(Any, module)._update_count, 1)  # type: ignore[assignment]
    return {name: metric.compute() for name, metric in found}
