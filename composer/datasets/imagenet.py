"""ImageNet dataloaders: 1.3 million images in 1000 classes (Russakovsky et al. 2015, https://arxiv.org/abs/1409.0575)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from composer._numbers import whole_number
from composer.core.data_spec import DataSpec
from composer.core.types import MemoryFormat
from composer.datasets._loading import make_loader, torchvision
from composer.datasets._streaming import make_streaming_loader
from composer.datasets.synthetic import SyntheticBatchPairDataset
from composer.datasets.utils import NormalizationFn, pil_image_collate

__all__ = [
    "IMAGENET_CHANNEL_MEAN",
    "IMAGENET_CHANNEL_STD",
    "build_imagenet_dataloader",
    "build_streaming_imagenet1k_dataloader",
    "build_synthetic_imagenet_dataloader",
]

IMAGENET_CHANNEL_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
"""Mean of the red, green and blue channels, from 0 to 255."""
IMAGENET_CHANNEL_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
"""Standard deviation of the red, green and blue channels, in the same unit."""


def build_imagenet_dataloader(
    datadir: str,
    global_batch_size: int,
    is_train: bool = True,
    *,
    drop_last: bool = True,
    shuffle: bool = True,
    resize_size: int = -1,
    crop_size: int = 224,
    **dataloader_kwargs: Any,
) -> DataSpec:
    """Return a loader of ImageNet, or of any images with one folder per class.

    Batches are uint8 images (B, 3, crop_size, crop_size), which are normalized on the device, and classes (B,). For
    training, a random crop of 8 to 100 % of the area of an image is resized to ``crop_size``, and flipped horizontally
    with probability 0.5.

    Args:
        datadir: Folder with ``train`` and ``val``, each of which has one folder per class.
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to read ``train`` with augmentation, or ``val`` with a center crop.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        resize_size: Length in pixels to which the shorter side is resized first; -1 for no resizing.
        crop_size: Side of the cropped images in pixels.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size, or a size is not valid.
        FileNotFoundError: The folder does not exist.
        MissingConditionalImportError: torchvision is not installed.

    >>> try:
    ...     build_imagenet_dataloader(str(tmp_path), 32)
    ... except (ImportError, FileNotFoundError):
    ...     print("not here")
    not here
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    purpose = "build_imagenet_dataloader"
    resize_size, crop_size = _pixels(resize_size, crop_size)
    folder = Path(datadir, "train" if is_train else "val")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"datadir must contain a folder {folder.name!r} with one folder of images per class, but {folder} does "
            f"not exist."
        )
    transform = _transform(purpose, is_train, resize_size, crop_size)
    data = torchvision("datasets", purpose).ImageFolder(folder, transform)
    loader = make_loader(
        data,
        global_batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        collate=pil_image_collate,
        **dataloader_kwargs,
    )
    return _normalized(loader)


def build_synthetic_imagenet_dataloader(
    global_batch_size: int,
    is_train: bool = True,
    *,
    crop_size: int = 224,
    num_unique_samples: int = 100,
    device: str = "cpu",
    memory_format: MemoryFormat | str = MemoryFormat.CONTIGUOUS_FORMAT,
    drop_last: bool = True,
    shuffle: bool = True,
    **dataloader_kwargs: Any,
) -> DataSpec:
    """Return a loader of random data with the shapes and sizes of normalized ImageNet.

    Args:
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to have as many samples as the training set, or as the validation set.
        crop_size: Side of the images in pixels.
        num_unique_samples: Number of distinct samples.
        device: Device of the samples.
        memory_format: Memory format of the images.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size.

    >>> spec = build_synthetic_imagenet_dataloader(4, crop_size=32, num_unique_samples=4)
    >>> spec.num_samples, next(iter(spec.dataloader))[0].shape
    (1281167, torch.Size([4, 3, 32, 32]))
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    crop_size = whole_number("crop_size", crop_size, minimum=1)
    data = SyntheticBatchPairDataset(
        total_dataset_size=1_281_167 if is_train else 50_000,
        data_shape=(3, crop_size, crop_size),
        num_classes=1000,
        num_unique_samples_to_create=whole_number("num_unique_samples", num_unique_samples, minimum=1),
        device=device,
        memory_format=memory_format,
    )
    return DataSpec(
        make_loader(
            data, global_batch_size, shuffle=shuffle, drop_last=drop_last, collate=data.collate, **dataloader_kwargs
        )
    )


def build_streaming_imagenet1k_dataloader(
    global_batch_size: int,
    remote: str | None,
    *,
    local: str | None = None,
    split: str = "train",
    drop_last: bool = True,
    shuffle: bool = True,
    resize_size: int = -1,
    crop_size: int = 224,
    streaming_kwargs: dict[str, Any] | None = None,
    **dataloader_kwargs: Any,
) -> DataSpec:
    """Return a loader of ImageNet in mosaicml-streaming shards, which are fetched during training.

    Args:
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        remote: Folder or URI of the shards; None if they are in ``local``.
        local: Folder in which to cache them; a temporary one by default.
        split: Subfolder of both; images of ``"train"`` are augmented as by :func:`build_imagenet_dataloader`.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        resize_size: Length in pixels to which the shorter side is resized first; -1 for no resizing.
        crop_size: Side of the cropped images in pixels.
        streaming_kwargs: Additional arguments of ``streaming.vision.StreamingImageNet``, such as ``shuffle_seed``.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size, or a size is not valid.
        MissingConditionalImportError: mosaicml-streaming or torchvision is not installed.

    >>> try:
    ...     build_streaming_imagenet1k_dataloader(0, "s3://bucket/imagenet")
    ... except (ImportError, ValueError):
    ...     print("not here")
    not here
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    resize_size, crop_size = _pixels(resize_size, crop_size)
    loader = make_streaming_loader(
        "StreamingImageNet",
        global_batch_size,
        remote,
        local,
        split=split,
        shuffle=shuffle,
        drop_last=drop_last,
        transform=_transform("build_streaming_imagenet1k_dataloader", split == "train", resize_size, crop_size),
        streaming_kwargs=streaming_kwargs,
        collate=pil_image_collate,
        **dataloader_kwargs,
    )
    return _normalized(loader)


def _normalized(loader: DataLoader[Any]) -> DataSpec:
    return DataSpec(loader, batch_transforms=NormalizationFn(IMAGENET_CHANNEL_MEAN, IMAGENET_CHANNEL_STD))


def _pixels(resize_size: int, crop_size: int) -> tuple[int, int]:
    """Check both sizes and return them."""
    resize_size = whole_number("resize_size", resize_size, minimum=None)
    crop_size = whole_number("crop_size", crop_size, minimum=None)
    for name, size in (("crop_size", crop_size), ("resize_size", resize_size)):
        if size < 1 and (name, size) != ("resize_size", -1):
            raise ValueError(
                f"{name} must be a positive number of pixels, but got {size!r} (resize_size may be -1: no resizing)."
            )
    return resize_size, crop_size


def _transform(purpose: str, is_train: bool, resize_size: int, crop_size: int) -> Any:
    transforms = torchvision("transforms", purpose)
    resize = [transforms.Resize(resize_size)] if resize_size > 0 else []
    if is_train:
        crop = [transforms.RandomResizedCrop(crop_size, scale=(0.08, 1.0)), transforms.RandomHorizontalFlip()]
    else:
        crop = [transforms.CenterCrop(crop_size)]
    return transforms.Compose([*resize, *crop])
