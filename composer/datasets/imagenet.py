"""ImageNet: 1.3 million photographs in 1000 classes (Russakovsky et al. 2015, https://arxiv.org/abs/1409.0575)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

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
"""Of red, green and blue, from 0 to 255."""
IMAGENET_CHANNEL_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
"""Of red, green and blue, in the same unit."""


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
    """Return a loader of ImageNet, or of any images in a folder for each class.

    Batches are images of bytes (B, 3, crop_size, crop_size), which are normalised on the device, and classes (B,). For
    training, a random part of each image of 8 to 100 % of its area is resized to the crop, and half are mirrored.

    Args:
        datadir: Folder with ``train`` and ``val``, and in these a folder for each class.
        global_batch_size: Number of samples of all processes together; each gets its part.
        is_train: Whether to read ``train``, augmented, or ``val``, of which the middle is cropped.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        shuffle: Whether each pass is in another order.
        resize_size: Shorter side in pixels to which images are resized first; -1 leaves them as they are.
        crop_size: Side in pixels of what is trained on.
        dataloader_kwargs: Further arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the number of processes, or a size is no size.
        FileNotFoundError: There is no such folder.
        MissingConditionalImportError: torchvision is not installed.

    >>> try:
    ...     build_imagenet_dataloader(str(tmp_path), 32)
    ... except (ImportError, FileNotFoundError):
    ...     print("not here")
    not here
    """
    purpose = "build_imagenet_dataloader"
    folder = Path(datadir, "train" if is_train else "val")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"datadir must have a folder {folder.name!r} with a folder of images for each class, but there is no "
            f"{folder}."
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
    """Return a loader of random data that looks like ImageNet after its normalisation.

    Args:
        global_batch_size: Number of samples of all processes together; each gets its part.
        is_train: Whether there are as many samples as for training, or as for validation.
        crop_size: Side of the images in pixels.
        num_unique_samples: How many of them differ.
        device: Where they lie.
        memory_format: Order of their pixels in memory.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        shuffle: Whether each pass is in another order.
        dataloader_kwargs: Further arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the number of processes.

    >>> spec = build_synthetic_imagenet_dataloader(4, crop_size=32, num_unique_samples=4)
    >>> spec.num_samples, next(iter(spec.dataloader))[0].shape
    (1281167, torch.Size([4, 3, 32, 32]))
    """
    data = SyntheticBatchPairDataset(
        total_dataset_size=1_281_167 if is_train else 50_000,
        data_shape=(3, crop_size, crop_size),
        num_classes=1000,
        num_unique_samples_to_create=num_unique_samples,
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
    """Return a loader of ImageNet in the shards of mosaicml-streaming, fetched while training goes on.

    Args:
        global_batch_size: Number of samples of all processes together; each gets its part.
        remote: Folder or URI of the shards; None where they lie in ``local``.
        local: Folder to keep them in; a temporary one by default.
        split: Folder below both; images of ``"train"`` are augmented as by :func:`build_imagenet_dataloader`.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        shuffle: Whether each pass is in another order.
        resize_size: Shorter side in pixels to which images are resized first; -1 leaves them as they are.
        crop_size: Side in pixels of what is trained on.
        streaming_kwargs: Further arguments of ``streaming.vision.StreamingImageNet``, such as ``shuffle_seed``.
        dataloader_kwargs: Further arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the number of processes, or a size is no size.
        MissingConditionalImportError: mosaicml-streaming or torchvision is not installed.

    >>> try:
    ...     build_streaming_imagenet1k_dataloader(0, "s3://bucket/imagenet")
    ... except (ImportError, ValueError):
    ...     print("not here")
    not here
    """
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


def _transform(purpose: str, is_train: bool, resize_size: int, crop_size: int) -> Any:
    for name, size in (("crop_size", crop_size), ("resize_size", resize_size)):
        if size < 1 and (name, size) != ("resize_size", -1):
            raise ValueError(f"{name} must be a number of pixels, but got {size!r}; resize_size may be -1 for none.")
    transforms = torchvision("transforms", purpose)
    resize = [transforms.Resize(resize_size)] if resize_size > 0 else []
    if is_train:
        crop = [transforms.RandomResizedCrop(crop_size, scale=(0.08, 1.0)), transforms.RandomHorizontalFlip()]
    else:
        crop = [transforms.CenterCrop(crop_size)]
    return transforms.Compose([*resize, *crop])
