"""Import packages that are installed separately, without their dependencies, such as torchvision with a CPU torch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_FOLDER = Path(sys.prefix) / "apart"
_LIBRARIES: list[torch.library.Library] = []  # an operator goes with the object that defines it


def make_importable() -> None:
    """Put the folder on the path into which ``make test`` lays them, once in a process.

    torchvision's wheels are built for CUDA: beside a CPU build it imports once its operators have names.
    """
    if not _FOLDER.is_dir():
        return
    if str(_FOLDER) not in sys.path:  # a process that another one spawned has its path
        sys.path.append(str(_FOLDER))
    if torch.version.cuda is None and not _LIBRARIES:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
