from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from composer.loss.utils import as_probabilities
from composer.metrics import CrossEntropy, MicroAccuracy
from tests import after_torch
from tests.metrics.laws import every_law, reads_nothing_back

SHAPES = [(5, 3), (4, 3, 2), (2, 3, 4, 2)]


def data(shape: tuple[int, ...], seed: int = 0, ignored: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator)
    places = (shape[0], *shape[2:])
    target = torch.randint(shape[1], places, generator=generator)
    return logits, target.masked_fill(torch.rand(places, generator=generator) < ignored, -100)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    soft=st.booleans(),
    shape=st.sampled_from([(40, 3), (40, 3, 2)]),
)
def test_cross_entropy_does_not_depend_on_how_the_samples_are_batched(
    seed: int, cuts: list[int], soft: bool, shape: tuple[int, ...]
) -> None:
    logits, target = data(shape, seed, ignored=0.3)
    expected = F.cross_entropy(logits, target)
    if soft:
        target = as_probabilities(target, like=logits)
    metric = CrossEntropy()
    edges = sorted({0, *cuts, 40})
    for start, stop in itertools.pairwise(edges):
        metric.update(logits[start:stop], target[start:stop])
    torch.testing.assert_close(metric.compute(), expected)


def test_cross_entropy_of_a_short_last_batch() -> None:
    metric = CrossEntropy()
    metric.update(torch.zeros(3, 2), torch.tensor([0, 1, 0]))  # log 2 each
    metric.update(torch.tensor([[100.0, 0.0]]), torch.tensor([0]))  # 0
    torch.testing.assert_close(metric.compute(), 0.75 * torch.tensor(2.0).log())


def test_cross_entropy_of_soft_targets() -> None:
    logits, _ = data((6, 4))
    target = torch.softmax(data((6, 4), seed=1)[0], 1)
    metric = CrossEntropy()
    metric.update(logits[:4], target[:4])
    metric.update(logits[4:], target[4:])
    torch.testing.assert_close(metric.compute(), F.cross_entropy(logits, target))


def test_cross_entropy_takes_another_ignore_index() -> None:
    logits, target = data((20, 3))
    metric = CrossEntropy(ignore_index=1)
    metric.update(logits, target)
    torch.testing.assert_close(metric.compute(), F.cross_entropy(logits, target, ignore_index=1))
    metric.update(logits, as_probabilities(target, like=logits))  # no warning: probabilities have no index to ignore


def test_cross_entropy_keeps_counting_where_float32_would_not() -> None:
    metric = CrossEntropy()
    metric.update(torch.zeros(1, 2), torch.tensor([0]))
    metric.total.fill_(2**30)
    metric.sum_loss.fill_(2**30)
    metric.update(torch.zeros(1, 2), torch.tensor([0]))
    assert metric.total.item() == 2**30 + 1
    assert metric.sum_loss.item() == pytest.approx(2**30 + 0.6931, abs=1e-3)
    assert metric.compute().dtype == torch.float32


def test_cross_entropy_of_nothing_is_nan() -> None:
    metric = CrossEntropy()
    metric.update(torch.zeros(1, 2), torch.tensor([-100]))
    assert metric.compute().isnan()


def test_cross_entropy_of_half_precision_logits_is_that_of_float32() -> None:
    logits, target = data((64, 3))
    logits = logits.bfloat16()
    metric = CrossEntropy()
    metric.update(logits, target)
    torch.testing.assert_close(metric.compute(), F.cross_entropy(logits.float(), target))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from(SHAPES), ignored=st.sampled_from([0.0, 0.3]))
def test_accuracy_equals_that_of_torchmetrics(seed: int, shape: tuple[int, ...], ignored: float) -> None:
    ours, theirs = MicroAccuracy(3), MulticlassAccuracy(3, average="micro", validate_args=False)
    for step in range(2):
        logits, target = data(shape, seed + step, ignored)
        for metric in (ours, theirs):
            metric.update(logits, target)
            metric.update(logits.argmax(1), target)
    assert torch.equal(ours.compute(), theirs.compute())
    assert ours.compute().shape == () and ours.compute().dtype == theirs.compute().dtype
    for count in ("tp", "fp", "tn", "fn"):
        assert torch.equal(getattr(ours, count), getattr(theirs, count)), count


def test_accuracy_of_probability_targets_is_that_of_their_most_likely_class() -> None:
    logits, target = data((30, 4, 2))
    soft = torch.lerp(as_probabilities(target, like=logits), torch.tensor(0.25), 0.5)
    by_index, by_soft = MicroAccuracy(4), MicroAccuracy(4)
    by_index.update(logits, target)
    by_soft.update(logits, soft)
    assert by_index.compute() == by_soft.compute()


def test_accuracy_of_nothing_is_zero_like_that_of_torchmetrics() -> None:
    metric = MicroAccuracy(3)
    metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert metric.compute() == 0


def test_accuracy_is_a_multiclass_accuracy() -> None:
    metric = MicroAccuracy(7)
    assert isinstance(metric, MulticlassAccuracy)
    assert (metric.num_classes, metric.average, metric.top_k) == (7, "micro", 1)


def test_accuracy_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match=r"\(4,\).*\(1,\)"):
        MicroAccuracy(3).update(torch.zeros(4, 3), torch.zeros(1, dtype=torch.long))


@every_law
@pytest.mark.parametrize("make", [CrossEntropy, lambda: MicroAccuracy(3)], ids=["CrossEntropy", "MicroAccuracy"])
def test_laws(law, make) -> None:  # type: ignore[no-untyped-def]
    logits, target = data((8, 3), seed=1)
    law(make, [data((5, 3)), (-10 * as_probabilities(target, like=logits), target)])


@pytest.mark.parametrize("make", [CrossEntropy, lambda: MicroAccuracy(3)], ids=["CrossEntropy", "MicroAccuracy"])
def test_probability_targets_are_not_read_back_either(make) -> None:  # type: ignore[no-untyped-def]
    logits, target = data((5, 3))
    reads_nothing_back(make, [(logits, as_probabilities(target, like=logits))])


def test_the_package_imports_torchmetrics_only_when_a_name_is_used() -> None:
    code = (
        "import sys, composer.metrics, composer.models, composer.loss\n"
        "assert set(composer.metrics.__all__) <= set(dir(composer.metrics))\n"
        "assert 'torchmetrics' not in sys.modules\n"
        "composer.metrics.CrossEntropy\n"
        "assert 'torchmetrics' in sys.modules\n"
    )
    done = after_torch.run(code, warn="ignore")
    assert done.returncode == 0, done.stderr
