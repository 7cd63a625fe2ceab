"""MNIST dataloaders: 70,000 handwritten digits of 28 x 28 pixels (LeCun et al. 1998, https://doi.org/10.1109/5.726791)."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from composer import dist
from composer._numbers import whole_number
from composer.core.types import MemoryFormat
from composer.datasets._loading import make_loader, torchvision
from composer.datasets.synthetic import SyntheticBatchPairDataset

__all__ = ["build_mnist_dataloader", "build_synthetic_mnist_dataloader"]

_MEAN, _STD = (0.1307,), (0.3081,)


def build_mnist_dataloader(
    datadir: str,
    global_batch_size: int,
    is_train: bool = True,
    *,
    download: bool = True,
    drop_last: bool = True,
    shuffle: bool = True,
    **dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of MNIST; batches are normalized images (B, 1, 28, 28) and classes (B,).

    Args:
        datadir: Folder of the data, in the layout of :class:`torchvision.datasets.MNIST`.
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to read the 60,000 training samples, or the 10,000 test samples.
        download: Whether to download missing data; local rank 0 of each node does so.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size.
        MissingConditionalImportError: torchvision is not installed.
        RuntimeError: The folder does not contain the data, and ``download`` is false.

    >>> try:
    ...     build_mnist_dataloader(str(tmp_path), 32, download=False)
    ... except (ImportError, RuntimeError):
    ...     print("not here")
    not here
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    transforms = torchvision("transforms", "build_mnist_dataloader")
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)])
    with dist.run_local_rank_zero_first():
        data = torchvision("datasets", "build_mnist_dataloader").MNIST(
            datadir, train=is_train, download=download, transform=transform
        )
    return make_loader(data, global_batch_size, shuffle=shuffle, drop_last=drop_last, **dataloader_kwargs)


def build_synthetic_mnist_dataloader(
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
    """Return a loader of random data with the shapes and sizes of MNIST.

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

    >>> x, y = next(iter(build_synthetic_mnist_dataloader(16)))
    >>> x.shape, y.shape
    (torch.Size([16, 1, 28, 28]), torch.Size([16]))
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    data = SyntheticBatchPairDataset(
        total_dataset_size=60_000 if is_train else 10_000,
        data_shape=(1, 28, 28),
        num_classes=10,
        num_unique_samples_to_create=whole_number("num_unique_samples", num_unique_samples, minimum=1),
        device=device,
        memory_format=memory_format,
    )
    return make_loader(
        data, global_batch_size, shuffle=shuffle, drop_last=drop_last, collate=data.collate, **dataloader_kwargs
    )
