"""Add a transform to the ``transform`` of a torchvision-style image dataset."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import DataLoader, Subset

from composer.warnings import NotIntendedUseWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["DatasetTransform", "add_vision_dataset_transform"]

# Names of transforms that convert a PIL image to a tensor, so that torchvision need not be installed.
_TO_TENSOR = frozenset({"PILToTensor", "ToImage", "ToImageTensor", "ToTensor"})


def add_vision_dataset_transform(
    dataset: Any, transform: Callable[[Any], Any], is_tensor_transform: bool = False
) -> None:
    """Add an image transform to the transforms of a dataset, in place.

    It is inserted before the step that converts to tensors, such as ``ToTensor``, or after the last such step if it is
    a transform of tensors; without such a step it is appended. The dataset gets new objects: a ``Compose`` that it
    shares with another dataset is not modified.

    Args:
        dataset: A torchvision ``VisionDataset``, or any object with the attribute ``transform``, a function or None.
        transform: ``(image) -> image``.
        is_tensor_transform: Whether it operates on tensors rather than PIL images.

    Raises:
        TypeError: The dataset does not accept a transform.

    >>> class Images:
    ...     transform = None
    >>> dataset = Images()
    >>> add_vision_dataset_transform(dataset, abs)
    >>> dataset.transform(-3)
    3
    """
    if not hasattr(dataset, "transform") or isinstance(dataset, type):
        raise TypeError(
            f"dataset must be a torchvision VisionDataset or have the attribute 'transform', but it is of type "
            f"{type(dataset).__name__}."
        )
    joint: Any = getattr(dataset, "transforms", None)
    if dataset.transform is None and callable(joint) and not hasattr(joint, "transform"):
        # Given as one function of image and target, which cannot be inspected.
        dataset.transforms = _Joint(joint, transform)
        return
    dataset.transform = _inserted(dataset.transform, transform, is_tensor_transform)
    if hasattr(joint, "transform"):
        pair: Any = copy.copy(joint)
        pair.transform = dataset.transform
        dataset.transforms = pair
    elif hasattr(dataset, "transforms") and joint is None:
        dataset.transforms = _ImageOnly(dataset.transform)


class DatasetTransform:
    """Adds a transform to the training dataset, once.

    Args:
        name: The name of the algorithm, for error messages.
        remedy: What to do if the dataset does not accept a transform.

    >>> DatasetTransform("ColOut", "Use ColOut(batch=True).").name
    'ColOut'
    """

    def __init__(self, name: str, remedy: str) -> None:
        self.name = name
        self.remedy = remedy
        self._done: list[Any] = []

    def add(self, state: State, transform: Callable[[Any], Any]) -> None:
        """Add the transform to the dataset, unless it was added before.

        Args:
            state: The state of the run.
            transform: ``(image) -> image``.

        Raises:
            TypeError: The training data is not a ``DataLoader``, or its dataset does not accept a transform.
        """
        loader = state.train_dataloader
        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"{self.name} adds a transform to the dataset of a torch.utils.data.DataLoader, but the training data "
                f"is of type {type(loader).__name__}. {self.remedy}"
            )
        dataset: Any = cast("Any", loader).dataset
        if any(dataset is done for done in self._done):
            return
        if isinstance(dataset, Subset) or not hasattr(dataset, "transform"):
            why = ", whose parent dataset would be changed as well" if isinstance(dataset, Subset) else ""
            raise TypeError(
                f"{self.name} adds a transform to a torchvision VisionDataset, or a similar one with the attribute "
                f"'transform', but the dataset is of type {type(dataset).__name__}{why}. {self.remedy} Or add a "
                f"{type(transform).__name__} to the transform of your dataset."
            )
        for evaluator in state.evaluators:
            if getattr(evaluator.dataloader.dataloader, "dataset", None) is dataset:
                warnings.warn(
                    f"{self.name} adds a transform to a dataset that the evaluator {evaluator.label!r} uses too: its "
                    f"images will be augmented as well. Use a separate dataset for evaluation.",
                    NotIntendedUseWarning,
                    stacklevel=2,
                )
        add_vision_dataset_transform(dataset, transform)
        self._done.append(dataset)


class _Chain:
    """A sequence of transforms, if there is no ``Compose`` to copy; a class, so that workers can unpickle it."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transforms!r})"


class _Joint:
    """A joint transform of image and target, followed by a transform of the image."""

    def __init__(self, joint: Callable[..., Any], transform: Callable[[Any], Any]) -> None:
        self.joint, self.last = joint, transform

    def __call__(self, image: Any, target: Any) -> tuple[Any, Any]:
        image, target = self.joint(image, target)
        return self.last(image), target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.joint!r}, {self.last!r})"


class _ImageOnly:
    """A transform of the image as a joint transform of image and target."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, image: Any, target: Any) -> tuple[Any, Any]:
        return self.transform(image), target

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r})"


def _inserted(existing: Any, transform: Callable[[Any], Any], is_tensor_transform: bool) -> Any:
    """Return the existing transforms with another one inserted."""
    if existing is None:
        return transform
    steps = getattr(existing, "transforms", None)
    is_compose = isinstance(steps, list)
    chain: list[Any] = list(cast("list[Any]", steps)) if is_compose else [existing]
    to_tensor = [index for index, step in enumerate(chain) if type(step).__name__ in _TO_TENSOR]
    if not to_tensor:
        index = len(chain)
    else:
        index = to_tensor[-1] + 1 if is_tensor_transform else to_tensor[0]
    chain.insert(index, transform)
    if not is_compose:
        return _Chain(chain)
    composed = copy.copy(existing)
    composed.transforms = chain
    return composed
