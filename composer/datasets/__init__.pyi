"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.datasets.ade20k import ADE20k, build_ade20k_dataloader, build_synthetic_ade20k_dataloader
from composer.datasets.cifar import (
    build_cifar10_dataloader,
    build_streaming_cifar10_dataloader,
    build_synthetic_cifar10_dataloader,
)
from composer.datasets.imagenet import (
    build_imagenet_dataloader,
    build_streaming_imagenet1k_dataloader,
    build_synthetic_imagenet_dataloader,
)
from composer.datasets.mixture import Mixture
from composer.datasets.mnist import build_mnist_dataloader, build_synthetic_mnist_dataloader
from composer.datasets.prefetch import DevicePrefetcher
from composer.datasets.synthetic import (
    SyntheticBatchPairDataset,
    SyntheticDataLabelType,
    SyntheticDataType,
    SyntheticPILDataset,
)
from composer.datasets.synthetic_tokens import SyntheticTokenDataset
from composer.datasets.tensor_loader import TensorLoader
from composer.datasets.utils import NormalizationFn, pil_image_collate

__all__ = [
    "ADE20k",
    "DevicePrefetcher",
    "Mixture",
    "NormalizationFn",
    "SyntheticBatchPairDataset",
    "SyntheticDataLabelType",
    "SyntheticDataType",
    "SyntheticPILDataset",
    "SyntheticTokenDataset",
    "TensorLoader",
    "build_ade20k_dataloader",
    "build_cifar10_dataloader",
    "build_imagenet_dataloader",
    "build_mnist_dataloader",
    "build_streaming_cifar10_dataloader",
    "build_streaming_imagenet1k_dataloader",
    "build_synthetic_ade20k_dataloader",
    "build_synthetic_cifar10_dataloader",
    "build_synthetic_imagenet_dataloader",
    "build_synthetic_mnist_dataloader",
    "pil_image_collate",
]
