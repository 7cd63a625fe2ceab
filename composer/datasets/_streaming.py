"""Build dataloaders of mosaicml-streaming's vision datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from composer._lazy import import_extra
from composer.datasets._loading import batch_size_per_rank

__all__ = ["make_streaming_loader"]


def make_streaming_loader(
    name: str,
    global_batch_size: int,
    remote: str | None,
    local: str | None,
    *,
    split: str,
    shuffle: bool,
    drop_last: bool,
    transform: Any,
    streaming_kwargs: dict[str, Any] | None,
    collate: Callable[[Any], Any] | None = None,
    **dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of a vision dataset of mosaicml-streaming.

    Args:
        name: Class name in ``streaming.vision``.
        global_batch_size: Number of samples in a batch over all ranks.
        remote: Folder or URI of the shards; None if they are in ``local``.
        local: Folder in which to cache them.
        split: Subfolder of both.
        shuffle: Whether to reshuffle the data in each epoch.
        drop_last: Whether to drop the last, incomplete batch.
        transform: Applied to each image.
        streaming_kwargs: Additional arguments of the dataset.
        collate: Default of ``collate_fn``.
        dataloader_kwargs: Additional arguments of the loader.
    """
    batch_size = batch_size_per_rank(global_batch_size)
    vision: Any = import_extra("streaming.vision", "streaming", f"streaming.vision.{name}")
    data = getattr(vision, name)(
        local=local,
        remote=remote,
        split=split,
        shuffle=shuffle,
        transform=transform,
        batch_size=batch_size,
        **(streaming_kwargs or {}),
    )
    dataloader_kwargs.setdefault("collate_fn", collate)
    # The dataset shards itself over ranks and DataLoader workers.
    return DataLoader(data, batch_size, drop_last=drop_last, **dataloader_kwargs)
