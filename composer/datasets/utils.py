"""Images on their way to a model: from PIL to a batch of bytes, and from bytes to normalised numbers on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from composer.core.types import Batch

__all__ = ["NormalizationFn", "pil_image_collate"]


class NormalizationFn:
    """Normalises the images of a batch, where they are.

        x' = (x - mean) / std    for each channel

    As ``DataSpec(loader, batch_transforms=NormalizationFn(mean, std))`` it runs on the device: bytes travel there, a
    quarter of what normalised numbers would take, and the loader's workers have less to do.

    Args:
        mean: Of each channel, in the unit of the images: from 0 to 255 for bytes.
        std: Of each channel, greater than 0, in the same unit.
        ignore_background: Whether to take 1 off the targets: class 0 becomes -1, which losses can be told to ignore.

    Raises:
        ValueError: The two are of different lengths, or a standard deviation is not greater than 0.

    >>> images = torch.full((1, 3, 2, 2), 5, dtype=torch.uint8)
    >>> x, y = NormalizationFn((1, 3, 5), (2, 2, 2))((images, torch.tensor([4])))
    >>> x[0, :, 0, 0], y
    (tensor([2., 1., 0.]), tensor([4]))
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], ignore_background: bool = False) -> None:
        if len(mean) != len(std):
            raise ValueError(
                f"mean and std must have one number for each channel, but have {len(mean)} and {len(std)}: "
                f"{mean!r}, {std!r}."
            )
        if not all(value > 0 for value in std):
            raise ValueError(f"std must be greater than 0 in each channel, but got {std!r}.")
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.ignore_background = ignore_background
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with normalised images.

        Args:
            batch: Images (B, C, H, W) of any numeric dtype, and targets (B, ...); floating-point images keep their
                dtype, others become float32.

        Raises:
            ValueError: The images have another number of channels.
        """
        images, targets = batch
        if images.shape[-3] != len(self.mean):
            raise ValueError(
                f"mean and std are for {len(self.mean)} channels, but the images are of shape {tuple(images.shape)}; "
                f"they should be (B, C, H, W)."
            )
        images = images if images.is_floating_point() else images.float()
        mean, std = self._values(images.device)
        images = (images - mean.to(images.dtype)) / std.to(images.dtype)
        return images, targets - 1 if self.ignore_background else targets

    def _values(self, device: torch.device) -> tuple[Tensor, Tensor]:
        # A copy of numbers of the host waits for the device, so it is made once.
        if device not in self._on_device:
            mean, std = torch.tensor([self.mean, self.std], device=device)[:, :, None, None].unbind()
            self._on_device[device] = mean, std
        return self._on_device[device]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the copies behind."""
        return {**vars(self), "_on_device": {}}


def pil_image_collate(
    batch: Sequence[tuple[Any, Any]], memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[Tensor, Tensor]:
    """Make a batch of bytes of PIL images, all of one size.

    Args:
        batch: For each sample an image, and a target: another image (its pixels are classes), or a number.
        memory_format: Order of the images' pixels in memory; channels-last costs nothing, as images are so already.

    Returns:
        Images (B, C, H, W) of uint8, C being 1 for grey ones, and targets (B,) or (B, H, W) of int64.

    Raises:
        ValueError: The images differ in size or in their number of channels.

    >>> from PIL import Image
    >>> x, y = pil_image_collate([(Image.new("RGB", (4, 2)), 7), (Image.new("RGB", (4, 2)), 1)])
    >>> x.shape, x.dtype, y
    (torch.Size([2, 3, 2, 4]), torch.uint8, tensor([7, 1]))
    """
    images = [_pixels(image) for image, _ in batch]
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise ValueError(
            f"The images of a batch must have one size (height, width, channels), but have {sorted(shapes)}; crop or "
            f"resize them, and convert them to one mode, such as image.convert('RGB')."
        )
    stacked = torch.stack(images).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    targets = [_classes(target) for _, target in batch]
    return stacked, torch.stack(targets)


def _pixels(image: Any) -> Tensor:
    """The bytes of an image, (H, W, C)."""
    import numpy as np

    # A copy, since arrays of PIL cannot be written to.
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels.unsqueeze(-1) if pixels.ndim == 2 else pixels


def _classes(target: Any) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(target, dtype=np.int64))
