"""Data loaders and datasets: device prefetching, on-device tensors, synthetic data, and common vision datasets."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ADE20k": "composer.datasets.ade20k",
        "DevicePrefetcher": "composer.datasets.prefetch",
        "Mixture": "composer.datasets.mixture",
        "NormalizationFn": "composer.datasets.utils",
        "SyntheticBatchPairDataset": "composer.datasets.synthetic",
        "SyntheticDataLabelType": "composer.datasets.synthetic",
        "SyntheticDataType": "composer.datasets.synthetic",
        "SyntheticPILDataset": "composer.datasets.synthetic",
        "SyntheticTokenDataset": "composer.datasets.synthetic_tokens",
        "TensorLoader": "composer.datasets.tensor_loader",
        "build_ade20k_dataloader": "composer.datasets.ade20k",
        "build_cifar10_dataloader": "composer.datasets.cifar",
        "build_imagenet_dataloader": "composer.datasets.imagenet",
        "build_mnist_dataloader": "composer.datasets.mnist",
        "build_streaming_cifar10_dataloader": "composer.datasets.cifar",
        "build_streaming_imagenet1k_dataloader": "composer.datasets.imagenet",
        "build_synthetic_ade20k_dataloader": "composer.datasets.ade20k",
        "build_synthetic_cifar10_dataloader": "composer.datasets.cifar",
        "build_synthetic_imagenet_dataloader": "composer.datasets.imagenet",
        "build_synthetic_mnist_dataloader": "composer.datasets.mnist",
        "pil_image_collate": "composer.datasets.utils",
    },
)
