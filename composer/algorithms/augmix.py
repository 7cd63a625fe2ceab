"""AugMix: mix an image with several chains of random augmentations of it.

    x' = (1 - m) * x + m * (w_1 * chain_1(x) + ... + w_k * chain_k(x))    w ~ Dirichlet(a, ..., a),  m ~ Beta(a, a)

Images stay recognizable because mixing weakens each chain, and models become more robust to corruptions.

Paper: AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty, Hendrycks et al. 2020,
https://arxiv.org/abs/1912.02781
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from composer import trees
from composer._device_copies import copied_to
from composer._lazy import import_extra
from composer._numbers import non_negative, positive, whole_number
from composer.algorithms._augmentation import ImageAugmentation, ImageTransform, augment, augment_tensors, check_range
from composer.algorithms._host_random import sample_beta, sample_dirichlet
from composer.algorithms.utils._batched import Plan, apply_plan, as_bytes, sample_plan
from composer.algorithms.utils.augmentation_primitives import AugmentationFn, augmentation_sets, operations_of

__all__ = ["AugMix", "AugmentAndMixTransform", "augmentation_sets", "augmix_image"]

_LONGEST_CHAIN = 3


def augmix_image(
    img: Any = None,
    severity: float = 3,
    depth: int = -1,
    width: int = 3,
    alpha: float = 1.0,
    augmentation_set: str | Sequence[AugmentationFn] = "all",
    value_range: tuple[float, float] = (0.0, 1.0),
) -> Any:
    """Mix an image with chains of random operations; each image of a batch gets different chains.

    Args:
        img: A PIL image; or images as a tensor, (C, H, W) or (B, C, H, W), of bytes or floats, on any device; or a
            collection of such tensors, all of which get the same operations. All images of a batch are processed
            together, the chains as uint8 values. Without an image, an :class:`AugmentAndMixTransform` with these
            arguments is returned.
        severity: Strength of the operations, from 0 to 10: each samples a level from [0.1, severity].
        depth: Number of operations in a chain; 0 or less samples it from 1, 2 and 3.
        width: Number of chains, 1 or more.
        alpha: Parameter of the Beta and Dirichlet distributions, above 0: how evenly the chains, and the image with
            them, are mixed.
        augmentation_set: ``"all"``, ``"safe"``, ``"original"``, or functions ``(PIL image, severity) -> PIL image``,
            see :mod:`.augmentation_primitives`. With custom functions, tensors are processed image by image on the
            CPU.
        value_range: The values of black and white in float tensors; values outside are clamped.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        TypeError: ``img`` is neither an image nor None, or ``severity`` or ``alpha`` is not a number.
        ValueError: An argument is out of range.

    >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> augmix_image(images, severity=3).shape
    torch.Size([4, 3, 32, 32])

    Paper: https://arxiv.org/abs/1912.02781 (Hendrycks et al. 2020)
    """
    if img is None:
        return AugmentAndMixTransform(severity, depth, width, alpha, augmentation_set, value_range)
    _check(severity, alpha)
    depth, width = whole_number("depth", depth, minimum=None), whole_number("width", width, minimum=1)
    operations = operations_of(augmentation_set)

    def edit_tensors(names: list[str], size: int) -> Any:
        plan = _sample_chains(size * width, depth, len(operations))
        # Mixing weights of the image itself and of each chain, (B, 1 + width).
        mixing = sample_dirichlet(alpha, 2, size)
        weights = torch.cat((mixing[:, :1], mixing[:, 1:] * sample_dirichlet(alpha, width, size)), dim=1)
        span = check_range(value_range)
        return augment_tensors(img, lambda images: _mix_tensors(images, plan, names, severity, weights, span), span)

    return augment(
        img, operations, lambda image: _mix_pillow(image, severity, depth, width, alpha, operations), edit_tensors
    )


class AugmentAndMixTransform(ImageTransform):
    """Dataset transform that applies :func:`augmix_image`.

    Args:
        severity: How strong the operations are, from 0 to 10.
        depth: Number of operations in a chain; 0 or less samples it from 1, 2 and 3.
        width: Number of chains.
        alpha: Parameter of the Beta and Dirichlet distributions.
        augmentation_set: The operations, see :func:`augmix_image`.
        value_range: The values of black and white in float tensors.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        TypeError: ``severity`` or ``alpha`` is not a number.
        ValueError: An argument is out of range.

    >>> from PIL import Image
    >>> AugmentAndMixTransform(severity=3)(Image.new("RGB", (32, 24))).size
    (32, 24)

    Paper: https://arxiv.org/abs/1912.02781 (Hendrycks et al. 2020)
    """

    def __init__(
        self,
        severity: float = 3,
        depth: int = -1,
        width: int = 3,
        alpha: float = 1.0,
        augmentation_set: str | Sequence[AugmentationFn] = "all",
        value_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(augmentation_set, value_range)
        _check(severity, alpha)
        self.severity = severity
        self.depth = whole_number("depth", depth, minimum=None)
        self.width = whole_number("width", width, minimum=1)
        self.alpha = alpha

    def augment(self, img: Any) -> Any:
        """Mix the images with random chains."""
        return augmix_image(
            img, self.severity, self.depth, self.width, self.alpha, self.augmentation_set, self.value_range
        )


class AugMix(ImageAugmentation):
    """Applies :func:`augmix_image` to the training images, in the dataset or on the device.

    By default, an :class:`AugmentAndMixTransform` is added to the dataset when training starts, before images are
    converted to tensors. The DataLoader workers do the work, several times that of RandAugment, and must keep up with
    the accelerator. With ``on_device=True``, batches are augmented on the device, each image with different operations.

    When to use it:
        For image classifiers that will see noise, blur and weather: it improves robustness to corruptions and the
        calibration of probabilities.

    When not to:
        For dense prediction, since masks are not transformed with the images, and if the DataLoader is already the
        bottleneck. The consistency loss of the paper is not included.

    How to choose:
        ``severity`` 1 to 3, ``width`` 3. Use ``augmentation_set="safe"`` if the model is evaluated on corruptions like
        those of ImageNet-C, which this set does not contain.

    Cost:
        ``width`` chains of one to three operations per image: several times RandAugment. With ``on_device=True`` it
        costs a few passes over the batch on the accelerator and no worker time.

    Args:
        severity: Strength of the operations, from 0 to 10; 1 to 3 are usual.
        depth: Number of operations in a chain; 0 or less samples it from 1, 2 and 3.
        width: Number of chains, 1 or more. The cost grows with it.
        alpha: Parameter of the Beta and Dirichlet distributions, above 0.
        augmentation_set: ``"all"``, ``"safe"``, ``"original"``, or functions, see :func:`augmix_image`. Use ``"safe"``
            for tests on corruptions like those of ImageNet-C: it contains none of them.
        on_device: Whether to augment batches on the device rather than images in the dataset. Images must then be
            bytes, or floats that are not normalized yet; normalize them in the model or in
            ``DataSpec(microbatch_transforms=...)``. If the first batch looks normalized, a warning is raised.
        input_key: Key of the images in the batch, or a list of keys, with ``on_device=True``.
        value_range: The values of black and white in float tensors.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        TypeError: At the start of training, the training data is not a :class:`torch.utils.data.DataLoader`, or its
            dataset does not accept a transform; or ``severity`` or ``alpha`` is not a number.
        ValueError: An argument is out of range.

    >>> AugMix(severity=3, width=2).on_device
    False

    Paper: https://arxiv.org/abs/1912.02781 (Hendrycks et al. 2020)
    """

    __traits__ = replace(
        ImageAugmentation.__traits__,
        conflicts_with={
            "RandAugment": "both apply the same operations, which together are too strong. Use one of them.",
        },
        why_not_neutral="its operations change images at every severity, and there is at least one",
    )

    def __init__(
        self,
        severity: float = 3,
        depth: int = -1,
        width: int = 3,
        alpha: float = 1.0,
        augmentation_set: str | Sequence[AugmentationFn] = "all",
        on_device: bool = False,
        input_key: trees.BatchKey = 0,
        value_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(augmentation_set, on_device, input_key, value_range)
        _check(severity, alpha)
        self.severity = severity
        self.depth = whole_number("depth", depth, minimum=None)
        self.width = whole_number("width", width, minimum=1)
        self.alpha = alpha

    def transform(self) -> AugmentAndMixTransform:
        """Return the transform for an image or a batch of images.

        >>> AugMix(width=2).transform()
        AugmentAndMixTransform(severity=3, depth=-1, width=2, alpha=1.0, augmentation_set='all')
        """
        return AugmentAndMixTransform(
            self.severity, self.depth, self.width, self.alpha, self.augmentation_set, self.value_range
        )


def _check(severity: float, alpha: float) -> None:
    if not non_negative("severity", severity) <= 10:
        raise ValueError(f"severity must be from 0 to 10, but got {severity!r}.")
    positive("alpha", alpha)


def _sample_chains(number: int, depth: int, num_operations: int) -> Plan:
    """Sample the operations of chains of fixed or random length; short chains are padded with no-ops."""
    plan = sample_plan(number, depth if depth > 0 else _LONGEST_CHAIN, num_operations)
    if depth > 0:
        return plan
    lengths = torch.randint(1, _LONGEST_CHAIN + 1, (number,))
    over = torch.arange(_LONGEST_CHAIN).unsqueeze(1) >= lengths
    return Plan(plan.choices.masked_fill(over, num_operations), plan.uniforms)


def _mix_tensors(
    images: Tensor, plan: Plan, names: list[str], severity: float, weights: Tensor, span: tuple[float, float]
) -> Tensor:
    """Mix images, (B, C, H, W), with the chains of a plan, with weights (B, 1 + width)."""
    low, high = span
    width = weights.shape[1] - 1
    chains = apply_plan(as_bytes(images, span).repeat(width, 1, 1, 1), plan, names, severity)
    scales = copied_to(weights, images.device).T.reshape(1 + width, -1, 1, 1, 1)
    plain = images if images.dtype == torch.uint8 else ((images.float() - low) * (255 / (high - low))).clamp_(0, 255)
    mixed = plain * scales[0]
    for chain_weight, chain in zip(scales[1:], chains.chunk(width), strict=True):
        mixed = mixed.addcmul_(chain_weight, chain)
    return mixed


def _mix_pillow(
    image: Any, severity: float, depth: int, width: int, alpha: float, operations: Sequence[AugmentationFn]
) -> Any:
    """Mix one PIL image with chains of operations on it."""
    numpy = import_extra("numpy", "vision", "AugMix of PIL images")
    pillow = import_extra("PIL.Image", "vision", "AugMix of PIL images", install="pillow")
    ratio = sample_beta(alpha)
    weights: list[float] = sample_dirichlet(alpha, width, 1)[0].tolist()
    lengths: list[int] = torch.randint(1, _LONGEST_CHAIN + 1, (width,)).tolist() if depth <= 0 else [depth] * width
    choices: list[int] = torch.randint(len(operations), (sum(lengths),)).tolist()
    mixed = numpy.multiply(numpy.asarray(image), 1 - ratio, dtype=numpy.float32)
    for weight, length in zip(weights, lengths, strict=True):
        chain = image
        for _ in range(length):
            chain = operations[choices.pop()](chain, severity)
        mixed += numpy.multiply(numpy.asarray(chain), ratio * weight, dtype=numpy.float32)
    # Add half and truncate: rounds with one pass fewer.
    mixed += 0.5
    return pillow.fromarray(mixed.clip(0, 255).astype(numpy.uint8))
