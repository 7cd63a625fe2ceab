from __future__ import annotations

import os
import sys
import weakref

import pytest
import torch

from composer.estimation.placeholders import placeholder


def test_shape_and_dtype():
    tensor = placeholder((3, 2), (1, 3), torch.bfloat16, "cpu")
    assert (tensor.shape, tensor.stride(), tensor.dtype) == ((3, 2), (1, 3), torch.bfloat16)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_larger_than_the_memory_of_the_host():
    numel = 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    tensor = placeholder((numel,), (1,), torch.float32, "cpu")
    assert tensor.untyped_storage().nbytes() == 4 * numel
    storage = weakref.ref(tensor.untyped_storage())
    del tensor
    assert storage() is None


def test_other_devices_fail_as_they_do():
    with pytest.raises((RuntimeError, AssertionError)):
        placeholder((2**50,), (1,), torch.float32, "cuda")
