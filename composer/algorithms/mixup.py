"""MixUp: train on convex combinations of pairs of examples.

    x' = (1 - m) * x_i + m * x_j,    y' = (1 - m) * y_i + m * y_j          m = min(l, 1 - l),  l ~ Beta(a, a)

Paper: mixup: Beyond Empirical Risk Minimization, Zhang et al. 2018, https://arxiv.org/abs/1710.09412
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from composer import trees
from composer._device_copies import copied_to
from composer._numbers import in_unit_interval, non_negative
from composer.algorithms._host_random import sample_beta, sample_dirichlet
from composer.algorithms._images import select_samples
from composer.algorithms._mixing import PairMixing

__all__ = ["MixUp", "mixup_batch"]


def mixup_batch(
    input: Any,
    target: Any,
    mixing: float | Tensor | None = None,
    alpha: float = 0.2,
    indices: Tensor | None = None,
    per_sample: bool = False,
) -> tuple[Any, Any, float | Tensor]:
    """Mix each example with another example of the batch.

        x' = (1 - m) * x + m * x[indices]

    Mix the targets likewise: ``(1 - m) * loss(outputs, target) + m * loss(outputs, permuted)``, or with one-hot
    targets ``(1 - m) * y + m * y[indices]``.

    Args:
        input: Examples, (B, ...), of a floating dtype; or a collection of such tensors, which are mixed alike.
        target: Targets, (B, ...), or a collection of them.
        mixing: Weight m of the other example, from 0 to 1, or one per example, (B,); sampled by default.
        alpha: Parameter of the Beta distribution that m is sampled from, 0 or greater: near 0 most pairs are hardly
            mixed, at 1 m is uniform in [0, 0.5].
        indices: Partner of each example, (B,); a random permutation by default.
        per_sample: Whether to sample m for each example rather than for the batch.

    Returns:
        The mixed input; the target of the partners, ``target[indices]``; m, a number or (B,).

    Raises:
        TypeError: The input is not of a floating dtype.
        ValueError: ``alpha`` or ``mixing`` is out of range.

    >>> x, y = torch.tensor([[0.0], [8.0]]), torch.tensor([0, 1])
    >>> mixup_batch(x, y, mixing=0.25, indices=torch.tensor([1, 0]))
    (tensor([[2.],
            [6.]]), tensor([1, 0]), 0.25)

    Paper: https://arxiv.org/abs/1710.09412 (Zhang et al. 2018)
    """
    first = next((leaf for leaf in trees.leaves(input) if isinstance(leaf, Tensor)), None)
    if first is None:
        raise TypeError(f"input must be a tensor or a collection of tensors, but got {type(input).__name__}.")
    if mixing is None:
        mixing = _sample_mixing(first, non_negative("alpha", alpha), per_sample)
    elif not isinstance(mixing, Tensor):
        mixing = in_unit_interval("mixing", mixing)
    if indices is None:
        indices = torch.randperm(first.shape[0], device=first.device)

    def partners(tensor: Tensor) -> Tensor:
        return select_samples(tensor, indices)

    def mix(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            raise TypeError(
                f"input must be of a floating dtype to be mixed, but it is {tensor.dtype}. Convert it first, for "
                f"example with input / 255 for uint8 images."
            )
        kept = 1 - mixing
        if isinstance(kept, Tensor):
            kept = kept.to(tensor.dtype).view(-1, *[1] * (tensor.ndim - 1))
        # In place on the selected copy: one pass and one buffer fewer.
        return partners(tensor).lerp_(tensor, kept)

    return trees.map_tensors(mix, input), trees.map_tensors(partners, target), mixing


class MixUp(PairMixing):
    """Applies :func:`mixup_batch` to each microbatch, and mixes its targets or its losses likewise.

    Targets may be class indices, masks of them, probabilities, or numbers to regress to. The batch is restored after
    the loss, or with ``interpolate_loss`` after the backward pass: metrics see the original data.

    When to use it:
        For classifiers that overfit: many epochs, noisy labels, large models. It works on any floating-point input,
        including spectrograms and embeddings. It combines with label smoothing unless ``interpolate_loss=True``.

    When not to:
        In short runs; with inputs that cannot be mixed meaningfully, such as token ids; if predicted probabilities
        must stay sharp.

    How to choose:
        ``alpha`` 0.1 to 0.4 on ImageNet, 1 on CIFAR: larger values need longer training. Use ``interpolate_loss=True``
        only for losses that require class indices.

    Cost:
        One pass over the batch; with ``interpolate_loss`` a second loss computation.

    Args:
        alpha: Parameter of the Beta distribution, 0 (off) or greater. 0.2 is usual on ImageNet, 1 on CIFAR.
        interpolate_loss: Whether to mix the losses of both targets rather than the targets, for losses that require
            class indices. The loss is computed twice. Not supported with ``per_sample``.
        input_key: Key of the input in the batch, or a list of keys; multiple inputs are mixed alike.
        target_key: Key of the target, or a list of keys.
        per_sample: Whether to sample a weight for each example; by default one weight serves the batch, as in the
            authors' code.

    Raises:
        ValueError: ``alpha`` is negative.

    >>> MixUp(alpha=0.2)
    MixUp(alpha=0.2, interpolate_loss=False, input_key=0, target_key=1, per_sample=False)

    Paper: https://arxiv.org/abs/1710.09412 (Zhang et al. 2018)
    """

    __traits__ = replace(
        PairMixing.__traits__,
        conflicts_with={
            "LabelSmoothing": (
                "with interpolate_loss=True the partner's targets are not smoothed. Use interpolate_loss=False."
            ),
        },
    )

    def __init__(
        self,
        alpha: float = 0.2,
        interpolate_loss: bool = False,
        input_key: trees.BatchKey = 0,
        target_key: trees.BatchKey = 1,
        per_sample: bool = False,
    ) -> None:
        super().__init__(alpha, interpolate_loss, input_key, target_key, per_sample)

    def mix(self, input: Any, target: Any) -> tuple[Any, Any, float | Tensor]:
        """Mix the inputs."""
        return mixup_batch(input, target, alpha=self.alpha, per_sample=self.per_sample)


def _sample_mixing(first: Tensor, alpha: float, per_sample: bool) -> float | Tensor:
    """Sample the weight of the partner, at most a half."""
    if not per_sample or alpha == 0:
        beta = sample_beta(alpha)
        return min(beta, 1 - beta)
    # The smaller of two Dirichlet components, the first of which follows Beta(alpha, alpha).
    return copied_to(sample_dirichlet(alpha, 2, first.shape[0]).amin(1), first.device)
