from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from composer.loss.utils import (
    _one_hot,
    as_probabilities,
    check_for_index_targets,
    ensure_targets_one_hot,
    infer_target_type,
)
from composer.warnings import ComposerWarning


class NoReads(TorchDispatchMode):
    """Fails on the operators that read values back from the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(func)
        banned = ("_local_scalar_dense", "aten.item", "aten.nonzero", "aten.equal", "unique", "bincount", "masked_sel")
        assert not any(part in name for part in banned), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 6), (3,)])
def test_infer_target_type(shape: tuple[int, ...]) -> None:
    input = torch.zeros(shape)
    indices = input.sum(dim=min(1, input.ndim - 1)).long()
    assert infer_target_type(input, input) == "one_hot"
    assert infer_target_type(input, indices) == "indices"


@pytest.mark.parametrize("shape", [(), (4,), (5, 2), (5, 3, 1), (3, 5)])
def test_infer_target_type_names_both_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"targets .*\(5,\).*\(5, 3\)"):
        infer_target_type(torch.zeros(5, 3), torch.zeros(shape))


def test_a_last_dim_that_equals_the_classes_is_not_mistaken() -> None:
    # (B, W) indices for (B, C, W) logits, where W == C.
    assert infer_target_type(torch.zeros(4, 3, 3), torch.zeros(4, 3, dtype=torch.long)) == "indices"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_can_be_indices(dtype: torch.dtype) -> None:
    assert check_for_index_targets(torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool])
def test_other_dtypes_cannot(dtype: torch.dtype) -> None:
    assert not check_for_index_targets(torch.zeros(2, dtype=dtype))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(0, 4),
    classes=st.integers(1, 5),
    spatial=st.lists(st.integers(1, 3), max_size=2),
)
def test_one_hot_of_indices(seed: int, batch: int, classes: int, spatial: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(classes, (batch, *spatial), generator=generator)
    like = torch.zeros(batch, classes, *spatial)
    expected = torch.movedim(F.one_hot(indices, classes), -1, 1).float() if batch else like
    assert torch.equal(as_probabilities(indices, like=like), expected)
    assert torch.equal(ensure_targets_one_hot(like, indices), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("index_dtype", [torch.uint8, torch.int32, torch.int64])
def test_dtype_is_that_of_the_logits(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    like = torch.zeros(2, 3, dtype=dtype)
    made = as_probabilities(torch.tensor([1, 0], dtype=index_dtype), like=like)
    assert made.dtype == dtype and made.tolist() == [[0, 1, 0], [1, 0, 0]]
    given_ = torch.tensor([[0.25, 0.25, 0.5], [1, 0, 0]], dtype=torch.float64)
    passed = as_probabilities(given_, like=like)
    assert passed.dtype == dtype and torch.equal(passed.double(), given_)


def test_probabilities_of_the_right_dtype_are_not_copied() -> None:
    target = torch.full((2, 4), 0.25)
    assert as_probabilities(target, like=torch.zeros(2, 4)) is target


def test_negative_indices_become_zeros() -> None:
    made = as_probabilities(torch.tensor([[-100, 0], [1, -1]]), like=torch.zeros(2, 2, 2))
    expected = torch.zeros(2, 2, 2)
    expected[0, 0, 1] = expected[1, 1, 0] = 1
    assert torch.equal(made, expected)


def test_the_target_is_not_changed() -> None:
    target = torch.tensor([-100, 2])
    as_probabilities(target, like=torch.zeros(2, 3))
    assert target.tolist() == [-100, 2]


def test_as_probabilities_reads_nothing_back() -> None:
    with NoReads():
        as_probabilities(torch.tensor([-100, 2]), like=torch.zeros(2, 3))
        as_probabilities(torch.ones(2, 3), like=torch.zeros(2, 3, dtype=torch.float16))


def test_the_guard_sees_a_read() -> None:
    with pytest.raises(AssertionError), NoReads():
        torch.ones(1).item()


def test_as_probabilities_compiles_without_a_break() -> None:
    compiled = torch.compile(as_probabilities, backend="eager", fullgraph=True)
    target, like = torch.tensor([-100, 2]), torch.zeros(2, 3)
    assert torch.equal(compiled(target, like=like), as_probabilities(target, like=like))


@pytest.mark.parametrize("convert", [lambda x, t: as_probabilities(t, like=x), ensure_targets_one_hot])
def test_indices_must_be_integers(convert) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"integer dtype.*float32"):
        convert(torch.zeros(2, 3), torch.zeros(2))


def test_like_must_be_floating() -> None:
    with pytest.raises(ValueError, match=r"like .*int64"):
        as_probabilities(torch.zeros(2, dtype=torch.long), like=torch.zeros(2, 3, dtype=torch.long))


def test_an_index_that_is_too_large_is_not_hidden() -> None:
    too_large = torch.tensor([0, 3])
    with pytest.raises(RuntimeError, match="out of bounds"):
        as_probabilities(too_large, like=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="num_classes=3, but got 3"):
        ensure_targets_one_hot(torch.zeros(2, 3), too_large)


def test_ensure_targets_one_hot_warns_of_negative_indices() -> None:
    with pytest.warns(
        ComposerWarning, match="^Negative label indices are being ignored in conversion to one-hot labels.*-100"
    ):
        made = ensure_targets_one_hot(torch.zeros(2, 3), torch.tensor([-100, 1]))
    assert made.tolist() == [[0, 0, 0], [0, 1, 0]]


def test_ensure_targets_one_hot_takes_another_number_of_classes() -> None:
    made = ensure_targets_one_hot(torch.zeros(2, 3, 2), torch.tensor([[4, 0], [1, 2]]), num_classes=5)
    assert made.shape == (2, 5, 2) and torch.equal(made.argmax(1), torch.tensor([[4, 0], [1, 2]]))


def test_ensure_targets_one_hot_returns_float32() -> None:
    dense: Tensor = torch.ones(2, 3, dtype=torch.bfloat16)
    assert ensure_targets_one_hot(torch.zeros(2, 3), dense).dtype == torch.float32
    assert ensure_targets_one_hot(dense, torch.tensor([0, 1])).dtype == torch.float32


def test_one_hot_of_indices_in_their_dtype() -> None:
    """Not public, and imported by code that was written for the predecessor."""
    indices = torch.tensor([[2, -1], [0, 1]])
    expected = torch.tensor([[[0, 0], [0, 0], [1, 0]], [[1, 0], [0, 1], [0, 0]]])
    assert torch.equal(_one_hot(indices, dim=1), expected)
    assert _one_hot(indices.clamp_min(0), num_classes=5).shape == (2, 2, 5)
    assert torch.equal(_one_hot(torch.tensor([1, 0])), torch.nn.functional.one_hot(torch.tensor([1, 0])))
    with pytest.raises(ValueError, match="integer dtype"):
        _one_hot(indices.float())
    with pytest.raises(ValueError, match="num_classes must be at least 3"):
        _one_hot(indices, num_classes=2)
