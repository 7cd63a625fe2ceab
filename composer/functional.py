"""Every method as a plain function, for custom training loops.

The names are the functions of :mod:`composer.algorithms`, without its classes. Each is imported on first use.

>>> import torch
>>> from composer import functional
>>> functional.smooth_labels(torch.zeros(1, 4), torch.tensor([2]), 0.4)
tensor([[0.1000, 0.1000, 0.7000, 0.1000]])
"""

from __future__ import annotations

from composer._lazy import attach
from composer.algorithms._exports import MODULES

# Short names used by published guides; accepted, but not listed.
_SHORT = {
    "augmix": "augmix_image",
    "colout": "colout_batch",
    "cutmix": "cutmix_batch",
    "cutout": "cutout_batch",
    "mixup": "mixup_batch",
    "randaugment": "randaugment_image",
    "selective_backprop": "select_using_loss",
}

# Functions and classes are distinguished by spelling, so that building the list imports nothing.
__getattr__, __dir__, __all__ = attach(
    __name__,
    {name: f"composer.algorithms:{name}" for name in MODULES if name.islower()},
    {short: f"composer.algorithms:{name}" for short, name in _SHORT.items()},
)
