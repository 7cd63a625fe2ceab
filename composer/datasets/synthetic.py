"""Synthetic datasets of random tensors or PIL images of any shape, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from composer._lazy import import_extra
from composer._numbers import whole_number
from composer._text import callable_or_none, one_of
from composer.core.types import MemoryFormat

__all__ = ["SyntheticBatchPairDataset", "SyntheticDataLabelType", "SyntheticDataType", "SyntheticPILDataset"]

# Standard deviation of a class, as a fraction of the smallest distance between class means: the midpoint between two
# means is six standard deviations away.
_NOISE = 1 / 12


class SyntheticDataType(StrEnum):
    """Distribution of the samples.

    Attributes:
        GAUSSIAN: Standard normal values, independent of the label.
        SEPARABLE: Normal values around the mean of the class, so that a linear model can learn the labels.

    >>> SyntheticDataType("separable")
    <SyntheticDataType.SEPARABLE: 'separable'>
    """

    GAUSSIAN = "gaussian"
    SEPARABLE = "separable"


class SyntheticDataLabelType(StrEnum):
    """Format of the labels.

    Attributes:
        CLASSIFICATION_INT: The index of a class, int64.
        CLASSIFICATION_ONE_HOT: A vector with a one at that index, float32.

    >>> SyntheticDataLabelType("classification_int")
    <SyntheticDataLabelType.CLASSIFICATION_INT: 'classification_int'>
    """

    CLASSIFICATION_INT = "classification_int"
    CLASSIFICATION_ONE_HOT = "classification_one_hot"


class SyntheticBatchPairDataset(Dataset[tuple[Any, Tensor]]):
    """Pairs of random data and labels, determined by the arguments; the global random state is not used.

    Args:
        total_dataset_size: Number of samples.
        data_shape: Shape of the data of a sample, such as (C, H, W).
        num_unique_samples_to_create: Number of distinct samples; sample i equals sample i modulo this number.
        data_type: A :class:`SyntheticDataType`.
        label_type: A :class:`SyntheticDataLabelType`.
        num_classes: Number of classes, at least 2.
        label_shape: Shape of the labels of a sample, such as (H, W) for segmentation; None for one label. One-hot
            labels have the class dimension first, (num_classes, H, W). Must be None for separable data.
        device: Device of the samples.
        memory_format: Memory format of data of shape (C, H, W); of batches too with ``collate_fn=dataset.collate``.
        transform: Applied to the data of a sample when it is accessed.
        seed: Random seed.

    Raises:
        ValueError: An argument is out of range, or two arguments are incompatible.

    >>> data = SyntheticBatchPairDataset(total_dataset_size=1000, data_shape=(3, 8, 8), num_classes=10)
    >>> len(data), data[0][0].shape, data[0][1], torch.equal(data[0][0], data[100][0])
    (1000, torch.Size([3, 8, 8]), tensor(4), True)
    """

    def __init__(
        self,
        *,
        total_dataset_size: int,
        data_shape: Sequence[int],
        num_unique_samples_to_create: int = 100,
        data_type: SyntheticDataType | str = SyntheticDataType.GAUSSIAN,
        label_type: SyntheticDataLabelType | str = SyntheticDataLabelType.CLASSIFICATION_INT,
        num_classes: int | None = None,
        label_shape: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        memory_format: MemoryFormat | str = MemoryFormat.CONTIGUOUS_FORMAT,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.total_dataset_size = whole_number("total_dataset_size", total_dataset_size, minimum=1)
        self.data_shape = tuple(data_shape)
        num_unique = whole_number("num_unique_samples_to_create", num_unique_samples_to_create, minimum=1)
        self.num_unique_samples_to_create = count = min(num_unique, self.total_dataset_size)
        self.data_type = SyntheticDataType(one_of("data_type", data_type, list(SyntheticDataType)))
        self.label_type = SyntheticDataLabelType(one_of("label_type", label_type, list(SyntheticDataLabelType)))
        self.num_classes = _at_least_two(num_classes)
        self.label_shape = () if label_shape is None else tuple(label_shape)
        self.device = torch.device(device)
        self.memory_format = MemoryFormat(one_of("memory_format", memory_format, list(MemoryFormat)))
        self.transform = callable_or_none("transform", transform)
        if self.label_shape and self.data_type is SyntheticDataType.SEPARABLE:
            raise ValueError(
                f"label_shape must be None with data_type='separable', which needs one label per sample, but got "
                f"{label_shape!r}. Use data_type='gaussian'."
            )
        dims = {MemoryFormat.CHANNELS_LAST: 3, MemoryFormat.CHANNELS_LAST_3D: 4}.get(self.memory_format)
        if dims is not None and len(self.data_shape) != dims:
            raise ValueError(
                f"memory_format={self.memory_format.value!r} requires data of {dims} dimensions, but data_shape is "
                f"{self.data_shape}."
            )
        generator = torch.Generator(self.device).manual_seed(whole_number("seed", seed, minimum=None))
        labels = torch.randint(
            self.num_classes, (count, *self.label_shape), generator=generator, device=self.device, dtype=torch.int64
        )
        self._data = self._sample(labels, generator).to(memory_format=getattr(torch, self.memory_format.value))
        self._labels = labels
        if self.label_type is SyntheticDataLabelType.CLASSIFICATION_ONE_HOT:
            self._labels = torch.nn.functional.one_hot(labels, self.num_classes).movedim(-1, 1).float()

    def _sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn((len(labels), *self.data_shape), generator=generator, device=self.device)
        if self.data_type is SyntheticDataType.GAUSSIAN:
            return noise
        classes, class_indices = labels.unique(return_inverse=True)
        means = torch.randn((len(classes), *self.data_shape), generator=generator, device=self.device)
        distances = torch.pdist(means.flatten(1))
        scale = distances.min() * _NOISE if len(classes) > 1 else 1.0
        return means[class_indices] + noise * scale

    def __len__(self) -> int:
        return self.total_dataset_size

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        """Return data of ``data_shape`` and the label of a sample."""
        index = _checked_index(index, self.total_dataset_size) % self.num_unique_samples_to_create
        data = self._data[index]
        return data if self.transform is None else self.transform(data), self._labels[index]

    def collate(self, samples: Sequence[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
        """Collate samples into a batch in the memory format of the dataset; use it as ``collate_fn``.

        Args:
            samples: Data and label of each.
        """
        data, labels = default_collate(list(samples))
        return data.to(memory_format=getattr(torch, self.memory_format.value)), labels


class SyntheticPILDataset(Dataset[tuple[Any, Any]]):
    """Pairs of random PIL images and labels, like those of a torchvision dataset.

    Args:
        total_dataset_size: Number of samples.
        data_shape: Height and width of the images in pixels.
        num_unique_samples_to_create: Number of distinct samples.
        data_type: A :class:`SyntheticDataType`; values are scaled to the range of uint8.
        label_type: A :class:`SyntheticDataLabelType`.
        num_classes: Number of classes, at least 2; at most 256 with ``label_shape``.
        label_shape: Height and width of label images, whose pixels are class indices; None for one label.
        transform: Applied to an image when it is accessed.
        seed: Random seed.

    Raises:
        ValueError: An argument is out of range, or ``label_shape`` is given with one-hot labels.

    >>> data = SyntheticPILDataset(total_dataset_size=10, data_shape=(16, 32), num_classes=2)
    >>> data[3][0].size, data[3][0].mode, data[3][1]
    ((32, 16), 'RGB', 0)
    """

    def __init__(
        self,
        *,
        total_dataset_size: int,
        data_shape: Sequence[int] = (64, 64),
        num_unique_samples_to_create: int = 100,
        data_type: SyntheticDataType | str = SyntheticDataType.GAUSSIAN,
        label_type: SyntheticDataLabelType | str = SyntheticDataLabelType.CLASSIFICATION_INT,
        num_classes: int | None = None,
        label_shape: Sequence[int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> None:
        if len(data_shape) != 2:
            raise ValueError(f"data_shape must be the height and the width of the images, but got {data_shape!r}.")
        if label_shape is not None and num_classes is not None and whole_number("num_classes", num_classes) > 256:
            raise ValueError(f"num_classes must be at most 256 if labels are images, but got {num_classes!r}.")
        self._pairs = SyntheticBatchPairDataset(
            total_dataset_size=total_dataset_size,
            data_shape=(*data_shape, 3),
            num_unique_samples_to_create=num_unique_samples_to_create,
            data_type=data_type,
            label_type=label_type,
            num_classes=num_classes,
            label_shape=label_shape,
            seed=seed,
        )
        if label_shape is not None and self._pairs.label_type is SyntheticDataLabelType.CLASSIFICATION_ONE_HOT:
            raise ValueError("label_type must be 'classification_int' if labels are images (label_shape is given).")
        self.transform = callable_or_none("transform", transform)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return the image and the label of a sample."""
        image: Any = import_extra("PIL.Image", "vision", "SyntheticPILDataset")
        data, label = self._pairs[index]
        # Three standard deviations to either side of 128.
        pixels = (data * (128 / 3) + 128).clamp(0, 255).to(torch.uint8)
        picture = image.fromarray(pixels.numpy())
        if self._pairs.label_shape:
            target: Any = image.fromarray(label.to(torch.uint8).numpy())
        else:
            target = label if label.ndim else int(label)
        return picture if self.transform is None else self.transform(picture), target


def _at_least_two(num_classes: int | None) -> int:
    number = None if num_classes is None else whole_number("num_classes", num_classes, minimum=None)
    if number is None or number < 2:
        raise ValueError(f"num_classes must be the number of classes, at least 2, but got {num_classes!r}.")
    return number


def _checked_index(index: int, size: int) -> int:
    """Return a non-negative index. The IndexError ends the iteration over a sequence."""
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range for {size} samples.")
    return index % size
