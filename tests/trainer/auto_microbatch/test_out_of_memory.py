"""Recognizing out-of-memory errors, and freeing what a failed attempt holds."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from composer import State
from composer.trainer.auto_microbatch.out_of_memory import free, is_out_of_memory

RUN_OUT = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB"),
    torch.cuda.OutOfMemoryError("anything"),
    MemoryError(),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; 14.00 GiB already"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul( ltHandle, ...)`"),
    RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("Triton Error [HIP]: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input"),  # noqa: E501
    RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("HIP error: out of memory"),
    RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)."),
    RuntimeError("RESOURCE_EXHAUSTED: Attempting to reserve 5.00G at the bottom of memory."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:83] data. DefaultCPUAllocator: not enough memory: you tried"),
]  # fmt: skip

NOT = [
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    RuntimeError("out of resource: shared memory, Required: 147456, Hardware limit: 101376."),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm`"),
    RuntimeError("Triton Error [CUDA]: invalid argument"),
    RuntimeError("NCCL error: unhandled cuda error, Cuda failure 'CUDA error: out of memory'"),
    ValueError("CUDA out of memory"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", RUN_OUT, ids=lambda error: str(error)[:40])
def test_out_of_memory_errors(error) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", NOT, ids=lambda error: str(error)[:40])
def test_other_errors(error) -> None:
    assert not is_out_of_memory(error)


def test_real_host_out_of_memory_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def raised(inner: Exception, outer: Exception, how: str) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            if how == "from":
                raise outer from error
            if how == "from None":
                raise outer from None
            raise outer  # noqa: B904
    except Exception as error:
        return error


@pytest.mark.parametrize(("how", "expected"), [("from", True), ("while", True), ("from None", False)])
def test_causes_of_an_error_are_inspected(how, expected) -> None:
    """As compilers do that fail while they try kernels."""
    error = raised(torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("backend failed"), how)
    assert is_out_of_memory(error) is expected


def test_cyclic_causes() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert not is_out_of_memory(one)


def test_free_releases_frame_locals_and_keeps_the_error() -> None:
    held: list[weakref.ref] = []

    def deep() -> None:
        large = torch.ones(10)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    state = State(model=torch.nn.Linear(1, 1))
    state.outputs, state.loss = torch.ones(2), torch.ones(())
    gc.disable()
    try:
        deep()
    except torch.OutOfMemoryError as error:
        caught = error
    finally:
        gc.enable()
    assert held[0]() is not None
    free(state, caught)
    assert held[0]() is None
    assert (state.outputs, state.loss) == (None, None)
    assert caught.__traceback__ is not None


@pytest.mark.parametrize("how", ["from", "while", "from None", "group"])
def test_free_releases_locals_of_chained_errors(how) -> None:
    held: list[weakref.ref] = []

    def fail(message: str) -> None:
        large = torch.ones(10)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError(message)

    def outer() -> None:
        large = torch.ones(10)
        held.append(weakref.ref(large))
        try:
            fail("CUDA out of memory.")
        except torch.OutOfMemoryError as error:
            if how == "from":
                raise RuntimeError("the compiler failed") from error
            if how == "from None":
                raise RuntimeError("the compiler failed") from None
            if how == "group":
                raise ExceptionGroup("all kernels failed", [error]) from None
            fail("CUDA out of memory, again.")

    try:
        outer()
    except Exception as error:
        caught = error
    free(State(model=torch.nn.Linear(1, 1)), caught)
    assert len(held) >= 2
    assert [reference() for reference in held] == [None] * len(held)
