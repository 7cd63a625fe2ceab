"""Stage tensors in host memory."""

from __future__ import annotations

import gc
import mmap
import random
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from composer.checkpoint import file_format, host_memory
from composer.checkpoint.staging import HostCopy
from composer.warnings import ComposerWarning
from tests.checkpoint.content import same
from tests.streams import FakeCuda, Runtime, side_stream

shapes = st.lists(st.integers(0, 3), max_size=3)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
tensors = st.builds(lambda shape, dtype: (torch.rand(shape) * 9).to(dtype), shapes, dtypes)
trees = st.recursive(
    tensors | st.none() | st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab/", max_size=2) | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=8,
)


def leaves(node: Any) -> list[Tensor]:
    if isinstance(node, Tensor):
        return [node]
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return [leaf for value in values for leaf in leaves(value)]


@given(st.lists(trees, min_size=1, max_size=3))
def test_copy_is_equal_and_independent(contents) -> None:
    host_copy = HostCopy()
    for content in contents:
        copy = host_copy.copy({"root": content})
        assert same(copy, {"root": content})
        mine = {leaf.data_ptr() for leaf in leaves(content) if leaf.numel()}
        assert not mine & {leaf.data_ptr() for leaf in leaves(copy) if leaf.numel()}
        before = [leaf.clone() for leaf in leaves(copy)]
        for leaf in leaves(content):
            leaf.zero_()
        assert same(leaves(copy), before)


def test_memory_is_reused() -> None:
    host_copy, weight = HostCopy(), torch.ones(3)
    first = host_copy.copy({"a": weight})["a"]
    weight.fill_(2.0)
    second = host_copy.copy({"a": weight})["a"]
    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [2.0, 2.0, 2.0]
    assert host_copy.copy({"a": torch.ones(4)})["a"].tolist() == [1.0] * 4
    assert host_copy.copy({"a": torch.ones(4, dtype=torch.int64)})["a"].dtype == torch.int64


def test_tied_weights_stay_tied_until_untied() -> None:
    host_copy, weight = HostCopy(), torch.ones(2)
    copy = host_copy.copy({"a": weight, "b": weight})
    assert copy["a"] is copy["b"]
    copy = host_copy.copy({"a": weight, "b": torch.zeros(2)})
    assert (copy["a"].tolist(), copy["b"].tolist()) == ([1.0, 1.0], [0.0, 0.0])
    copy = host_copy.copy({"a": weight, "b": weight})
    assert copy["a"] is copy["b"]


def test_views_and_strides() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    content = {
        "whole": whole,
        "turned": whole.t(),
        "column": whole[:, 1],
        "images": torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last),
    }
    copy = HostCopy().copy(content)
    assert same(copy, content)
    assert copy["images"].is_contiguous(memory_format=torch.channels_last)
    assert copy["column"].untyped_storage().nbytes() == 12


def test_parameters_stay_parameters_and_share_memory() -> None:
    parameter, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    leaf = torch.ones(2, requires_grad=True)
    copy = HostCopy().copy({"a": parameter, "b": parameter.detach(), "c": frozen, "d": leaf, "e": leaf * 1})
    assert [type(value) for value in copy.values()] == [type(value) for value in (parameter, leaf, frozen, leaf, leaf)]
    assert [value.requires_grad for value in copy.values()] == [True, False, False, True, True]
    assert all(value.is_leaf and value.tolist() == [1, 1] for value in copy.values())
    assert copy["a"].data_ptr() == copy["b"].data_ptr() != parameter.data_ptr()


def test_released_buffers_are_forgotten() -> None:
    host_copy = HostCopy()
    memory = [weakref.ref(tensor) for tensor in host_copy.copy({"a": torch.ones(2), "b": torch.ones(3)}).values()]
    host_copy.copy({"a": torch.ones(2)})
    assert [one() is None for one in memory] == [False, True]
    host_copy.copy({"a": torch.ones(1 << 20)})
    (buffer,) = host_copy._buffers.values()
    assert buffer.num_bytes == 9 << 19  # grown, by an eighth more than was asked for
    host_copy.copy({"a": torch.ones(1)})
    assert buffer.num_bytes == 9 << 19, "the larger one is kept"


