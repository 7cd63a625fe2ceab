from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.algorithms import LabelSmoothing, smooth_labels
from composer.loss import soft_cross_entropy
from tests import loop
from tests.algorithms.cases import Case, by_hand, make_model


def _step(model, batch, elapsed):
    x, y = batch
    outputs = model((x, y))
    return soft_cross_entropy(outputs, smooth_labels(outputs, y, 0.3))


CASE = Case(
    make=lambda: LabelSmoothing(0.3),
    by_hand=by_hand(_step),
    neutral=None,
    why_not_neutral="its targets are probabilities for 0 too, whose loss is that of the indices but for rounding",
    with_keys=lambda input_key, target_key: LabelSmoothing(0.3, target_key=target_key),
)


def test_closed_form_for_indices_and_probabilities():
    logits = torch.zeros(2, 4)
    expected = torch.tensor([[0.1, 0.1, 0.7, 0.1], [0.7, 0.1, 0.1, 0.1]])
    torch.testing.assert_close(smooth_labels(logits, torch.tensor([2, 0]), 0.4), expected)
    one_hot = torch.nn.functional.one_hot(torch.tensor([2, 0]), 4)
    torch.testing.assert_close(smooth_labels(logits, one_hot.float(), 0.4), expected)
    torch.testing.assert_close(smooth_labels(logits, one_hot, 0.4), expected)
    soft = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(smooth_labels(logits[:1], soft, 0.2), torch.tensor([[0.45, 0.45, 0.05, 0.05]]))


@given(
    smoothing=st.floats(0, 1),
    classes=st.integers(2, 7),
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_mass_sums_to_one_and_the_order_of_classes_stays(smoothing, classes, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, shape, generator=generator)
    smoothed = smooth_labels(torch.zeros(shape[0], classes, *shape[1:]), target, smoothing)
    torch.testing.assert_close(smoothed.sum(1), torch.ones(shape))
    others = smoothed.gather(1, ((target + 1) % classes).unsqueeze(1))
    torch.testing.assert_close(others, torch.full_like(others, smoothing / classes))
    assert torch.all(smoothed.gather(1, target.unsqueeze(1)) >= others - 1e-6)


@pytest.mark.parametrize("smoothing", [0, 0.0, 0.5, 1])
def test_targets_become_probabilities_until_after_the_loss(smoothing):
    target, outputs = torch.tensor([2, 0]), torch.zeros(2, 4)
    engine = loop.start(make_model(), [method := LabelSmoothing(smoothing)])
    engine.state.batch, engine.state.outputs = (torch.zeros(2), target), outputs
    engine.run_event("before_loss")
    assert method.original_labels is target
    assert torch.equal(engine.state.batch[1], smooth_labels(outputs, target, smoothing))
    assert engine.state.batch[1].shape == outputs.shape
    engine.run_event("after_loss")
    assert engine.state.batch[1] is target


def test_equals_torch_own_label_smoothing():
    logits, target = torch.randn(5, 6, 3, 3), torch.randint(6, (5, 3, 3))
    ours = soft_cross_entropy(logits, smooth_labels(logits, target, 0.1))
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1))


def test_ignored_places_stay_empty_and_do_not_count():
    logits = torch.randn(3, 4, 2, 2)
    target = torch.randint(4, (3, 2, 2))
    target[0, 0, 0] = target[2, 1, 1] = -100
    smoothed = smooth_labels(logits, target, 0.1)
    assert torch.equal(smoothed[0, :, 0, 0], torch.zeros(4))
    ours = soft_cross_entropy(logits, smoothed)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1))


def test_half_precision_logits_get_targets_of_float32():
    smoothed = smooth_labels(torch.zeros(1, 1000, dtype=torch.bfloat16), torch.tensor([3]), 0.1)
    assert smoothed.dtype == torch.float32
    assert smoothed[0, 3].item() == pytest.approx(0.9001, abs=1e-6)
    assert smooth_labels(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([3])).dtype == torch.float64


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_wrong_smoothing(smoothing):
    with pytest.raises(ValueError, match="smoothing"):
        LabelSmoothing(smoothing)
    with pytest.raises(ValueError, match="smoothing"):
        smooth_labels(torch.zeros(1, 2), torch.tensor([0]), smoothing)


@pytest.mark.parametrize(
    "outputs",
    [
        lambda logits: {"loss": torch.tensor(0.0), "logits": logits},
        lambda logits: (torch.tensor(0.0), logits),
        lambda logits: type("Output", (), {"logits": logits})(),
    ],
)
def test_finds_the_logits_in_outputs_of_other_forms(outputs):
    engine = loop.start(make_model(), [LabelSmoothing(0.4)])
    state = engine.state
    state.batch, state.outputs = (torch.zeros(1, 1), torch.tensor([2])), outputs(torch.zeros(1, 4))
    engine.run_event("before_loss")
    torch.testing.assert_close(state.batch[1], torch.tensor([[0.1, 0.1, 0.7, 0.1]]))


def test_outputs_without_logits_and_odd_targets_are_named():
    engine = loop.start(make_model(), [LabelSmoothing(0.4)])
    engine.state.batch, engine.state.outputs = (torch.zeros(1, 1), torch.tensor([2])), {"loss": torch.tensor(0.0)}
    with pytest.raises(TypeError, match="contain no logits"):
        engine.run_event("before_loss")
    engine.state.batch = (torch.zeros(1, 1), "label")
    with pytest.raises(TypeError, match="target_key"):
        engine.run_event("before_loss")


def test_mapping_of_targets_follows_the_outputs_by_name():
    engine = loop.start(make_model(), [LabelSmoothing(1.0)])
    state = engine.state
    state.batch = (None, {"a": torch.tensor([0]), "b": torch.tensor([1])})
    state.outputs = {"b": torch.zeros(1, 4), "a": torch.zeros(1, 2)}
    engine.run_event("before_loss")
    assert torch.equal(state.batch[1]["a"], torch.full((1, 2), 0.5))
    assert torch.equal(state.batch[1]["b"], torch.full((1, 4), 0.25))
