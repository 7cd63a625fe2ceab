"""ZClip: clip gradients whose norm is an outlier compared to recent steps.

    z = (|g| - mean) / std;        if z > t:  |g| <- mean + t^2 * std / z

Mean and deviation are moving averages over the steps, so that the threshold decreases with the norm during training,
whereas that of :class:`.GradientClipping` is fixed. Paper: Kumar et al. 2025, https://arxiv.org/abs/2504.02507
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer._numbers import in_unit_interval, positive, whole_number
from composer.algorithms._gradients import gradients_of, parameters_of, scale_gradients, total_norm
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ZClip", "apply_zclip"]

_EPSILON = 1e-6


@torch.no_grad()
def apply_zclip(
    model: nn.Module | Iterable[Tensor],
    statistics: Tensor,
    alpha: float = 0.97,
    z_threshold: float = 2.5,
    max_norm: float | None = None,
    warmup_steps: int = 25,
) -> tuple[Tensor, Tensor]:
    """Clip the gradients of a model in place if their norm is an outlier, and update the statistics with the norm.

        z = (|g| - mean) / std;        if z > t:  |g| <- mean + t^2 * std / z

    The larger the outlier, the smaller the clipped norm, down to the mean. The statistics include the clipped norm. In
    the first steps nothing is clipped by z, and the statistics are the plain mean and variance. Non-finite norms are
    not included, and their gradients are unchanged. There is no device synchronization.

    Args:
        model: The model, or its parameters.
        statistics: Number of steps, mean and variance, (3,), float32, on the device of the gradients; updated in
            place. Initialize with zeros.
        alpha: Fraction of mean and variance to keep in a step, from 0 to 1.
        z_threshold: Number t of standard deviations above the mean at which a norm is an outlier; infinity is off.
        max_norm: Also clip the norm to this; None is off.
        warmup_steps: Number of first steps that only collect statistics.

    Returns:
        The norm before clipping; the factor that the gradients were multiplied by.

    Raises:
        ValueError: An argument is out of range.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[30.0, 40.0]])
    >>> _ = apply_zclip(layer, torch.tensor([25.0, 1.0, 0.25]))  # z = 98 of mean 1 and deviation 0.5
    >>> layer.weight.grad.norm()
    tensor(1.0319)

    Paper: https://arxiv.org/abs/2504.02507 (Kumar et al. 2025)
    """
    _check(alpha, z_threshold, max_norm)
    warmup_steps = whole_number("warmup_steps", warmup_steps)
    gradients = gradients_of(model.parameters() if isinstance(model, nn.Module) else model)
    if not gradients:
        return statistics.new_zeros(()), statistics.new_ones(())
    norm = total_norm(gradients).to(statistics)
    count, mean, variance = statistics.clone().unbind()
    deviation = variance.sqrt()
    z = (norm - mean) / (deviation + _EPSILON)
    outlier = (count >= warmup_steps) & (z > z_threshold)
    typical = torch.where(outlier, mean + z_threshold**2 * deviation / z, norm)
    target_norm = typical if max_norm is None else typical.clamp(max=max_norm)
    finite = norm.isfinite()
    factor = torch.where(finite & (target_norm < norm), target_norm / (norm + _EPSILON), 1.0)
    scale_gradients(gradients, factor)

    weight = torch.where(count < warmup_steps, 1 / (count + 1), 1 - alpha)
    new_mean = torch.lerp(mean, typical, weight)
    # In the first steps the exact variance (Welford), afterwards the moving average of the paper.
    square = (typical - new_mean) * (typical - torch.where(count < warmup_steps, mean, new_mean))
    new = torch.stack([count + 1, new_mean, torch.lerp(variance, square, weight)])
    statistics.copy_(torch.where(finite, new, statistics))
    return norm, factor


class ZClip(Algorithm):
    """Applies :func:`apply_zclip` to the gradient of each batch, before the optimizer step.

    Logs ``zclip/gradient_norm``, before clipping, and ``zclip/factor``, 1 if nothing is clipped.

    When to use it:
        For pretraining language models, where rare gradients are tens of deviations above the mean and a fixed
        threshold is too loose late in training.

    When not to:
        If gradients have no outliers, and in runs of a few hundred steps.

    How to choose:
        The defaults are those of the paper. Set ``max_norm`` to also clip to a fixed norm, which is active before
        there are statistics.

    Cost:
        The cost of clipping by norm: a pass over the gradients for the norm and one to scale them.

    Args:
        alpha: Fraction of mean and variance to keep in a step, from 0 to 1.
        z_threshold: Number of standard deviations above the mean at which a norm is clipped; infinity is off.
        max_norm: Also clip the norm to this; None is off.
        warmup_steps: Number of first steps that only collect statistics.

    Raises:
        ValueError: An argument is out of range.

    >>> ZClip()
    ZClip(alpha=0.97, z_threshold=2.5, max_norm=None, warmup_steps=25)

    Paper: https://arxiv.org/abs/2504.02507 (Kumar et al. 2025)
    """

    __traits__ = Traits(
        conflicts_with={
            "GradientClipping": (
                "the second gets a gradient that the first has clipped. Use ZClip(max_norm=...) for a fixed threshold."
            ),
            "SAM": "the norms of both gradients of a step would enter the statistics. Clip with GradientClipping.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="The norm is the total norm over all shards, and all ranks have the same statistics.",
        engine_conflict="It scales the gradients.",
        neutral={"z_threshold": float("inf"), "max_norm": None},
    )

    def __init__(
        self,
        alpha: float = 0.97,
        z_threshold: float = 2.5,
        max_norm: float | None = None,
        warmup_steps: int = 25,
    ) -> None:
        _check(alpha, z_threshold, max_norm)
        self.alpha = alpha
        self.z_threshold = z_threshold
        self.max_norm = max_norm
        self.warmup_steps = whole_number("warmup_steps", warmup_steps)
        self._statistics = torch.zeros(3)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Move the statistics to the device."""
        self._statistics = self._statistics.to(state.device.torch_device)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Clip the gradients of the batch."""
        norm, factor = apply_zclip(
            parameters_of(state.optimizers),
            self._statistics,
            self.alpha,
            self.z_threshold,
            self.max_norm,
            self.warmup_steps,
        )
        logger.log_metrics({"zclip/gradient_norm": norm, "zclip/factor": factor})

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        return {**super().state_dict(), "statistics": self._statistics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the statistics.

        Args:
            state: A result of :meth:`state_dict`.
        """
        self._statistics = state["statistics"].to(self._statistics.device, copy=True)


def _check(alpha: float, z_threshold: float, max_norm: float | None) -> None:
    in_unit_interval("alpha", alpha)
    positive("z_threshold", z_threshold)
    if max_norm is not None:
        positive("max_norm", max_norm)
