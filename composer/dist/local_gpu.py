"""Which GPU or other accelerator belongs to this process, by its local rank."""

from __future__ import annotations

from typing import Any

import torch

from composer.dist.ranks import get_local_rank

__all__ = ["checked_index", "local_gpu"]


def checked_index(device_type: str, given: int | None = None) -> int:
    """Return the index of an accelerator that PyTorch sees.

    Args:
        device_type: Type of the accelerator, as in ``torch.device(device_type)``.
        given: Its index; ``None`` is that of this process, see :func:`local_gpu`.

    Raises:
        ValueError: PyTorch sees none of this index.

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
    """Return the index of this process's accelerator: its local rank, or 0 where each process sees one of its own.

    The latter is what schedulers with ``--gpus-per-task=1`` and containers with one GPU do, and variables such as
    ``CUDA_VISIBLE_DEVICES`` and ``ZE_AFFINITY_MASK`` that differ from process to process. Processes that share one GPU
    by mistake are told so by NCCL.

    Args:
        device_type: Type of the accelerator, as in ``torch.device(device_type)``.

    >>> local_gpu(), local_gpu("mps")
    (0, 0)
    """
    module: Any = getattr(torch, device_type, None)
    count = getattr(module, "device_count", None)
    return 0 if count is not None and count() == 1 else get_local_rank()
