"""Every method as a plain function, for loops of one's own.

The index is that of :mod:`composer.algorithms`: its functions, without its classes. Each loads when first used.

>>> import torch
>>> from composer import functional
>>> functional.smooth_labels(torch.zeros(1, 4), torch.tensor([2]), 0.4)
tensor([[0.1000, 0.1000, 0.7000, 0.1000]])
"""

from __future__ import annotations

from composer._lazy import attach
from composer.algorithms._exports import HOMES

# Short names that published guides use; accepted, not listed.
_SHORT = {
    "augmix": "augmix_image",
    "colout": "colout_batch",
    "cutmix": "cutmix_batch",
    "cutout": "cutout_batch",
    "mixup": "mixup_batch",
    "randaugment": "randaugment_image",
    "selective_backprop": "select_using_loss",
}

# Functions are told from classes by their spelling, so that nothing has to be imported to make the list.
__getattr__, __dir__, __all__ = attach(
    __name__,
    {name: f"composer.algorithms:{name}" for name in HOMES if name.islower()},
    {short: f"composer.algorithms:{name}" for short, name in _SHORT.items()},
)
