"""ADE20K: 22,000 scenes with a class for each pixel (Zhou et al. 2017, https://arxiv.org/abs/1608.05442)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from composer._lazy import import_extra
from composer._numbers import whole_number
from composer._text import callable_or_none, one_of
from composer.core.data_spec import DataSpec
from composer.core.types import MemoryFormat
from composer.datasets._loading import make_loader
from composer.datasets._segmentation_transforms import EvalTransform, TrainTransform
from composer.datasets.imagenet import IMAGENET_CHANNEL_MEAN, IMAGENET_CHANNEL_STD
from composer.datasets.synthetic import SyntheticBatchPairDataset
from composer.datasets.utils import NormalizationFn, pil_image_collate

__all__ = ["ADE20k", "build_ade20k_dataloader", "build_synthetic_ade20k_dataloader"]

_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_SIZES = {"train": 20_206, "val": 2_000}
_NUM_CLASSES = 150


class ADE20k(Dataset[Any]):
    """The ADE20K semantic segmentation dataset: images and annotations as PIL images.

    Args:
        datadir: Folder with JPEG files in ``images/training`` and ``images/validation``, and PNG files of the same
            names under ``annotations``, whose pixels are class indices: 0 for unlabeled, 1 to 150 for the classes.
        split: ``"train"``, ``"val"``, or ``"test"``, which has no annotations.
        transform: ``(image, annotation) -> (image, annotation)``; for ``"test"``, ``(image) -> image``.

    Raises:
        ValueError: The split is not one of these.
        FileNotFoundError: The folder has no images of this split, or an image has no annotation.

    >>> try:
    ...     ADE20k(str(tmp_path))
    ... except FileNotFoundError:
    ...     print("not here")
    not here
    """

    def __init__(self, datadir: str, split: str = "train", transform: Callable[..., Any] | None = None) -> None:
        self.split = one_of("split", split, list(_SPLITS))
        self.transform = callable_or_none("transform", transform)
        self._images = sorted(Path(datadir, "images", _SPLITS[split]).glob("*.jpg"))
        if not self._images:
            raise FileNotFoundError(
                f"datadir must contain JPEG files in images/{_SPLITS[split]}, but {datadir} has none."
            )
        folder = Path(datadir, "annotations", _SPLITS[split])
        self._annotations = [] if split == "test" else [folder / f"{path.stem}.png" for path in self._images]
        missing = [path for path in self._annotations if not path.is_file()]
        if missing:
            raise FileNotFoundError(f"{len(missing)} images have no annotation, the first {missing[0]}.")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        """Return image and annotation, or only the image for ``"test"``."""
        pil: Any = import_extra("PIL.Image", "vision", "ADE20k")
        with pil.open(self._images[index]) as file:
            image = file.convert("RGB")
        if not self._annotations:
            return image if self.transform is None else self.transform(image)
        with pil.open(self._annotations[index]) as file:
            annotation = file.copy()
        return (image, annotation) if self.transform is None else self.transform(image, annotation)


def build_ade20k_dataloader(
    datadir: str,
    global_batch_size: int,
    is_train: bool = True,
    *,
    drop_last: bool = True,
    shuffle: bool = True,
    base_size: int = 512,
    min_resize_scale: float = 0.5,
    max_resize_scale: float = 2.0,
    final_size: int = 512,
    ignore_background: bool = True,
    **dataloader_kwargs: Any,
) -> DataSpec:
    """Return a loader of ADE20K; batches are images (B, 3, final_size, final_size) and int64 classes (B, ., .).

    For training, image and annotation are resized by a random factor, cropped so that, if possible, no class covers
    more than three quarters of the labeled pixels, flipped with probability 0.5, and padded; brightness, contrast and
    saturation are jittered. For evaluation, both are resized to the final size. Images are normalized on the device.

    Args:
        datadir: Folder with the layout of :class:`ADE20k`.
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to read ``"train"`` with augmentation, or ``"val"``.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        base_size: Side in pixels, multiplied by the random factor.
        min_resize_scale: The smallest factor.
        max_resize_scale: The largest factor.
        final_size: Side of the final images in pixels.
        ignore_background: Whether to map unlabeled pixels to -1, which losses ignore, and the classes to 0 to 149.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size, or a size or factor is not valid.
        FileNotFoundError: The folder has no images of the split.
        MissingConditionalImportError: Pillow is not installed.

    >>> try:
    ...     build_ade20k_dataloader(str(tmp_path), 4)
    ... except (ImportError, FileNotFoundError):
    ...     print("not here")
    not here
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    if is_train:
        transform: Any = TrainTransform(base_size, min_resize_scale, max_resize_scale, final_size)
    else:
        transform = EvalTransform(whole_number("final_size", final_size, minimum=1))
    loader = make_loader(
        ADE20k(datadir, "train" if is_train else "val", transform),
        global_batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        collate=pil_image_collate,
        **dataloader_kwargs,
    )
    normalize = NormalizationFn(IMAGENET_CHANNEL_MEAN, IMAGENET_CHANNEL_STD, ignore_background)
    return DataSpec(loader, batch_transforms=normalize)


def build_synthetic_ade20k_dataloader(
    global_batch_size: int,
    is_train: bool = True,
    *,
    final_size: int = 512,
    num_unique_samples: int = 100,
    device: str = "cpu",
    memory_format: MemoryFormat | str = MemoryFormat.CONTIGUOUS_FORMAT,
    drop_last: bool = True,
    shuffle: bool = True,
    **dataloader_kwargs: Any,
) -> DataSpec:
    """Return a loader of random data with the shapes and sizes of normalized ADE20K.

    Args:
        global_batch_size: Number of samples in a batch over all ranks; each rank loads its shard.
        is_train: Whether to have as many samples as the training set, or as the validation set.
        final_size: Side of images and annotations in pixels.
        num_unique_samples: Number of distinct samples.
        device: Device of the samples.
        memory_format: Memory format of the images.
        drop_last: Whether to drop the last, incomplete batch.
        shuffle: Whether to reshuffle the data in each epoch.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the world size.

    >>> x, y = next(
    ...     iter(build_synthetic_ade20k_dataloader(2, final_size=8, num_unique_samples=2).dataloader)
    ... )
    >>> x.shape, y.shape, y.dtype
    (torch.Size([2, 3, 8, 8]), torch.Size([2, 8, 8]), torch.int64)
    """
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    final_size = whole_number("final_size", final_size, minimum=1)
    data = SyntheticBatchPairDataset(
        total_dataset_size=_SIZES["train" if is_train else "val"],
        data_shape=(3, final_size, final_size),
        label_shape=(final_size, final_size),
        num_classes=_NUM_CLASSES,
        num_unique_samples_to_create=whole_number("num_unique_samples", num_unique_samples, minimum=1),
        device=device,
        memory_format=memory_format,
    )
    return DataSpec(
        make_loader(
            data, global_batch_size, shuffle=shuffle, drop_last=drop_last, collate=data.collate, **dataloader_kwargs
        )
    )
