from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from composer.algorithms import ColOut, ColOutTransform, colout_batch
from composer.core.engine import Engine
from composer.core.state import State
from tests.algorithms.cases import Case, by_hand, make_model
from tests.algorithms.utils.test_vision_datasets import Images


def _step(per_sample):
    def step(model, batch, elapsed):
        x, y = colout_batch(batch, 0.25, 0.5, per_sample=per_sample)
        return model.loss(model((x, y)), (x, y))

    return step


CASES = [
    Case(
        make=lambda per_sample=per_sample: ColOut(0.25, 0.5, per_sample=per_sample),
        by_hand=by_hand(_step(per_sample)),
        neutral=lambda per_sample=per_sample: ColOut(0.0, 0.0, per_sample=per_sample),
        with_keys=lambda input_key, target_key, per_sample=per_sample: ColOut(
            0.25, 0.5, input_key=input_key, target_key=target_key, per_sample=per_sample
        ),
    )
    for per_sample in (False, True)
]


def grid(batch, height, width):
    """Images (B, 2, H, W) whose values encode row and column."""
    rows = torch.arange(height).view(-1, 1).expand(height, width)
    columns = torch.arange(width).expand(height, width)
    return torch.stack((rows, columns)).expand(batch, 2, height, width).clone()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@given(
    height=st.integers(1, 24),
    width=st.integers(1, 24),
    p_row=st.floats(0, 1),
    p_col=st.floats(0, 1),
    per_sample=st.booleans(),
    seed=st.integers(0, 999),
)
def test_what_is_kept_is_a_grid_in_order(memory_format, height, width, p_row, p_col, per_sample, seed):
    torch.manual_seed(seed)
    x = grid(3, height, width).to(memory_format=memory_format)
    small = colout_batch(x, p_row, p_col, per_sample=per_sample)
    assert small.shape[-2] == max(int((1 - p_row) * height + 1e-6), 1)
    assert small.shape[-1] == max(int((1 - p_col) * width + 1e-6), 1)
    assert small.is_contiguous(memory_format=memory_format)
    rows, columns = small[:, 0], small[:, 1]
    assert torch.equal(rows, rows[..., :1].expand_as(rows))
    assert torch.equal(columns, columns[..., :1, :].expand_as(columns))
    assert (rows.diff(dim=1) > 0).all()
    assert (columns.diff(dim=2) > 0).all()
    if not per_sample:
        assert torch.equal(small, small[:1].expand_as(small))


def test_every_row_is_as_likely_to_go():
    torch.manual_seed(0)
    for per_sample in (False, True):
        x = grid(300 if per_sample else 1, 10, 1)
        kept = torch.cat([colout_batch(x, 0.3, 0.0, per_sample=per_sample)[:, 0].flatten() for _ in range(300)])
        frequency = torch.bincount(kept, minlength=10) / len(kept)
        torch.testing.assert_close(frequency, torch.full((10,), 0.1), atol=0.015, rtol=0)
    rows = colout_batch(grid(40, 10, 1), 0.3, 0.0, per_sample=True)[:, 0]
    assert len(rows.unique(dim=0)) > 20


def test_targets_of_the_size_of_the_images_lose_the_same_pixels():
    x = grid(4, 8, 12)
    for per_sample in (False, True):
        small, (mask, soft, label) = colout_batch(
            (x, (x[:, 0], x * 2, torch.arange(4))), 0.25, 0.25, per_sample=per_sample
        )
        assert torch.equal(mask, small[:, 0])
        assert torch.equal(soft, small * 2)
        assert label.tolist() == [0, 1, 2, 3]
    small, mask = colout_batch((x, x[:, 0]), 0.25, 0.25, resize_target=False)
    assert mask.shape == (4, 8, 12)
    small, mask = colout_batch([x[0], x[0, 0]], 0.25, 0.25, resize_target=True)
    assert torch.equal(mask, small[0])
    one, two = colout_batch({"one": x, "two": x[:, :1] * 3}, per_sample=True).values()
    assert torch.equal(two, one[:, :1] * 3)


def test_full_size_is_unchanged():
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(colout_batch(x, 0.0, 0.0), x)
    assert colout_batch(x, 1.0, 1.0).shape == (2, 3, 1, 1)
    assert colout_batch(torch.zeros(1, 1, 10, 10), 0.9, 0.9).shape == (1, 1, 1, 1)


def test_nothing_is_read_from_the_device():
    """A meta tensor has no values to read."""
    x = torch.empty(6, 3, 8, 8, device="meta")
    for per_sample in (False, True):
        assert colout_batch(x, 0.5, 0.25, per_sample=per_sample).shape == (6, 3, 4, 6)


@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_pillow_images(mode):
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.linear_gradient("L").resize((12, 8)).convert("RGB").convert(mode)
    torch.manual_seed(0)
    small, mask = colout_batch((image, image), 0.25, 0.5)
    assert (small.size, small.mode) == ((6, 6), mode)
    assert small.convert("RGB").tobytes() == mask.convert("RGB").tobytes()
    torch.manual_seed(0)
    pixels = torch.tensor(list(image.convert("RGB").tobytes())).view(8, 12, 3).permute(2, 0, 1)
    expected = colout_batch(pixels, 0.25, 0.5)
    assert list(small.convert("RGB").tobytes()) == expected.permute(1, 2, 0).flatten().tolist()


def test_transform_survives_the_way_to_a_worker():
    transform = pickle.loads(pickle.dumps(ColOutTransform(0.5, 0.25)))
    assert repr(transform) == "ColOutTransform(p_row=0.5, p_col=0.25, resize_target='auto')"
    assert transform(torch.zeros(3, 8, 8)).shape == (3, 4, 6)


def test_transform_of_the_data_set():
    dataset = Images()
    state = State(model=make_model(), max_duration="1ep", train_dataloader=DataLoader(dataset, batch_size=2))
    engine = Engine(state, algorithms=[ColOut(0.5, 0.25, batch=False)])
    engine.run_event("fit_start")
    engine.run_event("fit_start")
    images, labels = next(iter(state.train_dataloader))
    assert images.shape == (2, 3, 4, 6)
    assert labels.tolist() == [0, 1]
    state.batch = [images, labels]
    engine.run_event("after_dataloader")
    assert state.batch[0] is images


def test_wrong_arguments():
    x, y = torch.zeros(2, 3, 8, 8), torch.zeros(2)
    for make in (ColOut, ColOutTransform, lambda **keys: colout_batch(x, **keys)):
        with pytest.raises(ValueError, match="p_row"):
            make(p_row=1.5)
        with pytest.raises(ValueError, match="p_col"):
            make(p_col=-0.5)
        with pytest.raises(ValueError, match="resize_target"):
            make(resize_target="yes")
    with pytest.raises(NotImplementedError, match="batch=True"):
        ColOut(batch=False, resize_target=True)
    with pytest.raises(ValueError, match="3 elements"):
        colout_batch((x, y, y))
    with pytest.raises(ValueError, match=r"\(2,\)"):
        colout_batch((x, y), resize_target=True)
    with pytest.raises(ValueError, match="str"):
        colout_batch("x")
    state = State(model=make_model(), max_duration="1ep", train_dataloader=[(x, y)])
    with pytest.raises(TypeError, match=r"DataLoader.*list.*batch=True"):
        Engine(state, algorithms=[ColOut(batch=False)]).run_event("fit_start")
