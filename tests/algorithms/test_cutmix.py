from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from composer import functional
from composer.algorithms import CutMix, LabelSmoothing, cutmix_batch, smooth_labels
from composer.core.algorithm_order import Claim
from composer.loss import soft_cross_entropy
from composer.warnings import NotIntendedUseWarning
from tests import loop
from tests.algorithms.cases import Case, by_hand, make_batches, make_model


def _step(per_sample):
    def step(model, batch, elapsed):
        x, y = batch
        mixed, permuted, kept, _ = cutmix_batch(x, y, alpha=1.0, per_sample=per_sample)
        outputs = model((mixed, y))
        losses = [soft_cross_entropy(outputs, target, reduction="none") for target in (y, permuted)]
        return (kept * losses[0] + (1 - kept) * losses[1]).mean()

    return step


CASES = [
    Case(
        make=lambda keys=keys: CutMix(**keys),
        by_hand=by_hand(_step(keys.get("per_sample", False))),
        neutral=lambda keys=keys: CutMix(**{**keys, "alpha": 0.0}),
        with_keys=lambda input_key, target_key, keys=keys: CutMix(**keys, input_key=input_key, target_key=target_key),
    )
    for keys in ({}, {"interpolate_loss": True}, {"per_sample": True})
]


def pair(height=4, width=6, dtype=torch.float32):
    """Two images, one of zeros and one of ones."""
    return torch.stack((torch.zeros(1, height, width), torch.ones(1, height, width))).to(dtype)


