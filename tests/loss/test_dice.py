from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from composer.loss import DiceLoss, dice_loss
from tests.metrics.laws import NoReads

E = 1e-5
SHAPES = [(4, 3), (4, 3, 5), (4, 3, 2, 5)]


def data(shape: tuple[int, ...] = (4, 3, 5), classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Logits and class indices below ``classes``."""
    return torch.randn(shape), torch.randint(classes or shape[1], (shape[0], *shape[2:]))


def one_hot(target: Tensor, classes: int = 3) -> Tensor:
    return F.one_hot(target, classes).movedim(-1, 1).float()


def in_loops(p: Tensor, y: Tensor, power: int = 1, jaccard: bool = False) -> Tensor:
    """The formula for one image and one class at a time, (B, C)."""
    loss = torch.zeros(p.shape[:2])
    for n in range(p.shape[0]):
        for c in range(p.shape[1]):
            overlap = (p[n, c] * y[n, c]).sum()
            size = (p[n, c] ** power).sum() + (y[n, c] ** power).sum()
            loss[n, c] = 1 - (2 * overlap + E) / ((2 * (size - overlap) if jaccard else size) + E)
    return loss


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("jaccard", [False, True])
@pytest.mark.parametrize("squared", [False, True])
def test_formula(shape, jaccard: bool, squared: bool) -> None:
    logits, target = data(shape)
    p = logits.softmax(1)
    expected = in_loops(p, one_hot(target), 2 if squared else 1, jaccard)
    options = {"jaccard": jaccard, "squared_pred": squared}
    torch.testing.assert_close(dice_loss(p, target, reduction="none", **options), expected)
    torch.testing.assert_close(dice_loss(logits, target, softmax=True, **options), expected.mean())
    torch.testing.assert_close(dice_loss(logits, target, softmax=True, reduction="sum", **options), expected.sum())


def test_sigmoid() -> None:
    logits, target = data()
    torch.testing.assert_close(
        dice_loss(logits, target, sigmoid=True, reduction="none"), in_loops(logits.sigmoid(), one_hot(target))
    )


def test_batch_takes_all_images_for_one() -> None:
    logits, target = data()
    p, y = logits.softmax(1), one_hot(target)
    whole = p.movedim(1, 0).flatten(1)[None], y.movedim(1, 0).flatten(1)[None]
    expected = in_loops(*whole)[0]
    torch.testing.assert_close(dice_loss(p, target, batch=True, reduction="none"), expected)
    torch.testing.assert_close(dice_loss(p, target, batch=True), expected.mean())


@pytest.mark.parametrize("batch", [False, True])
def test_absent_classes_do_not_count_if_so_asked(batch: bool) -> None:
    logits, target = data(classes=2)
    loss = dice_loss(logits, target, softmax=True, batch=batch, reduction="none")
    present = {"softmax": True, "batch": batch, "ignore_absent_classes": True}
    torch.testing.assert_close(dice_loss(logits, target, **present), loss[..., :2].mean())
    torch.testing.assert_close(dice_loss(logits, target, reduction="sum", **present), loss[..., :2].sum())
    kept = dice_loss(logits, target, reduction="none", **present)
    assert torch.equal(kept[..., :2], loss[..., :2])
    assert (kept[..., 2] == 0).all()


def test_absent_classes_of_an_ignored_image_leave_a_loss_of_zero() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    loss = dice_loss(logits, torch.full((2, 4), -100), softmax=True, ignore_absent_classes=True)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None and (logits.grad == 0).all()


def test_places_with_a_negative_index_do_not_count() -> None:
    logits, target = data((2, 3, 6))
    target[:, 4:] = -100
    value = dice_loss(logits, target, softmax=True)
    torch.testing.assert_close(value, dice_loss(logits[..., :4], target[:, :4], softmax=True))
    logits[..., 4:] += 5
    assert torch.equal(dice_loss(logits, target, softmax=True), value)


@given(seed=st.integers(0, 2**31), squared=st.booleans(), jaccard=st.booleans())
def test_perfect_is_zero_disjoint_is_one_and_all_lies_between(seed: int, squared: bool, jaccard: bool) -> None:
    torch.manual_seed(seed)
    _, target = data()
    options = {"squared_pred": squared, "jaccard": jaccard, "reduction": "none"}
    y = one_hot(target)
    assert dice_loss(y, target, **options).abs().max() < 1e-6
    away = dice_loss(1 - y, target, **options)
    present = y.sum(-1) > 0
    assert (away[present] > 0.999).all()
    between = dice_loss(torch.rand(y.shape), torch.softmax(torch.randn(y.shape), 1), **options)
    assert ((between >= 0) & (between <= 1)).all()


def test_one_hot_targets_are_their_indices_and_soft_ones_lie_between() -> None:
    logits, target = data()
    y = one_hot(target)
    assert torch.equal(dice_loss(logits, y, softmax=True), dice_loss(logits, target, softmax=True))
    assert torch.equal(dice_loss(logits, y.long(), softmax=True), dice_loss(logits, y, softmax=True))
    soft = 0.9 * y + 0.1 / 3
    torch.testing.assert_close(
        dice_loss(logits, soft, softmax=True, reduction="none"), in_loops(logits.softmax(1), soft)
    )


def test_gradient() -> None:
    logits, target = data((2, 3, 4))
    for options in ({"softmax": True}, {"sigmoid": True, "squared_pred": True}, {"softmax": True, "jaccard": True}):
        x = logits.double().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, options=options: dice_loss(x, target, **options), (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_many_places(dtype: torch.dtype) -> None:
    logits = torch.randn(1, 2, 300, 300).to(dtype)
    target = torch.zeros(1, 300, 300, dtype=torch.long)
    for squared in (False, True):
        value = dice_loss(logits, target, softmax=True, squared_pred=squared)
        torch.testing.assert_close(value, dice_loss(logits.float(), target, softmax=True, squared_pred=squared))


def test_the_module_is_the_function() -> None:
    logits, target = data(classes=2)
    options = {
        "sigmoid": True,
        "softmax": False,
        "squared_pred": True,
        "jaccard": True,
        "batch": True,
        "ignore_absent_classes": True,
        "reduction": "sum",
    }
    loss = DiceLoss(*options.values())
    assert torch.equal(loss(logits, target), dice_loss(logits, target, **options))
    assert "jaccard=True" in repr(loss) and "reduction='sum'" in repr(loss)


def test_nothing_is_read_from_the_device() -> None:
    logits, target = data()
    with NoReads():
        dice_loss(logits, target, softmax=True, ignore_absent_classes=True, batch=True, jaccard=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigmoid": True, "softmax": True}, "sigmoid=True and softmax=True"),
        ({"reduction": "meen"}, "reduction must be one of .* Did you mean 'mean'"),
    ],
)
def test_refused_when_made(arguments, message: str) -> None:
    for make in (DiceLoss, lambda **options: dice_loss(*data(), **options)):
        with pytest.raises(ValueError, match=message):
            make(**arguments)


def test_refused_when_called() -> None:
    with pytest.raises(ValueError, match="softmax=True requires at least two classes"):
        DiceLoss(softmax=True)(torch.zeros(2, 1, 4), torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(2, 3, 5\).*\(2, 4\)"):
        DiceLoss()(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"input must have shape \(B, C, ...\), but got \(3,\)"):
        DiceLoss()(torch.zeros(3), torch.tensor(1))


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.bool])
@pytest.mark.parametrize("options", [{}, {"squared_pred": True}, {"jaccard": True}, {"batch": True}])
def test_predictions_of_whole_numbers(dtype: torch.dtype, options: dict[str, bool]) -> None:
    target = torch.tensor([[0, 1, 2, 2], [1, 1, 0, -1]])
    right = torch.nn.functional.one_hot(target.clamp_min(0), 3).movedim(-1, 1)
    assert DiceLoss(**options)(right.to(dtype), target) == 0
    assert torch.equal(
        DiceLoss(**options)(right.flip(0).to(dtype), target), dice_loss(right.flip(0).float(), target, **options)
    )


def test_its_arguments_are_attributes() -> None:
    loss = DiceLoss(softmax=True, reduction="none")
    assert (loss.sigmoid, loss.softmax, loss.batch, loss.reduction) == (False, True, False, "none")
    loss.reduction = "mean"
    assert loss(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long)).ndim == 0
