"""The default device of a rank's batches."""

from __future__ import annotations

import torch

from composer.dist.local_gpu import checked_index

__all__ = ["default_device"]


def default_device() -> torch.device:
    """Return the accelerator of this rank, or the CPU if none is available, without changing the current device.

    The index is the local rank, or 0 if each process sees only one accelerator.

    Raises:
        ValueError: There is no accelerator for this local rank.

    >>> default_device().type == "cpu" or torch.accelerator.is_available()
    True
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return (
        torch.device("cpu") if accelerator is None else torch.device(accelerator.type, checked_index(accelerator.type))
    )
