"""Image batches: collate PIL images to uint8 tensors, and normalize them on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from composer.core.types import Batch

__all__ = ["NormalizationFn", "pil_image_collate"]


class NormalizationFn:
    """Normalize the images of a batch on their device.

        x' = (x - mean) / std    for each channel

    With ``DataSpec(loader, batch_transforms=NormalizationFn(mean, std))`` it runs on the device: images are copied as
    uint8, a quarter of the size of float32, and DataLoader workers have less to do.

    Args:
        mean: Mean of each channel, in the unit of the images: from 0 to 255 for uint8.
        std: Standard deviation of each channel, greater than 0, in the same unit.
        ignore_background: Whether to subtract 1 from the targets: class 0 becomes -1, which losses can ignore.

    Raises:
        ValueError: ``mean`` and ``std`` differ in length, or a standard deviation is not greater than 0.

    >>> images = torch.full((1, 3, 2, 2), 5, dtype=torch.uint8)
    >>> x, y = NormalizationFn((1, 3, 5), (2, 2, 2))((images, torch.tensor([4])))
    >>> x[0, :, 0, 0], y
    (tensor([2., 1., 0.]), tensor([4]))
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], ignore_background: bool = False) -> None:
        if len(mean) != len(std):
            raise ValueError(
                f"mean and std must have one value per channel, but have {len(mean)} and {len(std)}: {mean!r}, {std!r}."
            )
        if not all(value > 0 for value in std):
            raise ValueError(f"std must be greater than 0 in each channel, but got {std!r}.")
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.ignore_background = ignore_background
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with normalized images.

        Args:
            batch: Images (B, C, H, W) of any numeric dtype, and targets (B, ...); floating-point images keep their
                dtype, others become float32.

        Raises:
            ValueError: The number of channels differs from that of ``mean``.
        """
        images, targets = batch
        if images.shape[-3] != len(self.mean):
            raise ValueError(
                f"mean and std are for {len(self.mean)} channels, but the images have shape {tuple(images.shape)}; "
                f"expected (B, C, H, W)."
            )
        images = images if images.is_floating_point() else images.float()
        mean, std = self._values(images.device)
        images = (images - mean.to(images.dtype)) / std.to(images.dtype)
        return images, targets - 1 if self.ignore_background else targets

    def _values(self, device: torch.device) -> tuple[Tensor, Tensor]:
        # A copy from unpinned host memory synchronizes with the device, so it is made once.
        if device not in self._on_device:
            mean, std = torch.tensor([self.mean, self.std], device=device)[:, :, None, None].unbind()
            self._on_device[device] = mean, std
        return self._on_device[device]

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the cached device tensors from the pickle."""
        return {**vars(self), "_on_device": {}}


def pil_image_collate(
    batch: Sequence[tuple[Any, Any]], memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[Tensor, Tensor]:
    """Collate PIL images of equal size into a uint8 batch.

    Args:
        batch: An image and a target for each sample; a target is another image, whose pixels are classes, or a number.
        memory_format: Memory format of the images; channels-last is free, as PIL images have this layout.

    Returns:
        uint8 images (B, C, H, W), C being 1 for grayscale, and int64 targets (B,) or (B, H, W).

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
            f"The images of a batch must have the same size (height, width, channels), but got {sorted(shapes)}; crop "
            f"or resize them, and convert them to the same mode, such as image.convert('RGB')."
        )
    stacked = torch.stack(images).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    targets = [_classes(target) for _, target in batch]
    return stacked, torch.stack(targets)


def _pixels(image: Any) -> Tensor:
    """Return the pixels of an image, uint8 of shape (H, W, C)."""
    import numpy as np

    # A copy, since arrays of PIL images are read-only.
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels.unsqueeze(-1) if pixels.ndim == 2 else pixels


def _classes(target: Any) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(target, dtype=np.int64))
