"""ColOut: leave out random rows and columns of pixels, which makes images smaller and training faster.

Images keep ``int((1 - p_row) * H)`` rows and ``int((1 - p_col) * W)`` columns in their order: at the default, 28 % of
the pixels go. What is left is slightly distorted, which augments; the network computes the less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from composer import trees
from composer._lazy import import_extra
from composer._text import in_unit_interval
from composer.algorithms._boxes import image_size
from composer.algorithms._images import is_channels_last
from composer.algorithms.utils.augmentation_common import is_pillow_image
from composer.algorithms.utils.vision_datasets import DatasetTransform
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ColOut", "ColOutTransform", "colout_batch"]

Places: TypeAlias = tuple[Tensor, Tensor]
"""The rows, (h,) or (B, h), and the columns, (w,) or (B, w), that are kept."""


def colout_batch(
    sample: Any,
    p_row: float = 0.15,
    p_col: float = 0.15,
    resize_target: bool | str = "auto",
    per_sample: bool = False,
) -> Any:
    """Leave out random rows and columns of images.

    Args:
        sample: Images, (B, C, H, W) or (C, H, W), of any dtype; or a PIL image; or a pair of them and a target,
            each of which may be a collection. All images of a collection lose the same rows and columns.
        p_row: Share of the rows left out, from 0 to 1.
        p_col: Share of the columns left out, from 0 to 1.
        resize_target: Whether the target loses them too. ``"auto"`` does so for targets that have the height and
            width of the images: masks (B, H, W) or (B, C, H, W).
        per_sample: Whether each image of a batch loses rows and columns of its own.

    Returns:
        What went in, with smaller images; a pair for a pair.

    Raises:
        ValueError: An argument is out of its range, the sample is no image or no pair, or the target is to be resized
            and does not have the size of the images.

    >>> colout_batch(torch.zeros(2, 3, 20, 40), p_row=0.15, p_col=0.5).shape
    torch.Size([2, 3, 17, 20])
    """
    in_unit_interval("p_row", p_row)
    in_unit_interval("p_col", p_col)
    _check_resize_target(resize_target)
    if not isinstance(sample, (tuple, list)):
        places = _draw(sample, p_row, p_col, per_sample)
        return trees.map_leaves(lambda leaf: _keep(leaf, places), sample)
    parts = cast("Sequence[Any]", sample)
    if len(parts) != 2:
        raise ValueError(f"sample must be an input or a pair of an input and a target, but has {len(parts)} parts.")
    input, target = parts
    places = _draw(input, p_row, p_col, per_sample)
    size, ndim = _size(input), _ndim(input)

    def resize(leaf: Any) -> Any:
        fits = _is_image(leaf) and _ndim(leaf) >= ndim - 1 and _size(leaf) == size
        if resize_target is True and not fits:
            shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ValueError(
                f"resize_target=True needs targets of the height and width of the images, {size}, but one is {shape}. "
                f"Use resize_target='auto' to resize those that fit."
            )
        return _keep(leaf, places) if fits else leaf

    input = trees.map_leaves(lambda leaf: _keep(leaf, places), input)
    return input, target if resize_target is False else trees.map_leaves(resize, target)


class ColOutTransform(nn.Module):
    """Applies :func:`colout_batch` to each sample, as a transform of a data set.

    Args:
        p_row: Share of the rows left out, from 0 to 1.
        p_col: Share of the columns left out, from 0 to 1.
        resize_target: Whether the target of a pair loses them too, see :func:`colout_batch`.

    Raises:
        ValueError: An argument is out of its range.

    >>> ColOutTransform(p_row=0.5, p_col=0.25)(torch.zeros(3, 8, 8)).shape
    torch.Size([3, 4, 6])
    """

    def __init__(self, p_row: float = 0.15, p_col: float = 0.15, resize_target: bool | str = "auto") -> None:
        super().__init__()
        self.p_row = in_unit_interval("p_row", p_row)
        self.p_col = in_unit_interval("p_col", p_col)
        self.resize_target = _check_resize_target(resize_target)

    def forward(self, sample: Any) -> Any:
        """Transform an image, or a pair of an image and a target.

        Args:
            sample: A PIL image or a tensor, (C, H, W), or a pair of one and a target.
        """
        return colout_batch(sample, self.p_row, self.p_col, self.resize_target)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"p_row={self.p_row}, p_col={self.p_col}, resize_target={self.resize_target!r}"


class ColOut(Algorithm):
    """Applies :func:`colout_batch` to each batch on the device, or to each sample in the data set.

    When to use it:
        Where the time goes into convolutions over many pixels, and a little accuracy may be given for it; as an
        augmentation it helps in long trainings.

    When not to:
        In models that know positions by the number of pixels (vision transformers with learned positions), and for
        small images, where each row counts. Progressive resizing saves more and costs less accuracy.

    How to choose:
        0.15 leaves out 28 % of the pixels. Take 0.05 in long trainings. ``per_sample=True`` augments more;
        ``batch=False`` moves the work to the loader and is for images of unequal sizes.

    Cost:
        One gather over the batch; all layers after it work on ``(1 - p_row) * (1 - p_col)`` of the pixels.

    Args:
        p_row: Share of the rows left out, from 0 (none) to 1.
        p_col: Share of the columns left out.
        batch: Whether to work on batches, after they came from the loader, which costs the least. Otherwise a
            :class:`ColOutTransform` is added to the data set when training starts, and each image loses rows and
            columns of its own; the training data must be a :class:`torch.utils.data.DataLoader` over a torchvision
            ``VisionDataset`` or one like it, with the attribute ``transform``.
        resize_target: Whether targets lose the same rows and columns, see :func:`colout_batch`; only with ``batch``.
        input_key: Where the images are in the batch, or a list of such keys.
        target_key: Where the target is, or a list of such keys.
        per_sample: Whether each image of a batch loses rows and columns of its own.

    Raises:
        ValueError: An argument is out of its range.
        NotImplementedError: ``resize_target=True`` with ``batch=False``: a transform of images sees no target.
        TypeError: At the start of training, the data set takes no transform.

    >>> ColOut(p_row=0.15, p_col=0.15).__traits__.slot.name
    'AUGMENT'
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        sharding=Sharding.PER_RANK,
        sharding_reason="Each process draws rows and columns for its own part of the batch.",
    )

    def __init__(
        self,
        p_row: float = 0.15,
        p_col: float = 0.15,
        batch: bool = True,
        resize_target: bool | str = "auto",
        input_key: trees.BatchKey = 0,
        target_key: trees.BatchKey = 1,
        per_sample: bool = False,
    ) -> None:
        self.p_row = in_unit_interval("p_row", p_row)
        self.p_col = in_unit_interval("p_col", p_col)
        self.batch = batch
        self.resize_target = _check_resize_target(resize_target)
        if resize_target is True and not batch:
            raise NotImplementedError(
                "resize_target=True needs batch=True: with batch=False the images alone are transformed, in the data "
                "set. Or put a ColOutTransform into the joint transform of your data set."
            )
        self.input_key = input_key
        self.target_key = target_key
        self.per_sample = per_sample
        self._transform = DatasetTransform("ColOut(batch=False)", remedy="Use ColOut(batch=True).")

    def __listens__(self, event: Event) -> bool:
        """Act on batches, or on the data set."""
        return super().__listens__(event) and event is not (Event.FIT_START if self.batch else Event.AFTER_DATALOADER)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Add the transform to the data set."""
        self._transform.add(state, ColOutTransform(self.p_row, self.p_col, self.resize_target))

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Make the images of the batch smaller."""
        if self.p_row == self.p_col == 0:
            return
        pair = (state.batch_get_item(self.input_key), state.batch_get_item(self.target_key))
        input, target = colout_batch(pair, self.p_row, self.p_col, self.resize_target, self.per_sample)
        state.batch_set_item(self.input_key, input)
        if target is not pair[1]:
            state.batch_set_item(self.target_key, target)


