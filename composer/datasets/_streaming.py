"""What the builders of loaders of mosaicml-streaming's data sets share."""

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
    """Return a loader of one of streaming's data sets of images.

    Args:
        name: Its class in ``streaming.vision``.
        global_batch_size: Number of samples of all processes together.
        remote: Folder or URI of the shards; None where they lie in ``local``.
        local: Folder to keep them in.
        split: Folder below both.
        shuffle: Whether each pass is in another order.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        transform: Of each image.
        streaming_kwargs: Further arguments of the data set.
        collate: The ``collate_fn``, unless ``dataloader_kwargs`` has one.
        dataloader_kwargs: Further arguments of the loader.
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
    # It divides itself among the processes, and among the loader's workers.
    return DataLoader(data, batch_size, drop_last=drop_last, **dataloader_kwargs)