SWAP = torch.tensor([1, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_closed_form(dtype):
    x = pair(dtype=dtype)
    mixed, permuted, kept, box = cutmix_batch(x, torch.tensor([5, 7]), bbox=(1, 2, 3, 6), indices=SWAP)
    expected = torch.zeros(4, 6, dtype=dtype)
    expected[1:3, 2:6] = 1
    assert torch.equal(mixed[0, 0], expected)
    assert torch.equal(mixed[1, 0], 1 - expected)
    assert permuted.tolist() == [7, 5]
    assert kept == 1 - 8 / 24
    assert box == (1, 2, 3, 6)
    assert torch.equal(x, pair(dtype=dtype))


def test_boxes_per_sample_in_closed_form():
    boxes = torch.tensor([[0, 0, 2, 3], [1, 1, 1, 4]])
    mixed, _, kept, returned = cutmix_batch(pair(), torch.tensor([0, 1]), bbox=boxes, indices=SWAP)
    assert mixed[0, 0, :2, :3].eq(1).all()
    assert mixed[0].sum() == 6
    assert mixed[1].eq(1).all()
    assert kept.tolist() == [0.75, 1.0]
    assert torch.equal(returned, boxes)


@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    alpha=st.floats(0.05, 5),
    length=st.none() | st.floats(0, 1),
    uniform=st.booleans(),
    per_sample=st.booleans(),
    seed=st.integers(0, 999),
)
def test_area_of_the_box_is_one_minus_lambda(height, width, alpha, length, uniform, per_sample, seed):
    torch.manual_seed(seed)
    mixed, _, kept, box = cutmix_batch(
        pair(height, width),
        torch.tensor([0, 1]),
        length,
        alpha,
        indices=SWAP,
        uniform_sampling=uniform,
        per_sample=per_sample,
    )
    pasted = torch.stack((mixed[0].mean(), 1 - mixed[1].mean()))
    kept = torch.as_tensor(kept).expand(2)
    torch.testing.assert_close(pasted, 1 - kept.float(), atol=1e-6, rtol=0)
    for top, left, bottom, right in torch.as_tensor(box).expand(2, 4).tolist():
        assert 0 <= top <= bottom <= height
        assert 0 <= left <= right <= width


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
def test_length_is_the_side_of_the_box(uniform, per_sample):
    """The predecessor made a small box of a large length."""
    largest = {}
    for length in (0.25, 0.75):
        areas = []
        for seed in range(200):
            torch.manual_seed(seed)
            kept = cutmix_batch(pair(40, 40), SWAP, length, uniform_sampling=uniform, per_sample=per_sample)[2]
            areas += (1 - torch.as_tensor(kept)).reshape(-1).tolist()
        largest[length] = max(areas)
    # Some boxes lie wholly inside; none is larger.
    assert largest == pytest.approx({0.25: 0.25**2, 0.75: 0.75**2})


@pytest.mark.parametrize("per_sample", [False, True])
def test_area_follows_the_beta_distribution(per_sample):
    """The side before clipping is known for boxes that touch no edge."""
    torch.manual_seed(0)
    x = torch.zeros(500 if per_sample else 1, 1, 64, 64)
    sides = []
    for _ in range(8 if per_sample else 4000):
        box = cutmix_batch(x, torch.zeros(len(x)), alpha=1.0, per_sample=per_sample, uniform_sampling=True)[3]
        sides += [
            (bottom - top) / 64
            for top, left, bottom, right in torch.as_tensor(box).view(-1, 4).tolist()
            if top > 0 and bottom < 64 and left > 0 and right < 64
        ]
    # 1 - l is uniform and the side is floor(64 * sqrt(1 - l)); a box of side b has 63 + b positions, 63 - b of which
    # touch no edge.
    side = torch.arange(64)
    weight = ((side + 1) ** 2 - side**2) * ((63 - side) / (63 + side)) ** 2
    expected = (weight * side).sum() / weight.sum() / 64
    assert torch.tensor(sides).mean().item() == pytest.approx(expected.item(), abs=0.015)


@pytest.mark.parametrize("per_sample", [False, True])
def test_uniform_sampling_covers_all_pixels_alike(per_sample):
    torch.manual_seed(0)
    x, count = pair(8, 8).repeat(500 if per_sample else 1, 1, 1, 1), torch.zeros(8, 8)
    indices = SWAP.repeat(len(x) // 2)
    for _ in range(6 if per_sample else 3000):
        mixed = cutmix_batch(x, indices, length=0.5, indices=indices, uniform_sampling=True, per_sample=per_sample)[0]
        count += mixed[::2].mean((0, 1)) / (6 if per_sample else 3000)
    # A side of 4 overlaps a side of 8 at 11 positions, 4 of which cover a given pixel.
    torch.testing.assert_close(count, torch.full((8, 8), (4 / 11) ** 2), atol=0.03, rtol=0)


@pytest.mark.parametrize("per_sample", [False, True])
def test_zero_alpha_pastes_nothing(per_sample):
    x = torch.randn(3, 2, 8, 8)
    mixed, _, kept, _ = cutmix_batch(x, torch.arange(3), alpha=0, per_sample=per_sample)
    assert torch.equal(mixed, x)
    assert torch.as_tensor(kept).eq(1).all()


@pytest.mark.parametrize("per_sample", [False, True])
def test_channels_last_stays(per_sample):
    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    mixed = cutmix_batch(x, torch.arange(4), per_sample=per_sample)[0]
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_nothing_is_read_from_the_device():
    """A meta tensor has no values to read."""
    x = torch.empty(6, 3, 8, 8, device="meta")
    for per_sample in (False, True):
        mixed, permuted, _, _ = cutmix_batch(x, torch.empty(6, device="meta"), per_sample=per_sample)
        assert (mixed.shape, permuted.shape) == (x.shape, (6,))


def test_several_inputs_get_the_same_box():
    x = torch.randn(4, 2, 8, 8)
    (one, two), permuted, _, _ = cutmix_batch((x, {"x": x[:, :1] * 10}), {"a": torch.arange(4)}, per_sample=True)
    assert torch.equal(two["x"], one[:, :1] * 10)
    assert sorted(permuted["a"].tolist()) == [0, 1, 2, 3]


def mixed_target(outputs, target, boxes, size=(2, 2), **keys):
    """What CutMix makes of a target before the loss."""
    algorithm = CutMix(**keys)
    engine = loop.start(make_model(), [algorithm])
    state = engine.state
    state.batch = (torch.zeros(2, 1, *size), target)
    engine.run_event("before_forward")
    _, algorithm._permuted, kept, algorithm._box = cutmix_batch(state.batch[0], target, bbox=boxes, indices=SWAP)
    algorithm._partner_weight = 1 - kept
    state.outputs = outputs
    engine.run_event("before_loss")
    made = state.batch[1]
    engine.run_event("after_loss")
    assert state.batch[1] is target
    return made


def test_targets_of_every_type():
    indices, box = torch.tensor([0, 2]), (0, 1, 1, 2)
    expected = torch.tensor([[0.75, 0.0, 0.25], [0.25, 0.0, 0.75]])
    assert torch.equal(mixed_target(torch.zeros(2, 3), indices, box), expected)
    assert torch.equal(mixed_target(torch.zeros(2, 3), F.one_hot(indices, 3).float(), box), expected)
    assert torch.equal(mixed_target(torch.zeros(2, 1), torch.tensor([[4.0], [8.0]]), box), torch.tensor([[5.0], [7.0]]))
    boxes = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 2]])
    expected = torch.tensor([[0.75, 0.0, 0.25], [0.5, 0.0, 0.5]])
    assert torch.equal(mixed_target(torch.zeros(2, 3), indices, boxes, per_sample=True), expected)


