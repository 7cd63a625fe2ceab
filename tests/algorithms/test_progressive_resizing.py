from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from composer.algorithms import ProgressiveResizing, resize_batch
from composer.core.engine import Engine
from composer.core.logger import LoggerDestination
from composer.core.state import State
from tests.algorithms.cases import Case, by_hand, make_model


def _make(mode, **keys):
    return ProgressiveResizing(mode, 0.5, finetune_fraction=0.25, delay_fraction=0.25, size_increment=4, **keys)


def _step(mode):
    # Four batches of 16 x 16: 8, 8, 12 and 16 pixels.
    def step(model, batch, elapsed):
        scale = {0.0: 0.5, 0.25: 0.5, 0.5: 0.75, 0.75: 1.0}[elapsed]
        x, y = resize_batch(*batch, scale, mode) if scale < 1 else batch
        return model.loss(model((x, y)), (x, y))

    return step


CASES = [
    Case(
        make=lambda mode=mode: _make(mode),
        by_hand=by_hand(_step(mode)),
        neutral=lambda mode=mode: ProgressiveResizing(mode, initial_scale=1.0),
        with_keys=lambda input_key, target_key, mode=mode: _make(mode, input_key=input_key, target_key=target_key),
    )
    for mode in ("resize", "crop")
]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("scale", [0.25, 0.5, 0.75, 0.4])
def test_resize_takes_the_nearest_pixels(scale, memory_format):
    x = torch.randn(2, 3, 20, 40).to(memory_format=memory_format)
    small, y = resize_batch(x, torch.tensor([0, 1]), scale)
    size = (int(20 * scale), int(40 * scale))
    assert torch.equal(small, F.interpolate(x, size=size, mode="nearest"))
    assert small.is_contiguous(memory_format=memory_format)
    assert y.tolist() == [0, 1]


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_sizes_are_rounded_down(mode):
    for side, scale, expected in ((31, 0.5, 15), (33, 0.75, 24), (100, 0.29, 29), (3, 0.1, 1)):
        small, mask = resize_batch(torch.zeros(1, 1, side, side), torch.zeros(1, side, side), scale, mode, True)
        assert (small.shape[-2:], mask.shape[-2:]) == ((expected, expected), (expected, expected))


def test_crop_cuts_the_same_window_of_everything():
    x = torch.arange(2 * 1 * 8 * 8.0).view(2, 1, 8, 8)
    corners = set()
    for seed in range(40):
        torch.manual_seed(seed)
        (one, two), mask = resize_batch((x, x * 10), x[:, 0].long(), 0.5, "crop", resize_targets=True)
        top, left = divmod(int(one[0, 0, 0, 0]), 8)
        corners.add((top, left))
        assert torch.equal(one, x[..., top : top + 4, left : left + 4])
        assert torch.equal(two, one * 10)
        assert torch.equal(mask, one[:, 0].long())
    assert {top for top, _ in corners} == {left for _, left in corners} == set(range(5))


def test_masks_stay_aligned_with_images():
    x = torch.randint(100, (2, 1, 12, 12)).float()
    for scale in (0.5, 0.75, 0.9):
        small, (mask, labels) = resize_batch(x, (x[:, 0].long(), torch.tensor([1, 2])), scale, resize_targets=True)
        assert torch.equal(mask, small[:, 0].long())
        assert labels.tolist() == [1, 2]
    small, soft = resize_batch(x, x.expand(2, 3, 12, 12), 0.75, resize_targets=True)
    assert torch.equal(soft, small.expand(2, 3, 9, 9))


def test_full_scale_is_the_same_tensor():
    x = torch.zeros(1, 1, 4, 4)
    assert resize_batch(x, None, 1.0)[0] is x


