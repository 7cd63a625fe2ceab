from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.algorithms import CutOut, cutout_batch
from tests.algorithms.cases import Case, by_hand


def _step(per_sample):
    def step(model, batch, elapsed):
        x, y = batch
        x = cutout_batch(x, 2, 0.5, per_sample=per_sample)
        return model.loss(model((x, y)), (x, y))

    return step


CASES = [
    Case(
        make=lambda per_sample=per_sample: CutOut(2, per_sample=per_sample),
        by_hand=by_hand(_step(per_sample)),
        neutral=lambda neutral=neutral, per_sample=per_sample: CutOut(**neutral, per_sample=per_sample),
        with_keys=lambda input_key, target_key, per_sample=per_sample: CutOut(
            2, input_key=input_key, per_sample=per_sample
        ),
    )
    for per_sample, neutral in ((False, {"length": 0.0}), (True, {"num_holes": 0}))
]


@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    length=st.floats(0, 1),
    uniform=st.booleans(),
    per_sample=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_hole_is_a_square_cut_off_at_the_edges(height, width, length, uniform, per_sample, seed):
    torch.manual_seed(seed)
    x = torch.randn(3, 2, height, width).abs() + 1
    holed = cutout_batch(x, 1, length, uniform, per_sample)
    holes = holed == 0
    assert torch.equal(torch.where(holes, x, holed), x)
    assert torch.equal(holes[:, :1].expand_as(holes), holes)
    side = int(min(height, width) * length)
    for hole in holes[:, 0]:
        rows, columns = hole.any(1), hole.any(0)
        assert torch.equal(hole, rows[:, None] & columns)
        for line, extent in ((rows, height), (columns, width)):
            found = line.nonzero().flatten().tolist()
            assert found == list(range(found[0], found[-1] + 1)) if found else True
            assert len(found) <= side
            # Shorter only where it was cut off.
            assert len(found) in (0, side) or found[0] == 0 or found[-1] == extent - 1
        if not uniform and side > 1:
            assert hole.any()


def test_images_have_the_same_holes_unless_per_sample():
    torch.manual_seed(0)
    x = torch.ones(40, 1, 16, 16)
    assert len(cutout_batch(x).unique(dim=0)) == 1
    assert len(cutout_batch(x, per_sample=True).unique(dim=0)) > 20


@pytest.mark.parametrize("per_sample", [False, True])
def test_uniform_sampling_covers_all_pixels_alike(per_sample):
    torch.manual_seed(0)
    runs = 6 if per_sample else 3000
    x = torch.ones(500 if per_sample else 1, 1, 8, 8)
    frequency = sum(1 - cutout_batch(x, 1, 0.5, True, per_sample).mean((0, 1)) for _ in range(runs)) / runs
    torch.testing.assert_close(frequency, torch.full((8, 8), (4 / 11) ** 2), atol=0.03, rtol=0)
    frequency = sum(1 - cutout_batch(x, 1, 0.5, False, per_sample).mean((0, 1)) for _ in range(runs)) / runs
    # Centers at 2 to 5 of 8 cover the middle, those at 0 to 2 the edge.
    assert frequency[4, 4].item() == pytest.approx((4 / 8) ** 2, abs=0.03)
    assert frequency[0, 0].item() == pytest.approx((3 / 8) ** 2, abs=0.03)


def test_several_holes():
    torch.manual_seed(0)
    x = torch.ones(1, 1, 64, 64)
    one, many = (sum(cutout_batch(x, n, 0.2).sum() for _ in range(20)) for n in (1, 6))
    assert many < one
    assert torch.equal(cutout_batch(x, 0), x)
    assert torch.equal(cutout_batch(x, 0, per_sample=True), x)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_dtype_and_memory_order_stay(dtype, per_sample):
    x = torch.ones(2, 3, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)
    holed = cutout_batch(x, per_sample=per_sample)
    assert holed.dtype == dtype
    assert holed.is_contiguous(memory_format=torch.channels_last)
    assert x.eq(1).all()


def test_nothing_is_read_from_the_device():
    """A meta tensor has no values to read."""
    x = torch.empty(6, 3, 8, 8, device="meta")
    for per_sample in (False, True):
        assert cutout_batch(x, 2, per_sample=per_sample).shape == x.shape


def test_nan_is_cut_out():
    assert not cutout_batch(torch.full((1, 1, 4, 4), torch.nan), 40, 1.0).isnan().all()


def test_one_image_and_collections():
    assert cutout_batch(torch.ones(3, 8, 8), per_sample=True).shape == (3, 8, 8)
    one, two = cutout_batch((torch.ones(4, 3, 8, 8), torch.full((4, 1, 8, 8), 2.0)), per_sample=True)
    assert torch.equal(two, one[:, :1] * 2)


@pytest.mark.parametrize(("mode", "white"), [("RGB", (255, 255, 255)), ("L", 255)])
def test_pillow_images_get_the_same_holes(mode, white):
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.new(mode, (12, 8), white)
    torch.manual_seed(0)
    holed = cutout_batch(image, 2)
    torch.manual_seed(0)
    expected = cutout_batch(torch.ones(1, 8, 12), 2)[0]
    values = torch.tensor(list(holed.convert("L").tobytes())).view(8, 12) / 255
    assert torch.equal(values, expected)
    assert image.getextrema() in ((255, 255), ((255, 255),) * 3)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="num_holes"):
        CutOut(num_holes=-1)
    with pytest.raises(ValueError, match="length"):
        CutOut(length=1.5)
    with pytest.raises(ValueError, match="length"):
        cutout_batch(torch.ones(1, 1, 4, 4), length=-0.1)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        cutout_batch(torch.zeros(2, 3))
