from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, jaccard_score
from torch import Tensor

from composer.metrics import Dice, MIoU
from tests.metrics.laws import every_law, value_of

CLASSES = 3


def images(batch: int = 4, ignored: float = 0.0, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    logits, target = torch.randn(batch, classes, 4, 5), torch.randint(classes, (batch, 4, 5))
    return logits, target.masked_fill(torch.rand(target.shape) < ignored, -1)


@every_law
@pytest.mark.parametrize("make", [lambda: MIoU(CLASSES), lambda: Dice(CLASSES - 1)], ids=["MIoU", "Dice"])
def test_laws(law, make) -> None:
    law(make, [images(), images(2, ignored=0.3)])


@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 8), max_size=3), classes=st.integers(2, 5))
def test_miou_equals_the_mean_jaccard_index_however_images_are_batched(
    seed: int, cuts: list[int], classes: int
) -> None:
    torch.manual_seed(seed)
    logits, target = images(8, ignored=0.3, classes=classes)
    edges = sorted({0, *cuts, 8})
    value = value_of(lambda: MIoU(classes), [(logits[a:b], target[a:b]) for a, b in itertools.pairwise(edges)])
    kept = target >= 0
    expected = jaccard_score(target[kept], logits.argmax(1)[kept], average="macro")
    assert value.item() == pytest.approx(100 * expected, rel=1e-5)


def test_miou_leaves_out_classes_that_are_nowhere() -> None:
    predicted, target = torch.tensor([[0, 1, 1, 2]]), torch.tensor([[0, 1, 2, 2]])
    for classes in (3, 9):
        assert value_of(lambda classes=classes: MIoU(classes), [(predicted, target)]).item() == pytest.approx(200 / 3)


def test_miou_takes_an_ignore_index_beyond_the_classes() -> None:
    logits, target = images(ignored=0.4)
    expected = value_of(lambda: MIoU(CLASSES), [(logits, target)])
    marked = target.masked_fill(target < 0, 255)
    assert torch.equal(value_of(lambda: MIoU(CLASSES, ignore_index=255), [(logits, marked)]), expected)
    assert torch.equal(value_of(lambda: MIoU(CLASSES), [(logits.softmax(1).argmax(1), target)]), expected)


def test_miou_of_nothing_is_nan() -> None:
    assert value_of(lambda: MIoU(2), [(torch.zeros(1, 2, 2), torch.full((1, 2), -1))]).isnan()


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 8), max_size=3), classes=st.integers(2, 5))
def test_dice_is_the_mean_f1_of_images_and_classes(seed: int, cuts: list[int], classes: int) -> None:
    torch.manual_seed(seed)
    logits, target = images(8, ignored=0.3, classes=classes)
    edges = sorted({0, *cuts, 8})
    value = value_of(lambda: Dice(classes - 1), [(logits[a:b], target[a:b]) for a, b in itertools.pairwise(edges)])
    scores = []
    for image, mask in zip(logits.argmax(1), target, strict=True):
        kept = mask >= 0
        found = f1_score(mask[kept], image[kept], labels=range(1, classes), average=None, zero_division=1)
        scores.append(torch.as_tensor(found).mean())
    assert value.item() == pytest.approx(100 * torch.stack(scores).mean().item(), rel=1e-5)


def test_dice_of_classes_that_are_absent() -> None:
    background = torch.zeros(1, 4, dtype=torch.long)
    one = torch.tensor([[0, 0, 0, 1]])
    assert value_of(lambda: Dice(2), [(background, background)]) == 100
    assert value_of(lambda: Dice(2), [(one, background)]) == 50
    assert value_of(lambda: Dice(2), [(background, one)]) == 50


def test_dice_with_one_image_is_twice_the_overlap_over_the_sizes() -> None:
    predicted, target = torch.tensor([[1, 1, 1, 0, 0]]), torch.tensor([[1, 0, 1, 1, 0]])
    assert value_of(lambda: Dice(1), [(predicted, target)]).item() == pytest.approx(100 * 2 * 2 / 6)


def test_half_precision_and_volumes() -> None:
    logits, target = torch.randn(2, 3, 2, 3, 4).bfloat16(), torch.randint(3, (2, 2, 3, 4))
    for make in (lambda: MIoU(3), lambda: Dice(2)):
        flat = F.one_hot(logits.argmax(1), 3).movedim(-1, 1).float().flatten(2), target.flatten(1)
        assert torch.equal(value_of(make, [(logits, target)]), value_of(make, [flat]))


@pytest.mark.parametrize("make", [lambda: MIoU(3), lambda: Dice(2)], ids=["MIoU", "Dice"])
class TestBoth:
    def test_an_index_beyond_the_classes_is_an_error_and_counts_nowhere(self, make) -> None:
        logits, target = images()
        target[0, 0, 0] = 3
        with pytest.raises(RuntimeError, match="class indices must be below 3"):
            make().update(logits, target)
        with pytest.raises(RuntimeError, match="class indices must be below 3"):
            make().update(target, target.clamp_max(2))

    def test_shapes_that_do_not_fit_are_refused(self, make) -> None:
        with pytest.raises(ValueError, match=r"3 classes in dim 1.*\(2, 4, 5, 5\)"):
            make().update(torch.zeros(2, 4, 5, 5), torch.zeros(2, 5, 5, dtype=torch.long))
        with pytest.raises(ValueError, match=r"\(2, 5, 5\).*\(2, 5, 1\)"):
            make().update(torch.zeros(2, 3, 5, 5), torch.zeros(2, 5, 1, dtype=torch.long))


@pytest.mark.parametrize("metric", [MIoU, Dice])
def test_the_number_of_classes_is_checked(metric) -> None:
    with pytest.raises(ValueError, match="num_classes"):
        metric(num_classes=0)


@pytest.mark.parametrize("dtype", [torch.long, torch.int32, torch.bool, torch.float32])
def test_scores_of_any_dtype(dtype: torch.dtype) -> None:
    """One-hot predictions, as they come from labels, are whole numbers."""
    target = torch.tensor([[0, 1, 2, 2], [1, 1, 0, -1]])
    predicted = torch.tensor([[0, 1, 1, 2], [1, 2, 0, 0]])
    scores = torch.nn.functional.one_hot(predicted, 3).movedim(-1, 1).to(dtype)
    for make in (lambda: MIoU(3), lambda: Dice(2)):
        by_scores, by_classes = make(), make()
        by_scores.update(scores, target)
        by_classes.update(predicted, target)
        assert by_scores.compute() == by_classes.compute()


def test_fewer_classes_than_there_may_be() -> None:
    metric = MIoU(4)
    metric.update(torch.zeros(2, 1, 4), torch.tensor([[0, 1, 2, 3]] * 2))
    assert metric.compute() == 6.25 and metric.compute().dtype == torch.float64
