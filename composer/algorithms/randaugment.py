"""RandAugment: apply random augmentations to each image, controlled by their number and their strength.

Paper: RandAugment: Practical automated data augmentation with a reduced search space, Cubuk et al. 2020,
https://arxiv.org/abs/1909.13719
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from composer import trees
from composer._numbers import non_negative, whole_number
from composer.algorithms._augmentation import ImageAugmentation, ImageTransform, augment, augment_tensors, check_range
from composer.algorithms.utils._batched import apply_plan, as_bytes, sample_plan
from composer.algorithms.utils.augmentation_primitives import AugmentationFn, augmentation_sets, operations_of

__all__ = ["RandAugment", "RandAugmentTransform", "augmentation_sets", "randaugment_image"]


def randaugment_image(
    img: Any = None,
    severity: float = 9,
    depth: int = 2,
    augmentation_set: str | Sequence[AugmentationFn] = "all",
    value_range: tuple[float, float] = (0.0, 1.0),
) -> Any:
    """Apply random operations to an image in sequence; each image of a batch gets different operations.

    Args:
        img: A PIL image; or images as a tensor, (C, H, W) or (B, C, H, W), of bytes or floats, on any device; or a
            collection of such tensors, all of which get the same operations. Tensors are processed as uint8 values,
            all images of a batch together. Without an image, a :class:`RandAugmentTransform` with these arguments is
            returned.
        severity: Strength of the operations: each samples a level from [0.1, severity]; 10 is the strongest.
        depth: Number of operations.
        augmentation_set: ``"all"``, ``"safe"``, ``"original"``, or functions ``(PIL image, severity) -> PIL image``,
            see :mod:`.augmentation_primitives`. With custom functions, tensors are processed image by image on the
            CPU.
        value_range: The values of black and white in float tensors; values outside are clamped.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        TypeError: ``img`` is neither an image nor None.
        ValueError: An argument is out of range.

    >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> randaugment_image(images, severity=9, depth=1).shape
    torch.Size([4, 3, 32, 32])

    Paper: https://arxiv.org/abs/1909.13719 (Cubuk et al. 2020)
    """
    if img is None:
        return RandAugmentTransform(severity, depth, augmentation_set, value_range)
    non_negative("severity", severity)
    operations = operations_of(augmentation_set)
    depth = whole_number("depth", depth)
    if depth == 0:
        return img

    def edit_tensors(names: list[str], size: int) -> Any:
        span = check_range(value_range)
        plan = sample_plan(size, depth, len(operations))
        return augment_tensors(img, lambda images: apply_plan(as_bytes(images, span), plan, names, severity), span)

    return augment(img, operations, lambda image: _augment_pillow(image, severity, depth, operations), edit_tensors)


class RandAugmentTransform(ImageTransform):
    """Dataset transform that applies :func:`randaugment_image`.

    Args:
        severity: Strength of the operations, up to 10.
        depth: Number of operations.
        augmentation_set: The operations, see :func:`randaugment_image`.
        value_range: The values of black and white in float tensors.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        ValueError: An argument is out of range.

    >>> from PIL import Image
    >>> RandAugmentTransform(severity=9, depth=1)(Image.new("RGB", (32, 24))).size
    (32, 24)

    Paper: https://arxiv.org/abs/1909.13719 (Cubuk et al. 2020)
    """

    def __init__(
        self,
        severity: float = 9,
        depth: int = 2,
        augmentation_set: str | Sequence[AugmentationFn] = "all",
        value_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(augmentation_set, value_range)
        self.severity = non_negative("severity", severity)
        self.depth = whole_number("depth", depth)

    def augment(self, img: Any) -> Any:
        """Apply the operations."""
        return randaugment_image(img, self.severity, self.depth, self.augmentation_set, self.value_range)


class RandAugment(ImageAugmentation):
    """Applies :func:`randaugment_image` to the training images, in the dataset or on the device.

    By default, a :class:`RandAugmentTransform` is added to the dataset when training starts, before images are
    converted to tensors: the DataLoader workers do the work, and must keep up with the accelerator. With
    ``on_device=True``, batches are augmented on the device, each image with different operations.

    When to use it:
        For image classifiers that would otherwise overfit: large models, many epochs.

    When not to:
        For dense prediction, since masks are not transformed with the images; in short runs of small models, which it
        slows down; if the DataLoader is the bottleneck, unless ``on_device=True``.

    How to choose:
        ``depth`` 1 or 2; ``severity`` 9 for large models, 4 to 6 for small ones and short runs.

    Cost:
        ``depth`` operations per image in the DataLoader workers, or a few passes over the batch on the accelerator
        with ``on_device=True``.

    Args:
        severity: Strength of the operations, up to 10; 9 for large models, less for small ones.
        depth: Number of operations; 0 is none. 1 or 2 are usual.
        augmentation_set: ``"all"``, ``"safe"``, ``"original"``, or functions, see :func:`randaugment_image`.
        on_device: Whether to augment batches on the device rather than images in the dataset. Images must then be
            bytes, or floats that are not normalized yet; normalize them in the model or in
            ``DataSpec(microbatch_transforms=...)``. If the first batch looks normalized, a warning is raised.
        input_key: Key of the images in the batch, or a list of keys, with ``on_device=True``.
        value_range: The values of black and white in float tensors.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        TypeError: At the start of training, the training data is not a :class:`torch.utils.data.DataLoader`, or its
            dataset does not accept a transform.
        ValueError: An argument is out of range.

    >>> RandAugment(severity=9, depth=1).on_device
    False

    Paper: https://arxiv.org/abs/1909.13719 (Cubuk et al. 2020)
    """

    __traits__ = replace(ImageAugmentation.__traits__, neutral={"depth": 0})

    def __init__(
        self,
        severity: float = 9,
        depth: int = 2,
        augmentation_set: str | Sequence[AugmentationFn] = "all",
        on_device: bool = False,
        input_key: trees.BatchKey = 0,
        value_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(augmentation_set, on_device, input_key, value_range)
        self.severity = non_negative("severity", severity)
        self.depth = whole_number("depth", depth)

    def transform(self) -> RandAugmentTransform:
        """Return the transform for an image or a batch of images.

        >>> RandAugment(depth=1).transform()
        RandAugmentTransform(severity=9, depth=1, augmentation_set='all')
        """
        return RandAugmentTransform(self.severity, self.depth, self.augmentation_set, self.value_range)


def _augment_pillow(image: Any, severity: float, depth: int, operations: Sequence[AugmentationFn]) -> Any:
    """Apply operations to one image."""
    choices = cast("list[int]", torch.randint(len(operations), (depth,)).tolist())
    for choice in choices:
        image = operations[choice](image, severity)
    return image
