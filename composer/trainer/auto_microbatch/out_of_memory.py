"""Recognize out-of-memory (OOM) errors of CUDA, cuDNN, ROCm, MPS and others, and free what a failed attempt holds."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator

import torch

from composer.core.state import State

__all__ = ["ESTIMATE", "free", "is_out_of_memory"]

ESTIMATE = (
    "`composer estimate SCRIPT` tells what the memory holds, the largest microbatch that fits, and which change makes "
    "the program fit."
)
"""What an error of memory that ends a run says about the remedy."""

# Message of a RuntimeError in lower case -> its source. torch raises OutOfMemoryError only for its own allocator.
_MESSAGES: dict[str, str] = {
    "cuda out of memory": "the caching allocator of CUDA, by its old error class",
    "cuda error: out of memory": "a CUDA call that allocates by itself: cudaMalloc, contexts, graphs",
    "cuda driver error: out of memory": "the driver, with expandable segments",
    "cuda_error_out_of_memory": "the driver's own name of it, as printed by bindings of other packages",
    "triton error [cuda]: out of memory": "Triton, when it loads or launches a kernel",
    "triton error [hip]: out of memory": "Triton on ROCm",
    "cublas_status_alloc_failed": "cuBLAS, for its handle or workspace",
    "cublas_status_not_initialized when calling `cublascreate": "cuBLAS, if its handle does not fit",
    "cudnn_status_not_initialized": "cuDNN, likewise",
    "hipblas_status_alloc_failed": "hipBLAS",
    "hipblas_status_not_initialized when calling `hipblascreate": "hipBLAS, if its handle does not fit",
    "cudnn_status_alloc_failed": "cuDNN before version 9",
    "cudnn_status_internal_error_host_allocation_failed": "cuDNN 9",
    "cudnn_status_internal_error_device_allocation_failed": "cuDNN 9",
    "unable to find a valid cudnn algorithm": "convolutions, if no workspace fits",
    "unable to find an engine to execute this computation": "convolutions of cuDNN 8 and later, likewise",
    "cudnn_status_not_supported. this error may appear if you passed in a non-contiguous input": "cuDNN, likewise",
    "cusolver_status_alloc_failed": "cuSOLVER",
    "cusparse_status_alloc_failed": "cuSPARSE",
    "cufft_alloc_failed": "cuFFT",
    "hip out of memory": "the caching allocator of ROCm, by its old error class",
    "hip error: out of memory": "a ROCm call that allocates by itself",
    "xpu out of memory": "the caching allocator of Intel's devices",
    "mps backend out of memory": "Apple's devices",
    "resource_exhausted": "XLA",
    "defaultcpuallocator: can't allocate memory": "the CPU allocator, if malloc fails",
    "defaultcpuallocator: not enough memory": "the CPU's allocator on Windows",
}

# After a failed collective the other ranks hang, whatever the cause, so a retry is not possible.
_COLLECTIVES = ("nccl", "gloo")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that a device or the host ran out of memory.

    Args:
        error: The error.

    >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    True
    >>> is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    True
    >>> is_out_of_memory(RuntimeError("out of resource: shared memory"))
    False
    """
    return any(_is_oom(each) for each in _chain(error))


def free(state: State, error: BaseException | None) -> None:
    """Free what a failed attempt holds: outputs, loss, and the local variables in the traceback frames.

    Args:
        state: The state; its batch is kept.
        error: The error that ended the attempt, which can still be raised afterwards; None if another rank failed.
    """
    state.outputs, state.loss, state.metric_outputs = None, None, {}
    for each in _related(error):
        traceback.clear_frames(each.__traceback__)
    gc.collect()  # graphs in reference cycles
    if torch.accelerator.is_available():
        # So that cached blocks of the larger size can be reallocated for the smaller one.
        torch.accelerator.empty_cache()


def _is_oom(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return not any(name in text for name in _COLLECTIVES) and any(spelling in text for spelling in _MESSAGES)


def _related(error: BaseException | None) -> list[BaseException]:
    """Return the error and all errors that it references: causes, suppressed contexts, and members of groups."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or any(each is other for other in found):
            continue
        found.append(each)
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return found


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its chain of causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
