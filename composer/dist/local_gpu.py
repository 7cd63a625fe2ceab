"""Select the GPU or other accelerator of this rank by its local rank."""

from __future__ import annotations

from typing import Any

import torch

from composer.dist.ranks import get_local_rank

__all__ = ["checked_index", "local_gpu"]


def checked_index(device_type: str, given: int | None = None) -> int:
    """Return the index of an accelerator, checked against the number of devices that PyTorch sees.

    Args:
        device_type: Type of the accelerator, as in ``torch.device(device_type)``.
        given: Its index; ``None`` selects the one of this rank, see :func:`local_gpu`.

    Raises:
        ValueError: PyTorch sees no device with this index.

    >>> checked_index("cuda") if torch.cuda.is_available() else 0
    0
    """
    index = local_gpu(device_type) if given is None else given
    module: Any = torch.get_device_module(device_type)
    number = module.device_count()
    if not 0 <= index < number:
        what = "GPUs" if device_type == "cuda" else f"devices of type {device_type!r}"
        raise ValueError(
            f"device_id must be less than the number of {what} that PyTorch sees, {number}, "
            f"but is {index}{' (the local rank)' if given is None else ''}."
        )
    return index


def local_gpu(device_type: str = "cuda") -> int:
    """Return the index of this rank's accelerator: its local rank, or 0 if each rank sees a single device.

    Ranks see a single device with schedulers that set ``--gpus-per-task=1``, in containers with one GPU, and if
    ``CUDA_VISIBLE_DEVICES`` or ``ZE_AFFINITY_MASK`` differs between ranks. If ranks use the same GPU by mistake, NCCL
    raises an error.

    Args:
        device_type: Type of the accelerator, as in ``torch.device(device_type)``.

    >>> local_gpu(), local_gpu("mps")
    (0, 0)
    """
    module: Any = getattr(torch, device_type, None)
    count = getattr(module, "device_count", None)
    return 0 if count is not None and count() == 1 else get_local_rank()
