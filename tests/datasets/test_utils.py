"""Batches of bytes from PIL images, and their normalization."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from composer.datasets.utils import NormalizationFn, pil_image_collate

Image = pytest.importorskip("PIL.Image")


def test_normalization_is_that_of_each_channel() -> None:
    images = torch.randint(256, (4, 3, 5, 6), dtype=torch.uint8)
    targets = torch.arange(4)
    mean, std = (1.0, 2.0, 3.0), (4.0, 5.0, 6.0)
    found, same = NormalizationFn(mean, std)((images, targets))
    for channel in range(3):
        torch.testing.assert_close(found[:, channel], (images[:, channel].float() - mean[channel]) / std[channel])
    assert found.dtype is torch.float32
    assert same is targets


def test_the_images_and_their_dtype_are_kept() -> None:
    images, targets = torch.ones(2, 3, 1, 1, dtype=torch.float64), torch.tensor([0, 3])
    found, shifted = NormalizationFn((1, 1, 1), (1, 1, 1), ignore_background=True)((images, targets))
    assert found.dtype is torch.float64
    assert images.eq(1).all()
    assert shifted.tolist() == [-1, 2]
    assert targets.tolist() == [0, 3]


def test_normalization_goes_to_workers() -> None:
    normalize = NormalizationFn((0.5,), (2.0,))
    batch = (torch.ones(1, 1, 2, 2), torch.zeros(1))
    expected = normalize(batch)[0]
    assert torch.equal(pickle.loads(pickle.dumps(normalize))(batch)[0], expected)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [((1, 2), (1,), "have 2 and 1"), ((1,), (0,), "std must be greater than 0"), ((1,), (-1,), "greater than 0")],
)
def test_wrong_numbers_are_refused(mean, std, message) -> None:
    with pytest.raises(ValueError, match=message):
        NormalizationFn(mean, std)


def test_wrong_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"for 3 channels, but the images are of shape \(2, 1, 4, 4\)"):
        NormalizationFn((1, 1, 1), (1, 1, 1))((torch.ones(2, 1, 4, 4), torch.zeros(2)))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_collation_keeps_pixels(memory_format) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    classes = np.random.default_rng(1).integers(0, 150, (3, 4, 5), dtype=np.uint8)
    batch = [(Image.fromarray(image), Image.fromarray(labels)) for image, labels in zip(pixels, classes, strict=True)]
    images, targets = pil_image_collate(batch, memory_format)
    assert torch.equal(images, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert images.is_contiguous(memory_format=memory_format)
    assert torch.equal(targets, torch.from_numpy(classes).long())


def test_grey_images_have_one_channel() -> None:
    images, targets = pil_image_collate([(Image.new("L", (3, 2), 7), 5)])
    assert images.shape == (1, 1, 2, 3)
    assert images.unique().tolist() == [7]
    assert targets.tolist() == [5]


def test_images_of_several_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2, 1\), \(2, 2, 3\)"):
        pil_image_collate([(Image.new("RGB", (2, 2)), 0), (Image.new("L", (2, 2)), 1)])