def _check_resize_target(resize_target: bool | str) -> bool | str:
    if not isinstance(resize_target, bool) and resize_target != "auto":
        raise ValueError(f"resize_target must be True, False or 'auto', but got {resize_target!r}.")
    return resize_target


def _draw(input: Any, p_row: float, p_col: float, per_sample: bool) -> Places:
    """Draw what is kept, on the device of the images."""
    first = next(trees.leaves(input), None)
    if not _is_image(first):
        raise ValueError(f"sample must be an image or a batch of images, but it is of type {type(input).__name__}.")
    height, width = _size(input)
    device = first.device if isinstance(first, Tensor) else torch.device("cpu")
    batch = first.shape[0] if per_sample and isinstance(first, Tensor) and first.ndim > 3 else None
    return _choose(height, p_row, batch, device), _choose(width, p_col, batch, device)


def _choose(side: int, share: float, batch: int | None, device: torch.device) -> Tensor:
    """Draw the sorted places that are kept along one side, for all samples or for each."""
    # The slack undoes rounding: of ten, (1 - 0.9) * 10 keeps one.
    number = max(math.floor((1 - share) * side + 1e-6), 1)
    if batch is None:
        return torch.randperm(side, device=device)[:number].sort().values
    return torch.rand(batch, side, device=device).topk(number).indices.sort().values


def _keep(image: Any, places: Places) -> Any:
    """The pixels at the rows and columns that are kept."""
    if not isinstance(image, Tensor):
        return _keep_pillow(image, places)
    rows, columns = places
    flat = (rows.unsqueeze(-1) * image.shape[-1] + columns.unsqueeze(-2)).flatten(-2)
    size = (rows.shape[-1], columns.shape[-1])
    if is_channels_last(image):
        pixels = image.permute(0, 2, 3, 1).flatten(1, 2)
        index = flat.view(-1, flat.shape[-1], 1).expand(pixels.shape[0], -1, pixels.shape[2])
        return pixels.gather(1, index).unflatten(1, size).permute(0, 3, 1, 2)
    # One gather over pixels takes a quarter of the time of selecting rows, then columns.
    pixels = image.flatten(-2)
    index = flat.view(-1, *[1] * (pixels.ndim - 2), flat.shape[-1]) if pixels.ndim > 1 else flat
    return pixels.gather(-1, index.expand(*pixels.shape[:-1], -1)).unflatten(-1, size)


def _keep_pillow(image: Any, places: Places) -> Any:
    numpy = import_extra("numpy", "vision", "ColOut of PIL images")
    pillow = import_extra("PIL.Image", "vision", "ColOut of PIL images", install="pillow")
    rows, columns = (part.numpy() for part in places)
    made = pillow.fromarray(numpy.asarray(image)[rows][:, columns])
    if image.mode == "P":
        made.putpalette(image.getpalette())
    return made


def _is_image(leaf: Any) -> bool:
    return is_pillow_image(leaf) or (isinstance(leaf, Tensor) and leaf.ndim > 1)


def _ndim(input: Any) -> int:
    """Number of dimensions; that of a PIL image counts its channels."""
    first = next(trees.leaves(input))
    return first.ndim if isinstance(first, Tensor) else 3


def _size(input: Any) -> tuple[int, int]:
    """Height and width."""
    first = next(trees.leaves(input))
    if not isinstance(first, Tensor):
        return first.size[1], first.size[0]
    return (first.shape[0], first.shape[1]) if first.ndim == 2 and input is first else image_size(input)