def test_masks_are_pasted():
    masks = torch.tensor([[[0, 0], [0, -100]], [[2, 1], [2, 2]]])
    made = mixed_target(torch.zeros(2, 3, 2, 2), masks, (0, 1, 2, 2))
    assert made.tolist() == [[[0, 1], [0, 2]], [[2, 0], [2, -100]]]
    boxes = torch.tensor([[0, 1, 2, 2], [0, 0, 1, 1]])
    assert mixed_target(torch.zeros(2, 3, 2, 2), masks, boxes)[1].tolist() == [[0, 1], [2, 2]]
    soft = torch.stack([F.one_hot(mask.clamp(min=0), 3).permute(2, 0, 1).float() for mask in masks])
    made = mixed_target(torch.zeros(2, 3, 2, 2), soft, boxes)
    assert torch.equal(made.sum(1), torch.ones(2, 2, 2))
    assert torch.equal(made[1, :, 0, 0], soft[0, :, 0, 0])
    several = mixed_target((torch.zeros(2, 3, 2, 2), torch.zeros(2, 3)), (masks, torch.tensor([0, 2])), (0, 1, 2, 2))
    assert several[0].tolist() == [[[0, 1], [0, 2]], [[2, 0], [2, -100]]]
    assert several[1].tolist() == [[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]


def test_losses_of_masks_are_not_mixed():
    engine = loop.start(make_model(), [CutMix(interpolate_loss=True)])
    engine.state.batch = (torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"interpolate_loss=False"):
        engine.run_event("before_forward")


def test_label_smoothing_composes():
    torch.manual_seed(3)
    model = loop.fit(loop.start(make_model(), [LabelSmoothing(0.2), CutMix()]), make_batches()).state.model

    def step(model, batch, elapsed):
        x, y = batch
        mixed, permuted, kept, _ = cutmix_batch(x, y)
        outputs = model((mixed, y))
        target = F.one_hot(y, 4) * kept + F.one_hot(permuted, 4) * (1 - kept)
        return soft_cross_entropy(outputs, smooth_labels(outputs, target, 0.2))

    torch.manual_seed(3)
    expected = by_hand(step)(make_batches())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_claims():
    assert CutMix().__traits__.claims == frozenset()
    assert CutMix(interpolate_loss=True).__traits__.claims == {Claim.LOSS_MIX}
    with pytest.warns(NotIntendedUseWarning, match="CutMix and CutMix"):
        loop.start(make_model(), [CutMix(interpolate_loss=True), CutMix(interpolate_loss=True)])


def test_wrong_arguments():
    x, y = torch.zeros(2, 1, 4, 4), torch.zeros(2)
    with pytest.raises(ValueError, match="length or bbox"):
        cutmix_batch(x, y, length=0.5, bbox=(0, 0, 1, 1))
    with pytest.raises(ValueError, match="length"):
        cutmix_batch(x, y, length=1.5)
    with pytest.raises(ValueError, match=r"4 x 4 pixels.*\(0, 0, 5, 1\)"):
        cutmix_batch(x, y, bbox=(0, 0, 5, 1))
    with pytest.raises(ValueError, match="alpha"):
        CutMix(alpha=-1)
    for per_sample in (False, True):
        with pytest.raises(ValueError, match="alpha"):
            cutmix_batch(x, y, alpha=-1, per_sample=per_sample)
    with pytest.raises(ValueError, match="per_sample"):
        CutMix(interpolate_loss=True, per_sample=True)
    with pytest.raises(ValueError, match=r"\(B, C, H, W\)"):
        cutmix_batch(torch.zeros(2, 3), y)
    with pytest.raises(ValueError, match=r"\(2, 4, 4\)"):
        cutmix_batch(torch.zeros(2, 4, 4), y)
    with pytest.raises(ValueError, match="the same height and width"):
        cutmix_batch((x, torch.zeros(2, 1, 8, 8)), y)
    with pytest.raises(ValueError, match="str"):
        cutmix_batch("x", y)


def test_short_names_of_the_guides():
    assert functional.cutmix is cutmix_batch
    for short in ("augmix", "colout", "cutout", "mixup", "randaugment", "selective_backprop"):
        assert callable(getattr(functional, short))
        assert short not in functional.__all__
    with pytest.raises(AttributeError, match="Did you mean 'cutmix_batch'"):
        _ = functional.cutmix_bacth
