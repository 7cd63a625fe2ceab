from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from composer.algorithms import LabelSmoothing, MixUp, mixup_batch, smooth_labels
from composer.core.algorithm_order import Claim
from composer.loss import soft_cross_entropy
from composer.warnings import NotIntendedUseWarning
from tests import loop
from tests.algorithms.cases import Case, by_hand, make_batches, make_model, same, weights


def _step(model, batch, elapsed):
    x, y = batch
    mixed, permuted, m = mixup_batch(x, y, alpha=1.0)
    outputs = model((mixed, y))
    return (1 - m) * soft_cross_entropy(outputs, y) + m * soft_cross_entropy(outputs, permuted)


# Mixing one-hot targets or mixing losses is the same for the cross entropy, so both have one form by hand.
CASES = [
    Case(
        make=lambda interpolate=interpolate: MixUp(alpha=1.0, interpolate_loss=interpolate),
        by_hand=by_hand(_step),
        neutral=lambda interpolate=interpolate: MixUp(alpha=0.0, interpolate_loss=interpolate),
        with_keys=lambda input_key, target_key, interpolate=interpolate: MixUp(
            1.0, interpolate, input_key=input_key, target_key=target_key
        ),
    )
    for interpolate in (False, True)
]


def test_closed_form():
    x, y = torch.tensor([[0.0], [8.0], [4.0]]), torch.tensor([0, 1, 2])
    mixed, permuted, mixing = mixup_batch(x, y, mixing=0.25, indices=torch.tensor([2, 0, 1]))
    assert mixed.tolist() == [[1.0], [6.0], [5.0]]
    assert permuted.tolist() == [2, 0, 1]
    assert mixing == 0.25
    assert x.tolist() == [[0.0], [8.0], [4.0]]


@given(alpha=st.floats(0.01, 20), seed=st.integers(0, 1000))
def test_weight_of_the_partner_is_at_most_half(alpha, seed):
    torch.manual_seed(seed)
    _, _, mixing = mixup_batch(torch.zeros(2, 1), torch.zeros(2), alpha=alpha)
    assert 0 <= mixing <= 0.5


@given(mixing=st.floats(0, 1), value=st.floats(-1e6, 1e6, width=32), seed=st.integers(0, 99))
def test_identical_inputs_stay(mixing, value, seed):
    torch.manual_seed(seed)
    x = torch.full((4, 3), value)
    mixed, _, _ = mixup_batch(x, torch.arange(4), mixing=mixing)
    assert torch.equal(mixed, x)


@given(mixing=st.floats(0, 1), seed=st.integers(0, 99))
def test_mean_of_the_batch_stays_under_a_permutation(mixing, seed):
    torch.manual_seed(seed)
    x = torch.randn(8, 5, dtype=torch.float64)
    mixed, _, _ = mixup_batch(x, torch.arange(8), mixing=mixing)
    torch.testing.assert_close(mixed.mean(0), x.mean(0))


def test_mixing_follows_the_beta_distribution():
    torch.manual_seed(0)
    x = torch.zeros(1, 1)
    samples = torch.tensor([mixup_batch(x, x, alpha=1.0)[2] for _ in range(4000)])
    # min(l, 1 - l) of a uniform l is uniform in [0, 0.5]: mean 1/4, variance 1/48.
    assert samples.mean().item() == pytest.approx(0.25, abs=0.01)
    assert samples.var().item() == pytest.approx(1 / 48, abs=0.002)
    samples = torch.tensor([mixup_batch(x, x, alpha=0.2)[2] for _ in range(4000)])
    reference = torch.distributions.Beta(0.2, 0.2).sample((200_000,))
    assert samples.mean().item() == pytest.approx(torch.minimum(reference, 1 - reference).mean().item(), abs=0.01)


def test_zero_alpha_mixes_nothing():
    x, y = torch.randn(4, 3), torch.arange(4)
    mixed, _, mixing = mixup_batch(x, y, alpha=0.0)
    assert mixing == 0
    assert torch.equal(mixed, x)


def test_channels_last_stays():
    x = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    mixed, _, _ = mixup_batch(x, torch.arange(4), mixing=0.3)
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_wrong_arguments():
    x, y = torch.zeros(2, 1), torch.zeros(2)
    with pytest.raises(ValueError, match="alpha"):
        MixUp(alpha=-1)
    with pytest.raises(ValueError, match="alpha"):
        mixup_batch(x, y, alpha=-1)
    with pytest.raises(ValueError, match="mixing"):
        mixup_batch(x, y, mixing=1.5)
    with pytest.raises(TypeError, match="uint8"):
        mixup_batch(x.to(torch.uint8), y)
    with pytest.raises(TypeError, match="input"):
        mixup_batch("x", y)