def test_copies_from_a_device_are_complete_when_take_returns() -> None:
    with FakeCuda() as device:
        weight = torch.ones(3).to("cuda")
        with side_stream() as side:
            side.wait_stream(device.streams[0])
            copy = HostCopy().copy({"weight": weight, "again": [weight], "bias": torch.zeros(2)})
        assert side.clock[side.name] <= device.host[side.name], "the host did not wait for the copies"
        weight.add_(1)  # as the next step does: it may not write what is still being read
        assert (weight.sum().item(), copy["weight"].sum().item()) == (6, 3)
        assert not copy["weight"].is_cuda
        weight.record_stream(side)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_every_accelerator_is_synchronized(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    class OnDevice(torch.Tensor):
        """A tensor that says that it lies on the accelerator."""

        device = torch.device(kind, 0)

    monkeypatch.setattr(host_memory, "_host_memory", lambda size, kind: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    HostCopy().copy({"a": torch.ones(2).as_subclass(OnDevice)})
    assert waited == [torch.device(kind, 0)]


DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
]  # fmt: skip


def nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_pinned_memory_is_the_sum_of_the_bytes() -> None:
    generator = random.Random(1)
    host_copy, largest = HostCopy(), 0
    with FakeCuda(), Runtime.counted() as pinned:
        for _ in range(12):
            number = generator.randrange(1, 30)
            on_host = [
                (torch.rand(generator.randrange(3000), generator.randrange(1, 30)) * 9).to(generator.choice(DTYPES))
                for _ in range(number)
            ]
            copy = host_copy.copy({"a": [tensor.to("cuda") for tensor in on_host]})["a"]
            assert all(map(same_bits, copy, on_host))
            assert not any(one.is_cuda for one in copy)
            assert len(pinned) == 1, "one buffer, and those of before are not pinned any more"
            largest = max(largest, nbytes(on_host) + 64 * number)
            assert nbytes(on_host) <= sum(pinned.values()) <= largest * 9 // 8 + mmap.PAGESIZE
        del host_copy
        assert not pinned


def test_the_first_buffer_has_no_slack() -> None:
    sizes = [(1 << 20) + 1, (1 << 21) + 1, 5]
    with FakeCuda(), Runtime.counted() as pinned:
        host_copy = HostCopy()
        host_copy.copy({"a": [torch.ones(size, dtype=torch.uint8).to("cuda") for size in sizes]})
        assert sum(sizes) <= sum(pinned.values()) < sum(sizes) + 64 * len(sizes) + mmap.PAGESIZE
        host_copy.copy({"a": torch.ones(2)})
        assert not pinned, "nothing of the device is saved any more"


def test_slowly_growing_set_reuses_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], host_memory._host_memory
    monkeypatch.setattr(host_memory, "_host_memory", lambda size, kind: made.append(size) or make(size, kind))
    host_copy = HostCopy()
    for number in range(100, 200):
        content = {"a": [torch.full((100,), float(each)) for each in range(number)]}
        assert same(host_copy.copy(content), content)
    assert len(made) < 10


def test_old_memory_is_freed_before_new_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, make = [], host_memory._host_memory

    def noted(size: int, kind: str) -> Tensor:
        assert not any(one() is not None for one in alive)
        memory = make(size, kind)
        alive.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(host_memory, "_host_memory", noted)
    host_copy = HostCopy()
    copy = host_copy.copy({"a": torch.ones(1000), "b": torch.ones(4)})
    host_copy.copy({"a": torch.ones(1000), "b": torch.ones(100_000)})
    assert len(alive) == 2
    assert copy["a"].untyped_storage().nbytes() == 4000  # the one before: reused


def test_alternating_sets_keep_the_larger_buffer() -> None:
    host_copy, large, small = HostCopy(), torch.rand(1 << 16), torch.rand(5)
    with FakeCuda(), Runtime.counted() as pinned:
        addresses = set()
        for each in (large, small, large, small, small):
            assert same_bits(host_copy.copy({"a": each.to("cuda")})["a"], each)
            addresses |= pinned.keys()
        assert len(addresses) == len(pinned) == 1
        del host_copy


