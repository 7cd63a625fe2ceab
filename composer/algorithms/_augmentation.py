"""Base classes of AugMix and RandAugment: augment PIL images or tensors, in the dataset or on the device."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer import trees
from composer.algorithms.utils._batched import OPERATIONS, from_bytes
from composer.algorithms.utils.augmentation_common import is_pillow_image, map_pillow_function
from composer.algorithms.utils.augmentation_primitives import AugmentationFn, operations_of
from composer.algorithms.utils.vision_datasets import DatasetTransform
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.traits import Traits
from composer.warnings import NotIntendedUseWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ImageAugmentation", "ImageTransform", "augment", "augment_tensors", "check_range", "tensor_names"]


def tensor_names(operations: Sequence[AugmentationFn]) -> list[str] | None:
    """Return the names of operations that support tensors, or None if one of them accepts only PIL images.

    >>> tensor_names(operations_of("safe"))[:2], tensor_names([print])
    (['autocontrast', 'equalize'], None)
    """
    home = f"{__package__}.utils.augmentation_primitives"
    names = [
        operation.__name__
        for operation in operations
        if getattr(operation, "__module__", None) == home and operation.__name__ in OPERATIONS
    ]
    return names if len(names) == len(operations) else None


def augment(
    img: Any,
    operations: Sequence[AugmentationFn],
    edit_pillow: Callable[[Any], Any],
    edit_tensors: Callable[[list[str], int], Any],
) -> Any:
    """Augment PIL images or tensors; tensors image by image if an operation accepts only PIL images.

    Args:
        img: A PIL image, a tensor of images, or a collection of such tensors.
        operations: The operations to apply.
        edit_pillow: Augments a PIL image.
        edit_tensors: Called with the names of the operations and the number of images; augments the tensors ``img``.

    >>> augment(torch.zeros(5, 3, 8, 8), operations_of("safe"), print, lambda names, size: (names[0], size))
    ('autocontrast', 5)
    """
    if is_pillow_image(img):
        return edit_pillow(img)
    names, size = tensor_names(operations), _batch_size(img)
    if names is None:
        return trees.map_tensors(lambda tensor: map_pillow_function(edit_pillow, tensor), img)
    return edit_tensors(names, size)


def _batch_size(input: Any) -> int:
    """Return the number of images in a tensor or a collection of tensors."""
    for leaf in trees.leaves(input):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.ndim not in (3, 4):
            raise ValueError(f"img must be (C, H, W) or (B, C, H, W), but it has the shape {tuple(leaf.shape)}.")
        return leaf.shape[0] if leaf.ndim == 4 else 1
    raise TypeError(f"img must be a PIL image or a tensor of images, but it is of type {type(input).__name__}.")


def augment_tensors(input: Any, edit: Callable[[Tensor], Tensor], value_range: tuple[float, float]) -> Any:
    """Edit the tensors of an input, each as a batch of images; ``edit`` returns values from 0 to 255.

    >>> augment_tensors(torch.zeros(1, 2, 2), lambda images: images + 51, (0.0, 1.0))
    tensor([[[0.2000, 0.2000],
             [0.2000, 0.2000]]])
    """

    def augment(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() and tensor.dtype != torch.uint8:
            raise TypeError(f"img must be uint8 or of a floating dtype, but it is {tensor.dtype}.")
        batch = tensor if tensor.ndim == 4 else tensor.unsqueeze(0)
        made = from_bytes(edit(batch), batch, value_range)
        return made if tensor.ndim == 4 else made.squeeze(0)

    return trees.map_tensors(augment, input)


def check_range(value_range: tuple[float, float]) -> tuple[float, float]:
    """Validate and return the minimum and maximum value of images.

    >>> check_range((0, 1))
    (0.0, 1.0)
    """
    low, high = (float(value) for value in value_range)
    if not low < high:
        raise ValueError(f"value_range must be (lowest, highest) with lowest < highest, but got {value_range!r}.")
    return low, high


class ImageTransform(nn.Module):
    """Abstract base of dataset transforms that augment an image or a batch of images.

    Subclasses implement :meth:`augment`. The attributes are the arguments, and appear in ``repr``.
    """

    def __init__(self, augmentation_set: str | Sequence[AugmentationFn], value_range: tuple[float, float]) -> None:
        super().__init__()
        operations_of(augmentation_set)
        self.augmentation_set = augmentation_set
        self.value_range = check_range(value_range)

    def augment(self, img: Any) -> Any:
        """Return the augmented image or images."""
        raise NotImplementedError

    def forward(self, img: Any) -> Any:
        """Augment an image, or each image of a batch.

        Args:
            img: A PIL image; or images as a tensor, (C, H, W) or (B, C, H, W), or a collection of such tensors.
        """
        if img is None:
            raise TypeError("img must be a PIL image or a tensor of images, but it is None.")
        return self.augment(img)

    def extra_repr(self) -> str:
        """Show the arguments, except for the value range."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "value_range"]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class ImageAugmentation(Algorithm):
    """Abstract base of algorithms that augment the images of the dataset, or the batches on the device.

    Subclasses return the augmentation of an image or a batch in :meth:`transform`.
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank samples operations for its data shard.",
    )

    def __init__(
        self,
        augmentation_set: str | Sequence[AugmentationFn],
        on_device: bool,
        input_key: trees.BatchKey,
        value_range: tuple[float, float],
    ) -> None:
        self.augmentation_set = augmentation_set
        self.on_device = on_device
        self.input_key = input_key
        self.value_range = check_range(value_range)
        names = tensor_names(operations_of(augmentation_set))
        if on_device and names is None:
            raise ValueError(
                f"With on_device=True, augmentation_set must contain only operations of composer.algorithms.utils, "
                f"since others require PIL images; got {augmentation_set!r}."
            )
        self._to_dataset = DatasetTransform(
            type(self).__name__, remedy=f"Use {type(self).__name__}(on_device=True) to augment batches on the device."
        )
        self._range_is_checked = False

    def transform(self) -> nn.Module:
        """Return the transform for an image or a batch of images."""
        raise NotImplementedError

    def __listens__(self, event: Event) -> bool:
        """Subscribe to the batch event or to the dataset event."""
        idle = Event.FIT_START if self.on_device else Event.AFTER_DATALOADER
        return super().__listens__(event) and event is not idle

    def fit_start(self, state: State, logger: Logger) -> None:
        """Add the transform to the dataset."""
        self._to_dataset.add(state, self.transform())

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Augment the batch."""
        input = state.batch_get_item(self.input_key)
        if not self._range_is_checked:
            self._range_is_checked = True
            self._warn_of_values(input)
        state.batch_set_item(self.input_key, self.transform()(input))

    def _warn_of_values(self, input: Any) -> None:
        """Warn of values that would be clamped. Synchronizes with the device, so only for the first batch."""
        low, high = self.value_range
        slack = 0.01 * (high - low)
        for leaf in trees.leaves(input):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            lowest, highest = (float(bound) for bound in torch.aminmax(leaf))
            if lowest < low - slack or highest > high + slack:
                warnings.warn(
                    f"{type(self).__name__}: images have values from {lowest:.3g} to {highest:.3g}, and those outside "
                    f"of value_range={self.value_range} are clamped. Normalize images after augmentation, for "
                    f"example in the model or in DataSpec(microbatch_transforms=...), or set value_range.",
                    NotIntendedUseWarning,
                    stacklevel=2,
                )
