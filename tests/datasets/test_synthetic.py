"""Synthetic datasets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from composer.core import MemoryFormat
from composer.datasets.synthetic import SyntheticBatchPairDataset, SyntheticPILDataset


def test_data_are_reproducible_and_leave_the_global_random_state() -> None:
    before = torch.get_rng_state()
    one, other = (
        SyntheticBatchPairDataset(total_dataset_size=9, data_shape=(2,), num_classes=3, seed=5) for _ in range(2)
    )
    assert all(torch.equal(one[i][0], other[i][0]) and one[i][1] == other[i][1] for i in range(9))
    assert torch.equal(torch.get_rng_state(), before)
    third = SyntheticBatchPairDataset(total_dataset_size=9, data_shape=(2,), num_classes=3, seed=6)
    assert not torch.equal(one[0][0], third[0][0])


def test_unique_samples_repeat() -> None:
    data = SyntheticBatchPairDataset(
        total_dataset_size=10, data_shape=(3,), num_classes=2, num_unique_samples_to_create=4
    )
    found = torch.stack([x for x, _ in (data[i] for i in range(10))])
    assert torch.equal(found[:4], found[4:8])
    assert len(found.unique(dim=0)) == 4
    assert torch.equal(data[-1][0], found[9])
    with pytest.raises(IndexError):
        data[10]


@pytest.mark.parametrize("shape", [(6,), (3, 4, 4)])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_separable_data_is_separable_by_a_linear_model(shape, num_classes) -> None:
    data = SyntheticBatchPairDataset(
        total_dataset_size=100, data_shape=shape, num_classes=num_classes, data_type="separable"
    )
    x, y = (torch.stack(column) for column in zip(*[data[i] for i in range(100)], strict=True))
    x = x.flatten(1)
    centers = torch.stack([x[y == label].mean(0) for label in range(num_classes)])
    # The nearest center is the greatest of linear functions of x.
    scores = x @ centers.T - centers.square().sum(1) / 2
    assert torch.equal(scores.argmax(1), y)


def test_gaussian_data_has_the_moments_of_the_normal_distribution() -> None:
    data = SyntheticBatchPairDataset(total_dataset_size=100, data_shape=(1000,), num_classes=2)
    x = torch.stack([data[i][0] for i in range(100)])
    assert x.mean().abs() < 0.02
    assert abs(x.std() - 1) < 0.02


@pytest.mark.parametrize("label_shape", [None, (4, 5)])
def test_one_hot_labels_are_those_of_the_indices(label_shape) -> None:
    make = {"total_dataset_size": 6, "data_shape": (3, 4, 5), "num_classes": 4, "label_shape": label_shape}
    indices = SyntheticBatchPairDataset(**make)
    one_hot = SyntheticBatchPairDataset(**make, label_type="classification_one_hot")
    for i in range(6):
        assert one_hot[i][1].shape == (4, *(label_shape or ()))
        assert torch.equal(one_hot[i][1].argmax(0), indices[i][1])
        assert one_hot[i][1].sum(0).eq(1).all()


def test_batches_have_the_memory_format() -> None:
    data = SyntheticBatchPairDataset(
        total_dataset_size=4, data_shape=(3, 4, 5), num_classes=2, memory_format=MemoryFormat.CHANNELS_LAST
    )
    x, _ = next(iter(DataLoader(data, 4, collate_fn=data.collate)))
    assert x.is_contiguous(memory_format=torch.channels_last)
    plain = SyntheticBatchPairDataset(total_dataset_size=4, data_shape=(3, 4, 5), num_classes=2)
    assert torch.equal(x, next(iter(DataLoader(plain, 4)))[0])


def test_the_transform_is_applied_to_data_alone() -> None:
    data = SyntheticBatchPairDataset(total_dataset_size=2, data_shape=(3,), num_classes=2, transform=lambda x: x * 0)
    assert data[0][0].eq(0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": None}, "num_classes must be the number of classes"),
        ({"num_classes": 1}, "at least 2, but got 1"),
        ({"data_type": "seperable"}, "Did you mean 'separable'"),
        ({"label_type": "onehot"}, "label_type must be one of"),
        ({"total_dataset_size": 0}, "total_dataset_size"),
        ({"data_type": "separable", "label_shape": (2,)}, "label_shape must be None"),
        ({"memory_format": "channels_last"}, "requires data of 3 dimensions"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message) -> None:
    given = {"total_dataset_size": 4, "data_shape": (2,), "num_classes": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        SyntheticBatchPairDataset(**given)


# --------------------------------------------------------------------------------------------------------- PIL


def test_pil_images() -> None:
    pytest.importorskip("PIL")
    data = SyntheticPILDataset(total_dataset_size=5, data_shape=(8, 12), num_classes=3, label_shape=(8, 12))
    image, labels = data[2]
    assert (image.size, image.mode, labels.size, labels.mode) == ((12, 8), "RGB", (12, 8), "L")
    assert set(np.unique(np.array(labels))) <= {0, 1, 2}
    assert np.array_equal(np.array(data[2][0]), np.array(image))
    assert 100 < np.array(image).mean() < 156  # about the middle of the bytes
    resized = SyntheticPILDataset(total_dataset_size=5, num_classes=3, transform=lambda image: image.resize((4, 4)))
    assert resized[0][0].size == (4, 4)
    assert isinstance(resized[0][1], int)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data_shape": (3, 8, 8)}, "height and the width"),
        ({"label_shape": (8, 8), "num_classes": 300}, "at most 256"),
        ({"label_shape": (8, 8), "label_type": "classification_one_hot"}, "must be 'classification_int'"),
    ],
)
def test_wrong_arguments_of_images_are_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        SyntheticPILDataset(**{"total_dataset_size": 4, "num_classes": 2, **arguments})
