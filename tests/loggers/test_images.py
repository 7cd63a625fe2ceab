from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.loggers._images import class_color, class_maps, color_mask, image_arrays, overlay_mask

BYTES = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
LAST = BYTES.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(
    ("images", "channels_last"),
    [
        (BYTES, False),
        (BYTES.numpy(), False),
        (torch.from_numpy(LAST), True),
        (list(BYTES), False),
        (tuple(LAST), True),
        ([BYTES[:1], BYTES[1]], False),
        (BYTES / 255, False),
        ((BYTES / 255).to(torch.float64).requires_grad_(), False),
        (BYTES.to(torch.int64), False),
        (BYTES.to(torch.float16) / 255, False),
    ],
)
def test_every_input_format_gives_the_same_bytes(images, channels_last: bool) -> None:
    arrays = image_arrays(images, channels_last)
    assert len(arrays) == 2
    for array, expected in zip(arrays, LAST, strict=True):
        assert array.dtype == np.uint8
        np.testing.assert_array_equal(array, expected)


def test_one_image() -> None:
    assert [array.shape for array in image_arrays(BYTES[0])] == [(4, 5, 3)]
    assert [array.shape for array in image_arrays(BYTES[0, 0])] == [(4, 5, 1)]
    assert [array.shape for array in image_arrays(BYTES[0, 0], channels_last=True)] == [(4, 5, 1)]
    assert [array.shape for array in image_arrays(LAST[0], channels_last=True)] == [(4, 5, 3)]
    assert [array.shape for array in image_arrays(torch.rand(4, 2, 2))] == [(2, 2, 4)]
    assert image_arrays([]) == []


@pytest.mark.parametrize("image", [torch.ones(4, 4, dtype=torch.uint8), np.ones((4, 4), np.uint8), np.ones((4, 4))])
def test_an_image_that_is_modified_later_was_logged_before(image) -> None:
    before, after = image_arrays(image)[0].copy(), image_arrays(image)[0]
    image[:] = 0
    assert np.array_equal(before, after)


def test_images_of_several_sizes() -> None:
    assert [array.shape for array in image_arrays([torch.rand(3, 4, 4), torch.rand(1, 2, 2)])] == [(4, 4, 3), (2, 2, 1)]


def test_booleans_and_bfloat16() -> None:
    assert image_arrays(torch.tensor([[True, False]]))[0].ravel().tolist() == [255, 0]
    assert image_arrays(torch.tensor([[0.0, 0.5]], dtype=torch.bfloat16))[0].ravel().tolist() == [0, 128]


def test_values_beyond_the_range_fill_it() -> None:
    assert image_arrays(torch.tensor([[-2.0, 0.0, 2.0]]))[0].ravel().tolist() == [0, 128, 255]
    assert image_arrays(torch.tensor([[-2, 0, 2]]))[0].ravel().tolist() == [0, 128, 255]
    assert image_arrays(torch.tensor([[2.0, 2.0]]))[0].ravel().tolist() == [128, 128]
    assert image_arrays(torch.tensor([[float("nan"), 1.0, float("inf")]]))[0].ravel().tolist() == [0, 255, 255]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_floats_in_the_range_are_rounded(values: list[float]) -> None:
    found = image_arrays(np.array([values]))[0].ravel()
    np.testing.assert_allclose(found, 255 * np.array(values), atol=0.5)


@pytest.mark.parametrize(
    ("images", "channels_last", "message"),
    [
        (torch.rand(6, 5, 3), False, r"got \(6, 5, 3\)\..* pass channels_last=True"),
        (torch.rand(2, 3, 4, 5), True, r"got \(2, 3, 4, 5\)\..* pass channels_last=False"),
        (torch.rand(2, 7, 5), False, r"with 1, 3 or 4 channels C; got \(2, 7, 5\)\.$"),
        (torch.rand(3), False, r"C; got \(3,\)"),
        (torch.rand(1, 1, 3, 4, 4), False, r"C; got \(1, 1, 3, 4, 4\)"),
    ],
)
def test_bad_shapes(images, channels_last: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_arrays(images, channels_last)


@pytest.mark.parametrize("images", ["image.png", {"a": 1}, None, [1.0]])
def test_refuses_other_types(images) -> None:
    with pytest.raises(TypeError, match="images must be tensors or arrays, or a sequence of them; got"):
        image_arrays(images)


# ---------------------------------------------------------------------------------------------------- masks

INDICES = torch.tensor([[[0, 1], [2, 0]], [[1, 1], [0, 2]]])
ONE_HOT = torch.nn.functional.one_hot(INDICES, 3)


@pytest.mark.parametrize(
    ("masks", "channels_last"),
    [
        (INDICES, False),
        (INDICES.numpy().astype(np.uint8), False),
        (list(INDICES), False),
        (INDICES[:, None], False),
        (ONE_HOT.permute(0, 3, 1, 2).float(), False),
        (list(ONE_HOT.permute(0, 3, 1, 2).float()), False),
        (ONE_HOT, True),
        (INDICES[..., None], True),
    ],
)
def test_every_mask_format(masks, channels_last: bool) -> None:
    maps = class_maps({"m": masks}, 2, channels_last)["m"]
    np.testing.assert_array_equal(np.stack(maps), INDICES.numpy())


def test_one_mask() -> None:
    np.testing.assert_array_equal(class_maps({"m": INDICES[0]}, 1)["m"][0], INDICES[0].numpy())


def test_invalid_masks() -> None:
    with pytest.raises(ValueError, match=r"masks\['m'\] must contain one .* there are 2 masks and 3 images"):
        class_maps({"m": INDICES}, 3)
    with pytest.raises(ValueError, match=r"masks\['m'\] must have the shape .* one of its masks is \(2,\)"):
        class_maps({"m": [INDICES[0, 0]]}, 1)
    with pytest.raises(TypeError, match=r"masks\['m'\] must be tensors"):
        class_maps({"m": "mask"}, 1)


def test_colors_differ() -> None:
    colors = {class_color(index) for index in range(64)}
    assert len(colors) == 64
    assert all(0 <= value <= 255 for color in colors for value in color)
    assert class_color(-1) in {class_color(-1)} - {(0, 0, 0)}  # an index to be ignored has a color, too


def test_a_color_mask() -> None:
    found = color_mask(INDICES[0].numpy())
    assert found.shape == (2, 2, 3)
    assert found.dtype == np.uint8
    for row in range(2):
        for column in range(2):
            assert tuple(found[row, column]) == class_color(int(INDICES[0, row, column]))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_mask_over_an_image(channels: int) -> None:
    image = np.full((2, 2, channels), 100, np.uint8)
    found = overlay_mask(image, INDICES[0].numpy(), opacity=0.25)
    assert found.shape == (2, 2, 3)
    assert found.dtype == np.uint8
    assert found[0, 0].tolist() == [100, 100, 100]
    np.testing.assert_allclose(found[0, 1], 0.75 * 100 + 0.25 * np.array(class_color(1)), atol=0.5)
    np.testing.assert_array_equal(overlay_mask(image, np.zeros((2, 2), np.int64)), np.full((2, 2, 3), 100))
    with pytest.raises(ValueError, match=r"the size of its image, \(2, 2\); got \(3, 3\)"):
        overlay_mask(image, np.zeros((3, 3), np.int64))
