"""Digests of a few elements tell changed values, and depend on nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from torch import Tensor

from composer.trainer.fingerprint.sampled import digest_elements, digest_tensors, sample_tensor


def grid(*shape: int) -> Tensor:
    return torch.arange(int(torch.tensor(shape).prod())).reshape(shape).float()


TENSORS = {
    "float32": grid(5, 7),
    "bfloat16": grid(3, 3).bfloat16(),
    "float8": grid(4).to(torch.float8_e4m3fn),
    "complex": torch.complex(grid(4), grid(4)),
    "conjugate": torch.complex(grid(4), grid(4)).conj(),
    "bool": grid(4) > 1,
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 3),
    "transposed": grid(40, 50).T,
    "channels_last": grid(2, 3, 8, 8).to(memory_format=torch.channels_last),
    "expanded": grid(6, 1).expand(6, 1000),
    "slice": grid(9, 9)[::2, 1:],
    "gradient": grid(5).requires_grad_() * 2,
}


@pytest.mark.parametrize("name", TENSORS)
def test_equal_tensors_have_equal_digests(name) -> None:
    tensor = TENSORS[name]
    sample = sample_tensor(tensor, 8)
    assert sample is not None
    assert sample.numel() <= 40 * tensor.element_size()
    assert digest_tensors([tensor]) == digest_tensors([tensor.detach()])
    if tensor.numel() and name != "float8":
        assert digest_tensors([tensor]) != digest_tensors([tensor * 3 + 1])


def test_tensors_without_values() -> None:
    odd = [torch.ones(3, device="meta"), torch.ones(3).to_sparse(), torch.nn.UninitializedParameter()]
    assert digest_tensors(odd) == ["--------"] * 3
    assert digest_tensors([]) == []


def test_shape_and_dtype_count() -> None:
    same = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32)]
    assert len(set(digest_tensors(same))) == 3


def test_every_order_of_rows_is_told() -> None:
    """Also if some columns are constant, as the borders of images."""
    images = torch.zeros(1024, 8, 8)
    images[:, 3, 4] = torch.arange(1024)
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(1))
    assert digest_tensors([images], 256) != digest_tensors([images[order]], 256)


def test_tensors_are_not_copied(monkeypatch) -> None:
    """However large a tensor is, and whatever its memory format."""
    tensor = torch.zeros(300, 400, 3).permute(2, 1, 0)
    sizes: list[int] = []
    copied = Tensor.contiguous
    monkeypatch.setattr(Tensor, "contiguous", lambda self: sizes.append(self.numel()) or copied(self))
    sample_tensor(tensor, 16)
    assert sizes and max(sizes) < 40


VALUES: dict[str, tuple[Any, Any]] = {
    "order": (list(range(2000)), [1, 0, *range(2, 2000)]),
    "length": ([1, 2], [1, 2, 2]),
    "nested": ([{"x": (1, 2)}], [{"x": (1, 3)}]),
    "keys": ({"a": 1}, {"b": 1}),
    "set": ({"a", "b"}, {"a", "c"}),
    "array": (np.arange(5000), np.arange(5000)[::-1]),
    "objects": (np.array(["a", "bb"], dtype=object), np.array(["a", "c"], dtype=object)),
    "structured": (np.zeros(2, "i4,f4"), np.ones(2, "i4,f4")),
    "tensors": ([torch.zeros(2)], [torch.ones(2)]),
    "attributes": ([SimpleNamespace(a=1)], [SimpleNamespace(a=2)]),
    "files": ([("a/1.png", 0), ("a/2.png", 1)], [("a/2.png", 0), ("a/1.png", 1)]),
    "type": ([1], [1.0]),
    "table": (pandas.DataFrame({"a": range(90)}), pandas.DataFrame({"a": range(90, 0, -1)})),
    "column": (pandas.Series([1, 2]), pandas.Series([2, 1])),
    "arrow": (pyarrow.table({"a": [1, 2]}), pyarrow.table({"a": [2, 1]})),
}


@pytest.mark.parametrize("name", VALUES)
def test_other_values_have_other_digests(name) -> None:
    one, other = VALUES[name]
    assert digest_elements(one) != digest_elements(other)
    assert digest_elements(one) == digest_elements(one)


def test_recursion_ends() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert len(digest_elements(value)) == 8


def test_few_pages_of_a_mapped_file_are_read(tmp_path, monkeypatch) -> None:
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", shape=(4000, 3), dtype=np.int64)
    mapped[:] = np.arange(12000).reshape(4000, 3)
    before = digest_elements(mapped)
    assert digest_elements(mapped[:, ::-1]) != before
    mapped[1:-1] = 0  # none of the first and last rows, of which there are few
    assert digest_elements(mapped) != before


class Careless(list[int]):
    """Counts what is called."""

    calls = 0

    def __getitem__(self, index):
        Careless.calls += 1
        return super().__getitem__(index)

    def __len__(self) -> int:
        Careless.calls += 1
        return super().__len__()

    def __iter__(self):
        Careless.calls += 1
        return super().__iter__()


def test_no_method_of_a_subclass_is_called() -> None:
    assert digest_elements(Careless([1, 2])) != digest_elements(Careless([1, 3]))
    assert Careless.calls == 0