def mixed_target(outputs, target, mixing=0.25):
    """What MixUp makes of a target before the loss."""
    algorithm = MixUp(alpha=1.0)
    engine = loop.start(make_model(), [algorithm])
    state = engine.state
    state.batch = (torch.zeros(target.shape[0], 1), target)
    engine.run_event("before_forward")
    algorithm._partner_weight, algorithm._permuted = mixing, target.roll(1, 0)
    state.outputs = outputs
    engine.run_event("before_loss")
    made = state.batch[1]
    engine.run_event("after_loss")
    assert state.batch[1] is target
    return made


def test_targets_of_every_type():
    indices = torch.tensor([0, 2])
    expected = torch.tensor([[0.75, 0.0, 0.25], [0.25, 0.0, 0.75]])
    assert torch.equal(mixed_target(torch.zeros(2, 3), indices), expected)
    soft = F.one_hot(indices, 3).float()
    assert torch.equal(mixed_target(torch.zeros(2, 3), soft), expected)
    assert torch.equal(mixed_target(torch.zeros(2, 3), F.one_hot(indices, 3).bool()), expected)
    assert torch.equal(mixed_target(torch.zeros(2, 1), torch.tensor([[4.0], [8.0]])), torch.tensor([[5.0], [7.0]]))
    masks = torch.tensor([[[0, 2]], [[1, -100]]])  # (B, H, W) = (2, 1, 2)
    made = mixed_target(torch.zeros(2, 3, 1, 2), masks)
    assert torch.equal(made[0, :, 0, 0], torch.tensor([0.75, 0.25, 0.0]))
    assert torch.equal(made[0, :, 0, 1], torch.tensor([0.0, 0.0, 0.75]))  # the partner is ignored there
    assert torch.equal(made[1, :, 0, 1], torch.tensor([0.0, 0.0, 0.25]))


def test_several_inputs_have_the_same_partners():
    left = torch.arange(8.0).view(8, 1)
    (one, two), permuted, m = mixup_batch((left, left * 10), {"a": torch.arange(8)}, mixing=0.5)
    torch.testing.assert_close(two, one * 10)
    torch.testing.assert_close(one, (left + permuted["a"].view(8, 1)) / 2)
    assert m == 0.5


@pytest.mark.parametrize("interpolate", [False, True])
def test_label_smoothing_composes(interpolate):
    """In whatever order they are given, labels are mixed first and then smoothed."""
    outcomes = []
    for flip in (False, True):
        torch.manual_seed(3)
        pair = [MixUp(1.0, interpolate), LabelSmoothing(0.2)]
        warned = pytest.warns(NotIntendedUseWarning, match="are not smoothed") if interpolate else nullcontext()
        with warned:
            engine = loop.start(make_model(), pair[::-1] if flip else pair)
        outcomes.append(weights(loop.fit(engine, make_batches()).state.model))
    assert same(*outcomes)

    def step(model, batch, elapsed):
        x, y = batch
        mixed, permuted, m = mixup_batch(x, y, alpha=1.0)
        outputs = model((mixed, y))
        target = F.one_hot(y, 4) * (1 - m) + F.one_hot(permuted, 4) * m
        return soft_cross_entropy(outputs, smooth_labels(outputs, target, 0.2))

    if not interpolate:
        torch.manual_seed(3)
        expected = by_hand(step)(make_batches())
        for name, value in outcomes[0].items():
            torch.testing.assert_close(value, expected[name])


def test_losses_in_collections_are_mixed_one_by_one():
    class Parts(torch.nn.Linear):
        def loss(self, outputs, batch):
            distance = (outputs - batch[1]).square().mean()
            return {"a": distance, "b": (distance, 2 * distance)}

    algorithm = MixUp(1.0, interpolate_loss=True)
    engine = loop.start(Parts(1, 1), [algorithm])
    state = engine.state
    state.batch = (torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    engine.run_event("before_forward")
    algorithm._permuted, algorithm._partner_weight = torch.tensor([[3.0], [1.0]]), 0.25
    state.outputs = torch.tensor([[1.0], [1.0]])
    state.loss = state.model.loss(state.outputs, state.batch)  # 2; with the partners' targets also 2
    state.outputs = torch.tensor([[3.0], [3.0]])
    engine.run_event("before_backward")
    assert state.loss["a"].item() == pytest.approx(2.0)
    assert [part.item() for part in state.loss["b"]] == pytest.approx([2.0, 4.0])


def test_two_that_mix_the_loss_are_warned_about():
    assert MixUp().__traits__.claims == frozenset()
    assert MixUp(interpolate_loss=True).__traits__.claims == {Claim.LOSS_MIX}
    with pytest.warns(NotIntendedUseWarning, match="MixUp and MixUp"):
        loop.start(make_model(), [MixUp(interpolate_loss=True), MixUp(interpolate_loss=True)])
