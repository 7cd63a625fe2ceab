"""Values of metrics over the data of several processes, of which some may have had none."""

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
    """Return the values, over the data of all processes, of the metrics that have seen any; all have to call this.

    Args:
        metrics: The metrics by name.
        group: The processes that have all of the data between them; None is all.

    >>> compute_across_ranks({})
    {}
    """
    if dist.get_world_size() == 1 or not metrics:
        return {name: metric.compute() for name, metric in metrics.items() if metric.update_called}
    seen = torch.tensor([metric.update_called for metric in metrics.values()], dtype=torch.uint8)
    dist.all_reduce(seen, "MAX")
    found = [item for item, any_has in zip(metrics.items(), seen.tolist(), strict=True) if any_has]
    for module in (module for _, metric in found for module in metric.modules() if hasattr(module, "_computed")):
        # What a process kept when it last had a batch is out of date where others had one since; and one that had none
        # has the values of all from now on. Both are as torchmetrics' own loading of a state does it.
        module._computed = None  # type: ignore[assignment]
        module.process_group = cast(Any, group)
        module._update_count = max(cast(Any, module)._update_count, 1)  # type: ignore[assignment]
    return {name: metric.compute() for name, metric in found}