@pytest.mark.parametrize("allocator_pins", [True, False])
def test_memory_that_cannot_be_page_locked(allocator_pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some virtual GPUs: training continues, and CUDA's last error does not leak into the next kernel."""
    host_memory._warn.cache_clear()
    empty, pins, on_host = torch.empty, [], torch.rand(1000)

    def allocate(*size: Any, pin_memory: bool = False, **given: Any) -> Tensor:
        if pin_memory:
            pins.append(size)
            if not allocator_pins:
                raise RuntimeError("CUDA error: operation not supported")
        return empty(*size, **given)

    monkeypatch.setattr(Runtime, "refuses", 801)
    monkeypatch.setattr(torch, "empty", allocate)
    with FakeCuda(), Runtime.counted() as pinned:
        host_copy = HostCopy()
        match = r"in place \(cudaHostRegister returned 801\)\. PyTorch's allocator pins it"
        with pytest.warns(ComposerWarning) as warned:
            for times in (1, 2, 3):  # each needs a new buffer
                copy = host_copy.copy({"a": on_host.repeat(times * 100).to("cuda")})["a"]
                assert same_bits(copy, on_host.repeat(times * 100))
                assert Runtime.last_error == 0
        if not allocator_pins:
            match = r"returned 801, pin_memory=True failed: CUDA error: operation not supported\)\. It is pageable"
        assert len(warned) == 1
        assert warned[0].message.args[0].startswith("Host memory for asynchronous checkpoints could not be pinned")
        assert re.search(match, str(warned[0].message))
        assert (len(pins), pinned) == (3, {})


def test_memory_that_stays_pinned_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeCuda(), Runtime.counted():
        host_copy = HostCopy()
        host_copy.copy({"a": torch.ones(2).to("cuda")})
        monkeypatch.setattr(Runtime, "refuses", 1)
        del host_copy
        gc.collect()
        assert "cudaHostUnregister returned 1" in caplog.text
        assert Runtime.last_error == 0


def same_bits(one: Tensor, other: Tensor) -> bool:
    in_bytes = [tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*in_bytes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_its_file(dtype: torch.dtype, tmp_path: Path) -> None:
    big = (torch.rand(2, 5, 3) * 9).to(dtype)
    content = {"whole": big, "turned": big.transpose(0, 2), "none": big[:0], "one": big[0, 0, 0], "column": big[:, 1]}
    host_copy = HostCopy()
    for _ in range(2):
        copy = host_copy.copy(content)
        file_format.write(copy, tmp_path / "a.pt")
        read = file_format.read(tmp_path / "a.pt")
        for found in (copy, read):
            assert found.keys() == content.keys()
            assert all(same_bits(found[name], content[name]) for name in content)
        held = [one.untyped_storage().nbytes() for one in read.values() if one.numel()]
        assert held == [one.numel() * one.element_size() for one in content.values() if one.numel()]


def test_tensors_that_differ_in_conj_or_neg_bit() -> None:
    number = torch.tensor([1 + 2j])
    content = {"a": number, "b": number.conj(), "imag": number.imag, "negative": number.conj().imag}
    copy = HostCopy().copy(content)
    assert {name: one.tolist() for name, one in copy.items()} == {
        "a": [1 + 2j], "b": [1 - 2j], "imag": [2.0], "negative": [-2.0],
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:torch.quantize_per_tensor")
def test_tensors_that_are_not_dense() -> None:
    dense = torch.eye(3)
    compressed = [getattr(dense, f"to_sparse_{kind}")() for kind in ("csr", "csc")]
    odd = [dense.to_sparse(), *compressed, torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)]
    host_copy = HostCopy()
    for one in odd:
        copy = host_copy.copy({"a": one, "b": one, "c": dense})
        assert copy["a"] is copy["b"]
        assert copy["a"].layout == one.layout
        one.copy_(torch.quantize_per_tensor(-dense, 0.1, 0, torch.qint8)) if one.is_quantized else one.values().zero_()
        back = copy["a"].dequantize() if one.is_quantized else copy["a"].to_dense()
        assert torch.allclose(back, dense)
        assert same(copy["c"], dense)


def test_expanded_views_copy_their_elements() -> None:
    content = {"wide": torch.ones(1).expand(5), "skips": torch.arange(10.0)[::3], "b": torch.ones(2, 1, 3)[:, :, 1:]}
    copy = HostCopy().copy(content)
    assert same(copy, content)
    assert {name: one.untyped_storage().nbytes() for name, one in copy.items()} == {"wide": 20, "skips": 16, "b": 16}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_device_copies_into_pinned_memory() -> None:
    host_copy = HostCopy()
    for number in (3, 4, 1):
        tensors = [torch.rand(1000, 1001, device="cuda") for _ in range(number)]
        before = torch.cuda.memory_allocated()
        copy = host_copy.copy({"a": tensors})["a"]
        assert all(one.is_pinned() for one in copy)
        assert all(torch.equal(one, other.cpu()) for one, other in zip(copy, tensors, strict=True))
        assert torch.cuda.memory_allocated() == before
    del host_copy
    assert not copy[0].is_pinned()