@pytest.mark.parametrize("scale", [0, -0.5, 1.5])
def test_wrong_scale(scale):
    with pytest.raises(ValueError, match="scale_factor"):
        resize_batch(torch.zeros(1, 1, 4, 4), None, scale)
    with pytest.raises(ValueError, match="initial_scale"):
        ProgressiveResizing(initial_scale=scale)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="Did you mean 'crop'"):
        ProgressiveResizing(mode="corp")
    with pytest.raises(ValueError, match="mode"):
        resize_batch(torch.zeros(1, 1, 4, 4), None, 0.5, "zoom")
    with pytest.raises(ValueError, match="delay_fraction"):
        ProgressiveResizing(delay_fraction=1.5)
    with pytest.raises(ValueError, match="must not exceed 1"):
        ProgressiveResizing(delay_fraction=0.7, finetune_fraction=0.7)
    with pytest.raises(ValueError, match="size_increment"):
        ProgressiveResizing(size_increment=0)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        resize_batch(torch.zeros(2, 3), None, 0.5)
    with pytest.raises(ValueError, match="int"):
        resize_batch(3, None, 0.5)
    with pytest.raises(ValueError, match="resize_targets"):
        resize_batch(torch.zeros(1, 1, 4, 4), torch.tensor([0]), 0.5, resize_targets=True)
    with pytest.raises(ValueError, match="max_duration"):
        size_at(ProgressiveResizing(), elapsed=None)


class Notes(LoggerDestination):
    def __init__(self):
        self.metrics = {}

    def log_metrics(self, metrics, step=None):
        self.metrics.update(metrics)


def size_at(algorithm, elapsed, full=(32, 32)):
    """Height and width of a batch at a fraction of the run."""
    notes = Notes()
    state = State(model=make_model(), max_duration=None if elapsed is None else "1000ba")
    if elapsed is not None:
        state.timestamp = state.timestamp.copy(batch=round(elapsed * 1000))
    engine = Engine(state, algorithms=[algorithm], callbacks=[notes])
    state.batch = (torch.zeros(1, 1, *full), torch.tensor([0]))
    engine.run_event("after_dataloader")
    engine.logger.flush()
    height, width = state.batch[0].shape[-2:]
    assert notes.metrics["progressive_resizing/height"] == height
    assert notes.metrics["progressive_resizing/width"] == width
    assert notes.metrics["progressive_resizing/scale_factor"] == algorithm.scale_at(elapsed)
    return height, width


def test_schedule_in_closed_form():
    algorithm = ProgressiveResizing(initial_scale=0.5, delay_fraction=0.5, finetune_fraction=0.2, size_increment=4)
    sizes = [size_at(algorithm, elapsed)[0] for elapsed in (0, 0.25, 0.5, 0.575, 0.65, 0.7, 0.8, 0.9)]
    assert sizes == [16, 16, 16, 20, 24, 28, 32, 32]
    assert algorithm.scale_at(0.65) == pytest.approx(0.75)


def test_each_side_is_a_multiple():
    algorithm = ProgressiveResizing(initial_scale=0.5, delay_fraction=0.0, finetune_fraction=0.0, size_increment=8)
    assert size_at(algorithm, 0, full=(30, 50)) == (16, 24)
    assert size_at(algorithm, 1.0, full=(30, 50)) == (30, 50)
    assert size_at(ProgressiveResizing(initial_scale=0.01, size_increment=8), 0, full=(30, 50)) == (8, 8)


@given(
    initial=st.floats(0.05, 1),
    delay=st.floats(0, 1),
    finetune=st.floats(0, 1),
    times=st.lists(st.floats(0, 1), min_size=2, max_size=6),
)
def test_schedule_never_shrinks_and_ends_at_full_size(initial, delay, finetune, times):
    finetune = min(finetune, 1 - delay)
    algorithm = ProgressiveResizing(initial_scale=initial, delay_fraction=delay, finetune_fraction=finetune)
    scales = [algorithm.scale_at(time) for time in sorted(times)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(scales))
    assert all(initial <= scale <= 1 for scale in scales)
    assert algorithm.scale_at(1.0) == 1.0
    assert algorithm._rounded(32, 1.0) == 32


def test_nothing_left_to_grow_in():
    algorithm = ProgressiveResizing(delay_fraction=0.5, finetune_fraction=0.5)
    assert algorithm.scale_at(0.499) == 0.5
    assert algorithm.scale_at(0.5) == 1.0
    assert algorithm.__traits__.changes_shapes


def test_masks_of_the_batch_are_resized():
    state = State(model=make_model(), max_duration="10ba")
    engine = Engine(state, algorithms=[ProgressiveResizing(resize_targets=True)])
    state.batch = (torch.zeros(2, 3, 16, 16), torch.zeros(2, 16, 16, dtype=torch.long))
    engine.run_event("after_dataloader")
    assert state.batch[0].shape == (2, 3, 8, 8)
    assert state.batch[1].shape == (2, 8, 8)
