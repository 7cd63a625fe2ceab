"""Vision dataloaders, on small files in the formats of the datasets."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.datasets import (
    ADE20k,
    build_ade20k_dataloader,
    build_cifar10_dataloader,
    build_imagenet_dataloader,
    build_mnist_dataloader,
    build_streaming_cifar10_dataloader,
    build_streaming_imagenet1k_dataloader,
    build_synthetic_ade20k_dataloader,
    build_synthetic_cifar10_dataloader,
    build_synthetic_imagenet_dataloader,
    build_synthetic_mnist_dataloader,
)
from composer.datasets._loading import batch_size_per_rank
from composer.datasets._segmentation_transforms import TrainTransform

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torchvision")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def bytes_of(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


# -------------------------------------------------------------------------------------------------------- MNIST


def write_mnist(folder: Path, images: Any, labels: Any) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        head = struct.pack(">IIII", 0x803, *images.shape)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(labels)) + labels.tobytes())


def test_mnist(tmp_path) -> None:
    images, labels = bytes_of(10, 28, 28), np.arange(10, dtype=np.uint8)
    write_mnist(tmp_path, images, labels)
    loader = build_mnist_dataloader(str(tmp_path), 4, download=False, shuffle=False)
    batches = list(loader)
    assert len(batches) == len(loader) == 2  # the last is dropped
    x, y = batches[0]
    torch.testing.assert_close(x[:, 0], (torch.from_numpy(images[:4]) / 255 - 0.1307) / 0.3081)
    assert y.tolist() == [0, 1, 2, 3]
    whole = build_mnist_dataloader(str(tmp_path), 4, is_train=False, download=False, drop_last=False, num_workers=0)
    assert sorted(torch.cat([y for _, y in whole]).tolist()) == list(range(10))
    assert torch.cat([y for _, y in whole]).tolist() != torch.cat([y for _, y in whole]).tolist()  # reshuffled


# ------------------------------------------------------------------------------------------------------- CIFAR-10


def test_cifar10(tmp_path, monkeypatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *args: True)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    images = bytes_of(6, 3, 32, 32)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {"data": images.reshape(6, -1), "labels": list(range(6))}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    x, y = next(iter(build_cifar10_dataloader(str(tmp_path), 3, is_train=False, download=False, shuffle=False)))
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.243, 0.261])
    expected = (torch.from_numpy(images[:3]) / 255 - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(x, expected)
    assert y.tolist() == [0, 1, 2]
    train = build_cifar10_dataloader(str(tmp_path), 30, download=False, shuffle=False)
    once, again = (next(iter(train))[0] for _ in range(2))
    assert once.shape == (30, 3, 32, 32)
    assert not torch.equal(once, again)  # augmented


# -------------------------------------------------------------------------------------------------------- ImageNet


def write_image_folders(folder: Path) -> None:
    for split in ("train", "val"):
        for label, color in (("ant", 10), ("bee", 200)):
            (folder / split / label).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (40, 30), (color, 0, 0)).save(folder / split / label / f"{number}.png")


@pytest.mark.parametrize("is_train", [True, False])
def test_imagenet(is_train, tmp_path) -> None:
    write_image_folders(tmp_path)
    spec = build_imagenet_dataloader(str(tmp_path), 6, is_train, resize_size=20, crop_size=16, shuffle=False)
    x, y = next(iter(spec.dataloader))
    assert (x.dtype, x.shape, y.tolist()) == (torch.uint8, (6, 3, 16, 16), [0, 0, 0, 1, 1, 1])
    found, _ = spec.batch_transforms((x, y))
    for label, color in ((0, 10), (3, 200)):
        assert found[label, 0].mean().item() == pytest.approx((color / 255 - MEAN[0]) / STD[0], abs=1e-4)
        assert found[label, 1].mean().item() == pytest.approx(-MEAN[1] / STD[1], abs=1e-4)


def test_imagenet_names_invalid_arguments(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="a folder 'train'"):
        build_imagenet_dataloader(str(tmp_path), 6)
    write_image_folders(tmp_path)
    with pytest.raises(ValueError, match="crop_size must be a positive number of pixels, but got 0"):
        build_imagenet_dataloader(str(tmp_path), 6, crop_size=0)
    with pytest.raises(ValueError, match="resize_size must be a positive number of pixels, but got -2"):
        build_imagenet_dataloader(str(tmp_path), 6, resize_size=-2)


# --------------------------------------------------------------------------------------------------------- ADE20K


def write_ade20k(folder: Path) -> None:
    for split in ("training", "validation"):
        for kind in ("images", "annotations"):
            (folder / kind / split).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(bytes_of(30, 40, 3)).save(folder / "images" / split / f"{number}.jpg")
            classes = np.repeat(np.arange(40, dtype=np.uint8)[None] // 8, 30, axis=0)
            Image.fromarray(classes).save(folder / "annotations" / split / f"{number}.png")


@pytest.mark.parametrize("is_train", [True, False])
@pytest.mark.parametrize("ignore_background", [True, False])
def test_ade20k(is_train, ignore_background, tmp_path) -> None:
    write_ade20k(tmp_path)
    spec = build_ade20k_dataloader(
        str(tmp_path), 4, is_train, base_size=30, final_size=24, ignore_background=ignore_background
    )
    x, y = next(iter(spec.dataloader))
    assert (x.dtype, x.shape, y.shape) == (torch.uint8, (4, 3, 24, 24), (4, 24, 24))
    _, classes = spec.batch_transforms((x, y))
    assert set(classes.unique().tolist()) <= {c - ignore_background for c in range(5)}
    assert len(classes.unique()) == 5


def test_ade20k_names_missing_files(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="JPEG files in images/training"):
        ADE20k(str(tmp_path))
    write_ade20k(tmp_path)
    (tmp_path / "annotations" / "training" / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 images have no annotation, the first .*2\.png"):
        ADE20k(str(tmp_path))
    with pytest.raises(ValueError, match="Did you mean 'train'"):
        ADE20k(str(tmp_path), "trian")
    images = tmp_path / "images"
    (images / "validation").rename(images / "test")
    assert ADE20k(str(tmp_path), "test", transform=lambda image: image.size)[0] == (40, 30)


def test_image_and_annotation_are_transformed_alike() -> None:
    """Image and annotation get the same random crop and flip: half of one color is half of one class."""
    classes = np.zeros((32, 32), np.uint8)
    classes[:, 16:] = 2
    classes[:, :16] = 1
    image = Image.fromarray(np.repeat((classes * 100)[..., None], 3, axis=-1))
    for seed in range(10):
        torch.manual_seed(seed)
        found, annotation = TrainTransform(32, 0.5, 2.0, 24)(image, Image.fromarray(classes))
        grey, labels = np.array(found.convert("L")).astype(int), np.array(annotation)
        assert grey[labels == 2].mean() > grey[labels == 1].mean() > 20
        assert (grey[labels == 0] == 0).all()  # padded
    with pytest.raises(ValueError, match="max_resize_scale must not be below"):
        TrainTransform(32, 2.0, 0.5, 24)


# ------------------------------------------------------------------------------------------- synthetic, streaming


@pytest.mark.parametrize(
    ("build", "samples", "image", "target"),
    [
        (build_synthetic_mnist_dataloader, 60_000, (1, 28, 28), ()),
        (build_synthetic_cifar10_dataloader, 50_000, (3, 32, 32), ()),
        (lambda n, **more: build_synthetic_imagenet_dataloader(n, crop_size=8, **more), 1_281_167, (3, 8, 8), ()),
        (lambda n, **more: build_synthetic_ade20k_dataloader(n, final_size=8, **more), 20_206, (3, 8, 8), (8, 8)),
    ],
)
def test_synthetic(build, samples, image, target) -> None:
    data = build(4, num_unique_samples=8)
    loader = getattr(data, "dataloader", data)
    assert len(loader.dataset) == samples
    x, y = next(iter(loader))
    assert (x.shape, y.shape) == ((4, *image), (4, *target))
    assert len(loader) == samples // 4


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_streaming(tmp_path) -> None:
    streaming = pytest.importorskip("streaming")
    pixels = bytes_of(6, 32, 32, 3)
    with streaming.MDSWriter(out=str(tmp_path / "val"), columns={"x": "pil", "y": "int"}) as writer:
        for number in range(6):
            writer.write({"x": Image.fromarray(pixels[number]), "y": number})
    loader = build_streaming_cifar10_dataloader(
        2, None, local=str(tmp_path), split="val", shuffle=False, streaming_kwargs={"num_canonical_nodes": 1}
    )
    batches = list(loader)
    assert torch.cat([y for _, y in batches]).tolist() == list(range(6))
    red = (torch.from_numpy(pixels[:2, ..., 0]) / 255 - 0.4914) / 0.247
    torch.testing.assert_close(batches[0][0][:, 0], red)
    spec = build_streaming_imagenet1k_dataloader(
        3,
        str(tmp_path),
        local=str(tmp_path / "copy"),
        split="val",
        crop_size=16,
        streaming_kwargs={"num_canonical_nodes": 1},
    )
    x, y = next(iter(spec.dataloader))
    assert (x.dtype, x.shape, y.shape) == (torch.uint8, (3, 3, 16, 16), (3,))


# ------------------------------------------------------------------------------------------------------ processes


def _part() -> tuple[int, list[int], str]:
    loader = build_synthetic_mnist_dataloader(8, num_unique_samples=8)
    try:
        batch_size_per_rank(7)
    except ValueError as error:
        return loader.batch_size, list(loader.sampler)[:4], str(error)
    return 0, [], ""


def test_each_rank_loads_its_data_shard(two_ranks) -> None:
    one, other = two_ranks.run(_part)
    assert one[0] == other[0] == 4
    assert not set(one[1]) & set(other[1])
    assert "global_batch_size must be a multiple of the world size, 2, but got 7" in one[2]
