from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from composer.loss import binary_cross_entropy_with_logits, dice_loss, loss_registry, soft_cross_entropy
from composer.loss.utils import as_probabilities
from composer.warnings import NoEffectWarning

SHAPES = [(6, 4), (3, 4, 5), (2, 4, 3, 5)]


class NoReads(TorchDispatchMode):
    """Fails on the operators that read values back from the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        banned = ("_local_scalar_dense", "aten.item", "aten.nonzero", "aten.equal", "unique", "masked_select")
        assert not any(part in str(func) for part in banned), str(func)
        return func(*args, **(kwargs or {}))


def data(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits, and indices of which about a fifth are ignored (never all)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator, dtype=dtype)
    places = (shape[0], *shape[2:])
    indices = torch.randint(shape[1], places, generator=generator)
    ignored = torch.rand(places, generator=generator) < 0.2
    ignored.view(-1)[0] = False
    return logits, indices.masked_fill(ignored, -100)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_hot_equals_indices(shape: tuple[int, ...], reduction: str, weighted: bool) -> None:
    logits, indices = data(shape)
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=logits.dtype) if weighted else None
    expected = F.cross_entropy(logits, indices, weight, reduction=reduction)
    one_hot = as_probabilities(indices, like=logits)
    torch.testing.assert_close(soft_cross_entropy(logits, indices, weight, reduction=reduction), expected)
    torch.testing.assert_close(soft_cross_entropy(logits, one_hot, weight, reduction=reduction), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_soft_targets_against_the_formula(shape: tuple[int, ...]) -> None:
    logits, _ = data(shape)
    target = torch.softmax(torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype), 1)
    places = logits.numel() // shape[1]
    expected = -(target * (logits - logits.logsumexp(1, keepdim=True))).sum() / places
    torch.testing.assert_close(soft_cross_entropy(logits, target), expected)
    torch.testing.assert_close(F.cross_entropy(logits, target), expected)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from(SHAPES), scale=st.floats(0.01, 50.0))
def test_mean_is_independent_of_ignored_places_and_of_scale(seed: int, shape: tuple[int, ...], scale: float) -> None:
    logits, indices = data(shape, seed)
    target = as_probabilities(indices, like=logits)
    kept = indices.reshape(-1) >= 0
    flat_logits = logits.movedim(1, -1).reshape(-1, shape[1])[kept]
    flat_target = target.movedim(1, -1).reshape(-1, shape[1])[kept]
    mean = soft_cross_entropy(logits, target)
    torch.testing.assert_close(mean, soft_cross_entropy(flat_logits, flat_target))
    torch.testing.assert_close(mean, soft_cross_entropy(logits, scale * target))


def test_uniform_logits_cost_log_c() -> None:
    target = torch.softmax(torch.arange(12.0).view(3, 4), 1)
    assert soft_cross_entropy(torch.zeros(3, 4), target).item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients(shape: tuple[int, ...], weighted: bool) -> None:
    logits, indices = data(shape)
    weight = torch.linspace(0.5, 2.0, shape[1], dtype=logits.dtype) if weighted else None
    logits.requires_grad_()
    soft = torch.softmax(torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=logits.dtype), 1)
    soft[0] = 0  # an ignored sample
    for target in (indices, as_probabilities(indices, like=logits), soft):
        assert torch.autograd.gradcheck(lambda x, t=target: soft_cross_entropy(x, t, weight), (logits,))
    soft.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, t: soft_cross_entropy(x, t, weight), (logits, soft))


def test_gradient_of_one_hot_equals_that_of_indices() -> None:
    logits, indices = data((2, 4, 3, 5))
    logits.requires_grad_()
    (by_index,) = torch.autograd.grad(soft_cross_entropy(logits, indices), logits)
    (by_one_hot,) = torch.autograd.grad(soft_cross_entropy(logits, as_probabilities(indices, like=logits)), logits)
    torch.testing.assert_close(by_one_hot, by_index)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_nothing_to_learn_from_is_zero_with_zero_gradients(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    loss = soft_cross_entropy(logits, torch.zeros(2, 3, dtype=dtype))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None and torch.equal(logits.grad, torch.zeros_like(logits))


def test_ignore_index_of_the_users_own() -> None:
    logits, _ = data((4, 3))
    indices = torch.tensor([0, 2, 0, 1])
    expected = F.cross_entropy(logits[[1, 3]], indices[[1, 3]])
    torch.testing.assert_close(soft_cross_entropy(logits, indices, ignore_index=0), expected)
    with pytest.warns(NoEffectWarning, match="ignore_index=0"):
        soft_cross_entropy(logits, as_probabilities(indices, like=logits), ignore_index=0)


def test_integer_one_hot_targets() -> None:
    logits, indices = data((5, 4))
    one_hot = as_probabilities(indices, like=logits)
    for target in (one_hot.long(), one_hot.bool()):
        torch.testing.assert_close(soft_cross_entropy(logits, target), F.cross_entropy(logits, indices))


def test_a_single_sample() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    expected = F.cross_entropy(logits, torch.tensor(1))
    torch.testing.assert_close(soft_cross_entropy(logits, torch.tensor(1)), expected)
    torch.testing.assert_close(soft_cross_entropy(logits, torch.tensor([0.0, 1.0, 0.0])), expected)
    weight = torch.tensor([1.0, 5.0, 2.0])
    torch.testing.assert_close(soft_cross_entropy(logits, torch.tensor([0.0, 1.0, 0.0]), weight), expected)


def test_autocast_gives_a_float32_loss() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    target = torch.softmax(x.flip(0), 1)
    with torch.autocast("cpu", torch.bfloat16):
        logits = x @ torch.eye(4)
        loss = soft_cross_entropy(logits, target.to(logits.dtype))
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    torch.testing.assert_close(loss, soft_cross_entropy(x, target), rtol=0.02, atol=0)


@pytest.mark.parametrize("target", [torch.tensor([0, -100]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])])
def test_nothing_is_read_back(target: Tensor) -> None:
    with NoReads():
        soft_cross_entropy(torch.zeros(2, 2), target)
        soft_cross_entropy(torch.zeros(2, 2), target, torch.ones(2))
        binary_cross_entropy_with_logits(torch.zeros(2, 2), target)


def test_compiles_without_a_break() -> None:
    logits, indices = data((4, 3), dtype=torch.float32)
    target = as_probabilities(indices, like=logits)
    compiled = torch.compile(soft_cross_entropy, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), soft_cross_entropy(logits, target))


def test_wrong_arguments_are_named() -> None:
    logits = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"target .*\(2, 4\).*\(2, 3\)"):
        soft_cross_entropy(logits, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"reduction .*'maen'.*'mean'"):
        soft_cross_entropy(logits, torch.zeros(2, 3), reduction="maen")
    with pytest.raises(ValueError, match=r"reduction .*'smu'.*'sum'"):
        binary_cross_entropy_with_logits(logits, torch.zeros(2, 3), reduction="smu")
    with pytest.raises(ValueError, match="targets"):
        binary_cross_entropy_with_logits(logits, torch.zeros(2, 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_binary_cross_entropy_sums_classes_and_averages_samples(shape: tuple[int, ...]) -> None:
    logits, indices = data(shape)
    y = as_probabilities(indices, like=logits)
    p = torch.sigmoid(logits)
    elements = -(y * p.log() + (1 - y) * (1 - p).log())
    for target in (indices, y):
        torch.testing.assert_close(binary_cross_entropy_with_logits(logits, target), elements.sum() / shape[0])
        for reduction, value in (("sum", elements.sum()), ("mean", elements.mean()), ("none", elements)):
            made = binary_cross_entropy_with_logits(logits, target, reduction=reduction, scale_by_batch_size=False)
            torch.testing.assert_close(made, value)
            scaled = binary_cross_entropy_with_logits(logits, target, reduction=reduction)
            torch.testing.assert_close(scaled, value / shape[0])


def test_binary_cross_entropy_weights() -> None:
    logits, indices = data((5, 3))
    y = as_probabilities(indices, like=logits)
    w = torch.tensor([1.0, 2.0, 3.0], dtype=logits.dtype)
    pos = torch.tensor([4.0, 1.0, 0.5], dtype=logits.dtype)
    elements = -w * (pos * y * F.logsigmoid(logits) + (1 - y) * F.logsigmoid(-logits))
    made = binary_cross_entropy_with_logits(logits, indices, weight=w, pos_weight=pos)
    torch.testing.assert_close(made, elements.sum() / 5)


def test_binary_cross_entropy_gradient() -> None:
    logits, indices = data((4, 3))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: binary_cross_entropy_with_logits(x, indices), (logits,))


def test_registry() -> None:
    assert loss_registry == {
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
        "dice_loss": dice_loss,
        "soft_cross_entropy": soft_cross_entropy,
    }
