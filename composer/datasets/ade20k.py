"""ADE20K: 22,000 scenes with a class for each pixel (Zhou et al. 2017, https://arxiv.org/abs/1608.05442)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from composer._lazy import import_extra
from composer._text import one_of, positive
from composer.core.data_spec import DataSpec
from composer.core.types import MemoryFormat
from composer.datasets._loading import make_loader
from composer.datasets._scenes import ForEvaluation, ForTraining
from composer.datasets.imagenet import IMAGENET_CHANNEL_MEAN, IMAGENET_CHANNEL_STD
from composer.datasets.synthetic import SyntheticBatchPairDataset
from composer.datasets.utils import NormalizationFn, pil_image_collate

__all__ = ["ADE20k", "build_ade20k_dataloader", "build_synthetic_ade20k_dataloader"]

_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_SIZES = {"train": 20_206, "val": 2_000}
_NUM_CLASSES = 150


class ADE20k(Dataset[Any]):
    """The images of ADE20K with their annotations, as PIL images.

    Args:
        datadir: Folder with ``images/training`` and ``images/validation``, of JPEG files, and ``annotations`` with PNG
            files of the same names, whose pixels are classes: 0 for none, 1 to 150 for the others.
        split: ``"train"``, ``"val"``, or ``"test"``, which has no annotations.
        transform: ``(image, annotation) -> (image, annotation)``; of ``"test"`` ``(image) -> image``.

    Raises:
        ValueError: There is no such split.
        FileNotFoundError: The folder has no images of it, or an image has no annotation.

    >>> try:
    ...     ADE20k(str(tmp_path))
    ... except FileNotFoundError:
    ...     print("not here")
    not here
    """

    def __init__(self, datadir: str, split: str = "train", transform: Callable[..., Any] | None = None) -> None:
        self.split = one_of("split", split, list(_SPLITS))
        self.transform = transform
        self._images = sorted(Path(datadir, "images", _SPLITS[split]).glob("*.jpg"))
        if not self._images:
            raise FileNotFoundError(
                f"datadir must have JPEG files in images/{_SPLITS[split]}, but there are none in {datadir}."
            )
        folder = Path(datadir, "annotations", _SPLITS[split])
        self._annotations = [] if split == "test" else [folder / f"{path.stem}.png" for path in self._images]
        missing = [path for path in self._annotations if not path.is_file()]
        if missing:
            raise FileNotFoundError(f"{len(missing)} images have no annotation, the first {missing[0]}.")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        """Return image and annotation, of ``"test"`` the image alone."""
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
    """Return a loader of ADE20K; batches are images (B, 3, final_size, final_size) and classes (B, ., .) of int64.

    For training, image and annotation are resized by a random factor, cropped where no class has more than three
    quarters of the pixels, mirrored half of the time, and padded; brightness, contrast and saturation vary. For
    evaluation both are resized to the final size. Images are normalised on the device.

    Args:
        datadir: Folder as :class:`ADE20k` wants it.
        global_batch_size: Number of samples of all processes together; each gets its part.
        is_train: Whether to read ``"train"``, augmented, or ``"val"``.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        shuffle: Whether each pass is in another order.
        base_size: Side in pixels that is multiplied by the random factor.
        min_resize_scale: The least factor.
        max_resize_scale: The greatest factor.
        final_size: Side in pixels of what is trained on.
        ignore_background: Whether pixels without a class become -1, which losses ignore, and the classes 0 to 149.
        dataloader_kwargs: Further arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the number of processes, or a size or factor is none.
        FileNotFoundError: The folder has no such images.
        MissingConditionalImportError: Pillow is not installed.

    >>> try:
    ...     build_ade20k_dataloader(str(tmp_path), 4)
    ... except (ImportError, FileNotFoundError):
    ...     print("not here")
    not here
    """
    if is_train:
        transform: Any = ForTraining(base_size, min_resize_scale, max_resize_scale, final_size)
    else:
        transform = ForEvaluation(positive("final_size", final_size))
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
    """Return a loader of random data that looks like ADE20K after its normalisation.

    Args:
        global_batch_size: Number of samples of all processes together; each gets its part.
        is_train: Whether there are as many samples as for training, or as for validation.
        final_size: Side of images and annotations in pixels.
        num_unique_samples: How many of them differ.
        device: Where they lie.
        memory_format: Order of the images' pixels in memory.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        shuffle: Whether each pass is in another order.
        dataloader_kwargs: Further arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        ValueError: The batch size is not a multiple of the number of processes.

    >>> x, y = next(
    ...     iter(build_synthetic_ade20k_dataloader(2, final_size=8, num_unique_samples=2).dataloader)
    ... )
    >>> x.shape, y.shape, y.dtype
    (torch.Size([2, 3, 8, 8]), torch.Size([2, 8, 8]), torch.int64)
    """
    data = SyntheticBatchPairDataset(
        total_dataset_size=_SIZES["train" if is_train else "val"],
        data_shape=(3, final_size, final_size),
        label_shape=(final_size, final_size),
        num_classes=_NUM_CLASSES,
        num_unique_samples_to_create=num_unique_samples,
        device=device,
        memory_format=memory_format,
    )
    return DataSpec(
        make_loader(
            data, global_batch_size, shuffle=shuffle, drop_last=drop_last, collate=data.collate, **dataloader_kwargs
        )
    )
