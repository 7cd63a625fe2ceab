"""Let torchvision, which is built for CUDA, load beside a CPU build of torch: name its operators before it is imported.

``make bench-env`` copies this module into the environment of the benchmarks, with a ``.pth`` file that imports it when
Python starts, so that it holds in every process, also in those that a benchmark does not start itself.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

__all__ = ["install"]

_KEPT: list[Any] = []  # operators go with the object that defines them


class _Finder:
    """Finds nothing: it is asked when torchvision is about to be imported."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(cls)  # type: ignore[arg-type]
            _define()


def install() -> None:
    """Define the operators when torchvision is imported, and not before: that imports torch."""
    if _Finder not in sys.meta_path:  # Python may read a .pth file twice
        sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]


def _define() -> None:
    try:
        built = importlib.metadata.version("torchvision").partition("+")[2]
    except importlib.metadata.PackageNotFoundError:
        return
    import torch

    if built == torch.__version__.partition("+")[2]:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
