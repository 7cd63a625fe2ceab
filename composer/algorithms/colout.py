"""ColOut: drop random rows and columns of pixels, so that images get smaller and training faster.

Images keep ``int((1 - p_row) * H)`` rows and ``int((1 - p_col) * W)`` columns in their order: the defaults drop 28 % of
the pixels. The slight distortion augments the data, and the network computes less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from composer import trees
from composer._lazy import import_extra
from composer._numbers import in_unit_interval
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

KeptIndices: TypeAlias = tuple[Tensor, Tensor]
"""Indices of the rows, (h,) or (B, h), and columns, (w,) or (B, w), to keep."""


def colout_batch(
    sample: Any,
    p_row: float = 0.15,
    p_col: float = 0.15,
    resize_target: bool | str = "auto",
    per_sample: bool = False,
) -> Any:
    """Drop random rows and columns of images.

    Args:
        sample: Images, (B, C, H, W) or (C, H, W), of any dtype; or a PIL image; or a pair of them and a target,
            each of which may be a collection. All images of a collection lose the same rows and columns.
        p_row: Fraction of the rows to drop, from 0 to 1.
        p_col: Fraction of the columns to drop, from 0 to 1.
        resize_target: Whether the target loses them too. ``"auto"`` does so for targets that have the height and
            width of the images: masks (B, H, W) or (B, C, H, W).
        per_sample: Whether to sample different rows and columns for each image of a batch.

    Returns:
        The input with smaller images; a pair if the input is a pair.

    Raises:
        ValueError: An argument is out of range, the sample is neither an image nor a pair, or the target must be
            resized but does not have the size of the images.

    >>> colout_batch(torch.zeros(2, 3, 20, 40), p_row=0.15, p_col=0.5).shape
    torch.Size([2, 3, 17, 20])
    """
    in_unit_interval("p_row", p_row)
    in_unit_interval("p_col", p_col)
    _check_resize_target(resize_target)
    if not isinstance(sample, (tuple, list)):
        kept = _sample_kept(sample, p_row, p_col, per_sample)
        return trees.map_leaves(lambda leaf: _keep(leaf, kept), sample)
    pair = cast("Sequence[Any]", sample)
    if len(pair) != 2:
        raise ValueError(f"sample must be an input or a pair of an input and a target, but has {len(pair)} elements.")
    input, target = pair
    kept = _sample_kept(input, p_row, p_col, per_sample)
    size, ndim = _size(input), _ndim(input)

    def resize(leaf: Any) -> Any:
        matches = _is_image(leaf) and _ndim(leaf) >= ndim - 1 and _size(leaf) == size
        if resize_target is True and not matches:
            shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ValueError(
                f"resize_target=True requires targets of the height and width of the images, {size}, but got {shape}. "
                f"Use resize_target='auto' to resize only matching targets."
            )
        return _keep(leaf, kept) if matches else leaf

    input = trees.map_leaves(lambda leaf: _keep(leaf, kept), input)
    return input, target if resize_target is False else trees.map_leaves(resize, target)


class ColOutTransform(nn.Module):
    """Dataset transform that applies :func:`colout_batch` to each sample.

    Args:
        p_row: Fraction of the rows to drop, from 0 to 1.
        p_col: Fraction of the columns to drop, from 0 to 1.
        resize_target: Whether the target of a pair loses them too, see :func:`colout_batch`.

    Raises:
        ValueError: An argument is out of range.

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
    """Applies :func:`colout_batch` to each batch on the device, or to each sample in the dataset.

    When to use it:
        If convolutions over many pixels take most of the time and you can trade a little accuracy for speed; in long
        runs it helps as an augmentation.

    When not to:
        For models with a fixed number of positions (vision transformers with learned position embeddings), and for
        small images, where each row matters. Progressive resizing saves more and costs less accuracy.

    How to choose:
        0.15 drops 28 % of the pixels. Use 0.05 in long runs. ``per_sample=True`` augments more;
        ``batch=False`` moves the work to the DataLoader and supports images of different sizes.

    Cost:
        One gather over the batch; all later layers process ``(1 - p_row) * (1 - p_col)`` of the pixels.

    Args:
        p_row: Fraction of the rows to drop, from 0 (none) to 1.
        p_col: Fraction of the columns to drop.
        batch: Whether to process batches on the device, which costs the least. Otherwise a
            :class:`ColOutTransform` is added to the dataset when training starts, and each image loses different rows
            and columns; the training data must then be a :class:`torch.utils.data.DataLoader` over a torchvision
            ``VisionDataset`` or a similar dataset with the attribute ``transform``.
        resize_target: Whether targets lose the same rows and columns, see :func:`colout_batch`; only with ``batch``.
        input_key: Key of the images in the batch, or a list of keys.
        target_key: Key of the target, or a list of keys.
        per_sample: Whether to sample different rows and columns for each image of a batch.

    Raises:
        ValueError: An argument is out of range.
        NotImplementedError: ``resize_target=True`` with ``batch=False``: an image transform does not get the target.
        TypeError: At the start of training, the dataset does not accept a transform.

    >>> ColOut(p_row=0.15, p_col=0.15).__traits__.slot.name
    'AUGMENT'
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank samples rows and columns for its shard of the batch.",
        neutral={"p_row": 0.0, "p_col": 0.0},
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
                "resize_target=True requires batch=True: with batch=False only images are transformed, in the "
                "dataset. Or add a ColOutTransform to the joint transform of your dataset."
            )
        self.input_key = input_key
        self.target_key = target_key
        self.per_sample = per_sample
        self._transform = DatasetTransform("ColOut(batch=False)", remedy="Use ColOut(batch=True).")

    def __listens__(self, event: Event) -> bool:
        """Subscribe to the batch event or to the dataset event."""
        return super().__listens__(event) and event is not (Event.FIT_START if self.batch else Event.AFTER_DATALOADER)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Add the transform to the dataset."""
        self._transform.add(state, ColOutTransform(self.p_row, self.p_col, self.resize_target))

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Shrink the images of the batch."""
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


def _sample_kept(input: Any, p_row: float, p_col: float, per_sample: bool) -> KeptIndices:
    """Sample the rows and columns to keep, on the device of the images."""
    first = next(trees.leaves(input), None)
    if not _is_image(first):
        raise ValueError(f"sample must be an image or a batch of images, but it is of type {type(input).__name__}.")
    height, width = _size(input)
    device = first.device if isinstance(first, Tensor) else torch.device("cpu")
    batch = first.shape[0] if per_sample and isinstance(first, Tensor) and first.ndim > 3 else None
    return _choose(height, p_row, batch, device), _choose(width, p_col, batch, device)


def _choose(side: int, rate: float, batch: int | None, device: torch.device) -> Tensor:
    """Sample the sorted indices to keep along one dimension, for all samples or per sample."""
    # The tolerance undoes rounding: of ten, (1 - 0.9) * 10 keeps one.
    number = max(math.floor((1 - rate) * side + 1e-6), 1)
    if batch is None:
        return torch.randperm(side, device=device)[:number].sort().values
    return torch.rand(batch, side, device=device).topk(number).indices.sort().values


def _keep(image: Any, kept: KeptIndices) -> Any:
    """Select the rows and columns to keep."""
    if not isinstance(image, Tensor):
        return _keep_pillow(image, kept)
    rows, columns = kept
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


def _keep_pillow(image: Any, kept: KeptIndices) -> Any:
    numpy = import_extra("numpy", "vision", "ColOut of PIL images")
    pillow = import_extra("PIL.Image", "vision", "ColOut of PIL images", install="pillow")
    rows, columns = (indices.numpy() for indices in kept)
    result = pillow.fromarray(numpy.asarray(image)[rows][:, columns])
    if image.mode == "P":
        result.putpalette(image.getpalette())
    return result


def _is_image(leaf: Any) -> bool:
    return is_pillow_image(leaf) or (isinstance(leaf, Tensor) and leaf.ndim > 1)


def _ndim(input: Any) -> int:
    """Return the number of dimensions; that of a PIL image includes its channels."""
    first = next(trees.leaves(input))
    return first.ndim if isinstance(first, Tensor) else 3


def _size(input: Any) -> tuple[int, int]:
    """Return height and width."""
    first = next(trees.leaves(input))
    if not isinstance(first, Tensor):
        return first.size[1], first.size[0]
    return (first.shape[0], first.shape[1]) if first.ndim == 2 and input is first else image_size(input)
