"""Mean average precision (mAP) for object detection."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor
from torchmetrics.detection.mean_ap import MeanAveragePrecision

from composer._lazy import import_extra

__all__ = ["MAP"]


class MAP(MeanAveragePrecision):
    """Mean average precision and recall of boxes, as defined by COCO.

        AP_c = mean over t of the area under the precision-recall curve at IoU t        t = 0.50, 0.55, ..., 0.95

    The values are ``map``, ``map_50``, ``map_75`` and ``map_small``, ``map_medium``, ``map_large`` by the area of
    boxes (below 32 x 32 pixels, below 96 x 96, above); the mean recall with at most that many detections per
    image, ``mar_1``, ``mar_10``, ``mar_100``, and ``mar_small``, ``mar_medium``, ``mar_large``; ``map_per_class`` and
    ``mar_100_per_class``. A value without any case is -1.

    ``update(preds, target)`` takes lists with one dict per image. A prediction has ``boxes``, (N, 4) as
    (x1, y1, x2, y2) in pixels, ``scores`` and ``labels``, (N,); a target has ``boxes`` and ``labels``. The data stays
    on the device until the values are computed, with pycocotools or else faster-coco-eval.

    Args:
        class_metrics: Whether to also compute per-class values, in the order of ``classes``, which is added.
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.
        process_group: The process group. None is the default group.
        dist_sync_fn: Function that all-gathers a state from all ranks. None uses torch.distributed.

    Raises:
        MissingConditionalImportError: torchvision or pycocotools is not installed.

    >>> MAP.higher_is_better
    True
    >>> boxes, label = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([1])
    >>> metric = MAP()  # doctest: +SKIP
    >>> metric.update(  # doctest: +SKIP
    ...     [{"boxes": boxes, "scores": torch.tensor([0.9]), "labels": label}],
    ...     [{"boxes": boxes, "labels": label}],
    ... )
    >>> metric.compute()["map"]  # doctest: +SKIP
    tensor(1.)

    Paper: https://arxiv.org/abs/1405.0312 (Lin et al. 2014)
    """

    def __init__(
        self,
        class_metrics: bool = False,
        dist_sync_on_step: bool = False,
        process_group: Any = None,
        dist_sync_fn: Callable[..., Any] | None = None,
    ) -> None:
        import_extra("torchvision", "detection", "MAP")
        faster = find_spec("pycocotools") is None and find_spec("faster_coco_eval") is not None
        if not faster:
            import_extra("pycocotools", "detection", "MAP")
        super().__init__(
            class_metrics=class_metrics,
            backend="faster_coco_eval" if faster else "pycocotools",
            dist_sync_on_step=dist_sync_on_step,
            process_group=process_group,
            dist_sync_fn=dist_sync_fn,
        )

    def compute(self) -> dict[str, Tensor]:
        """Return the values by name: scalars, and vectors with one value per class."""
        values: dict[str, Tensor] = super().compute()
        if not self.class_metrics:
            del values["classes"]
        return values
