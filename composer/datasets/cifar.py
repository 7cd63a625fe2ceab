"""CIFAR-10 dataloaders: 60,000 images of 32 x 32 pixels in 10 classes (Krizhevsky 2009)."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from composer import dist
from composer._numbers import whole_number
from composer.core.types import MemoryFormat
from composer.datasets._loading import make_loader, torchvision
from composer.datasets._streaming import make_streaming_loader
from composer.datasets.synthetic import SyntheticBatchPairDataset

__all__ = ["build_cifar10_dataloader", "build_streaming_cifar10_dataloader", "build_synthetic_cifar10_dataloader"]

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


def build_cifar10_dataloader(
    datadir: str,
    global_batch_size: int,
    is_train: bool = True,
    *,
    download: bool = True,
    drop_last: bool = True,
    shuffle: bool = True,
    **dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of CIFAR-10; batches are normalized images (B, 3, 32, 32) and classes (B,).

    For training, images are padded by 4 pixels, cropped at random and flipped horizontally with probability 0.5.

    Args:
        datadir: Folder of the data, in the layout of :class:`torchvision.datasets.CIFAR10`.
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to read the 50,000 training samples with augmentation, or the 10,000 test samples.
        download: Whether to download missing data; local rank 0 of each node does so.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size.
        MissingConditionalImportError: torchvision is not installed.
        RuntimeError: The folder does not contain the data, and ``download`` is false.

    >>> try:
    ...     build_cifar10_dataloader(str(tmp_path), 32, download=False)
    ... except (ImportError, RuntimeError):
    ...     print("not here")
    not here
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    with dist.run_local_rank_zero_first():
        data = torchvision("datasets", "build_cifar10_dataloader").CIFAR10(
            datadir, train=is_train, download=download, transform=_transform("build_cifar10_dataloader", is_train)
        )
    return make_loader(data, global_batch_size, shuffle=shuffle, drop_last=drop_last, **dataloader_kwargs)


def build_synthetic_cifar10_dataloader(
    global_batch_size: int,
    is_train: bool = True,
    *,
    num_unique_samples: int = 100,
    device: str = "cpu",
    memory_format: MemoryFormat | str = MemoryFormat.CONTIGUOUS_FORMAT,
    drop_last: bool = True,
    shuffle: bool = True,
    **dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of random data with the shapes and sizes of CIFAR-10.

    Args:
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to have as many samples as the training set, or as the test set.
        num_unique_samples: Number of distinct samples.
        device: Device of the samples.
        memory_format: Memory format of the images.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size.

    >>> x, y = next(iter(build_synthetic_cifar10_dataloader(16, memory_format="channels_last")))
    >>> x.shape, x.is_contiguous(memory_format=torch.channels_last)
    (torch.Size([16, 3, 32, 32]), True)
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    data = SyntheticBatchPairDataset(
        total_dataset_size=50_000 if is_train else 10_000,
        data_shape=(3, 32, 32),
        num_classes=10,
        num_unique_samples_to_create=whole_number("num_unique_samples", num_unique_samples, minimum=1),
        device=device,
        memory_format=memory_format,
    )
    return make_loader(
        data, global_batch_size, shuffle=shuffle, drop_last=drop_last, collate=data.collate, **dataloader_kwargs
    )


def build_streaming_cifar10_dataloader(
    global_batch_size: int,
    remote: str | None,
    *,
    local: str | None = None,
    split: str = "train",
    drop_last: bool = True,
    shuffle: bool = True,
    streaming_kwargs: dict[str, Any] | None = None,
    **dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of CIFAR-10 in mosaicml-streaming shards, which are fetched during training.

    Args:
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        remote: Folder or URI of the shards; None if they are in ``local``.
        local: Folder in which to cache them; a temporary one by default.
        split: Subfolder of both; images of ``"train"`` are augmented as by :func:`build_cifar10_dataloader`.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        streaming_kwargs: Additional arguments of ``streaming.vision.StreamingCIFAR10``, such as ``shuffle_seed``.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size.
        MissingConditionalImportError: mosaicml-streaming or torchvision is not installed.

    >>> try:
    ...     build_streaming_cifar10_dataloader(0, "s3://bucket/cifar10")
    ... except (ImportError, ValueError):
    ...     print("not here")
    not here
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    return make_streaming_loader(
        "StreamingCIFAR10",
        global_batch_size,
        remote,
        local,
        split=split,
        shuffle=shuffle,
        drop_last=drop_last,
        transform=_transform("build_streaming_cifar10_dataloader", split == "train"),
        streaming_kwargs=streaming_kwargs,
        **dataloader_kwargs,
    )


def _transform(purpose: str, is_train: bool) -> Any:
    transforms = torchvision("transforms", purpose)
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()] if is_train else []
    return transforms.Compose([*augment, transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)])
