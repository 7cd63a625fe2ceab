"""Where the loaders put batches unless they are told."""

from __future__ import annotations

import torch

from composer.dist.local_gpu import checked_index

__all__ = ["device_of_process"]


def device_of_process() -> torch.device:
    """Return this process's accelerator, or the CPU where there is none; no setting of the process is changed.

    It is that of the local rank, or the only one where each process sees one of its own.

    Raises:
        ValueError: There is none for this local rank.

    >>> device_of_process().type == "cpu" or torch.accelerator.is_available()
    True
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return (
        torch.device("cpu") if accelerator is None else torch.device(accelerator.type, checked_index(accelerator.type))
    )
