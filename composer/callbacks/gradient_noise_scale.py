r"""GradientNoiseScale: estimate the batch size beyond which larger batches hardly help (critical batch size).

    B_simple = tr(Sigma) / |G|^2

where G is the gradient of the true loss and Sigma the covariance of the gradients of single samples. It is estimated
from squared norms of gradients over b samples, E|G_b|^2 = |G|^2 + tr(Sigma) / b, at two sizes b.

Paper: An Empirical Model of Large-Batch Training, McCandlish et al. 2018, https://arxiv.org/abs/1812.06162
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from composer import dist
from composer._numbers import in_unit_interval
from composer.callbacks._cadence import Cadence
from composer.core.callback import Callback
from composer.core.microbatches import count_samples
from composer.core.time import Time
from composer.core.traits import Traits
from composer.dist.dtensor import is_dtensor, joint_norm, norms

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GradientNoiseScale", "noise_scale_terms"]


def noise_scale_terms(small: Any, large: Any, small_size: Any, large_size: Any) -> tuple[Any, Any]:
    r"""Return unbiased estimates of |G|^2 and tr(Sigma) from the squared norms of two mean gradients.

        |G|^2     = (B |G_B|^2 - b |G_b|^2) / (B - b)
        tr(Sigma) = (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)

    Args:
        small: |G_b|^2, the squared norm of the mean gradient of b samples; a number or a scalar tensor.
        large: |G_B|^2, the same of B samples.
        small_size: b, a number or a scalar tensor.
        large_size: B, larger than b.

    >>> noise_scale_terms(small=3.0, large=1.5, small_size=2, large_size=8)  # |G|^2 = 1, tr(Sigma) = 4
    (1.0, 4.0)

    Paper: https://arxiv.org/abs/1812.06162 (McCandlish et al. 2018)
    """
    norm = (large_size * large - small_size * small) / (large_size - small_size)
    trace = (small - large) / (1 / small_size - 1 / large_size)
    return norm, trace


class GradientNoiseScale(Callback):
    """Logs the gradient noise scale, estimated from the gradients of a microbatch and of its batch.

    The two batch sizes come for free: the small one is the first microbatch, the large one the batch. Both are read
    from the gradients during gradient accumulation, without copying them. So a single rank must split the batch, with
    ``device_train_microbatch_size``; with data parallelism the small one is the first microbatch of each rank,
    read before gradients are averaged, and the large one the global batch. The smaller the microbatch, the less noisy
    the estimate. If microbatches are weighted by tokens, each counts for its fraction of the tokens. Gradients are
    read before clipping.

    A single step is noisy: |G|^2 and tr(Sigma) are averaged over steps separately, and then divided. In the first
    steps, and with a short average, the estimate of |G|^2 may be near zero or negative, and the scale meaningless.

    Logs ``gradient_noise_scale/noise_scale`` in samples, ``gradient_noise_scale/squared_gradient_norm`` and
    ``gradient_noise_scale/gradient_variance``. Everything is computed on the device.
    :class:`.BatchSizeWarmup` can increase the batch when the scale exceeds it.

    Args:
        interval: How often to measure: a number of batches, or a time in batches or epochs. A measurement reads all
            gradients twice.
        decay: Weight of the past in the running averages, in [0, 1); 0 does not average.

    Raises:
        ValueError: An argument is invalid.
        RuntimeError: In training: a single rank does not split its batch into microbatches, or gradients are
            averaged only after the backward passes, as with ``ddp_sync_strategy="forced_sync"``.
        NotImplementedError: When training starts: parameters are sharded, so that no rank has a local gradient, or
            gradients are not averaged over all ranks (``DiLoCo``, ``LocalSGD``).

    >>> GradientNoiseScale("10ba", decay=0.9).interval
    Time(10, TimeUnit.BATCH)

    Paper: https://arxiv.org/abs/1812.06162 (McCandlish et al. 2018)
    """

    __traits__ = Traits(
        engine_conflict="It reads the gradients.",
    )

    def __init__(self, interval: int | str | Time = "10ba", decay: float = 0.95) -> None:
        self.decay = in_unit_interval("decay", decay)
        if self.decay == 1:
            raise ValueError("decay must be below 1, or no new value would enter the averages; got 1.")
        self._cadence = Cadence("interval", interval)
        self._due = False
        self._step: _Step | None = None
        # Running averages of |G|^2, tr(Sigma) and 1; the last corrects the bias of starting at zero.
        self._averages: Tensor | None = None

    @property
    def interval(self) -> Time:
        """How often the scale is measured."""
        return self._cadence.interval

    @property
    def noise_scale(self) -> Tensor | None:
        """The last estimate of the noise scale in samples, a scalar on the device; None before the first."""
        return None if self._averages is None else self._averages[1] / self._averages[0]

    def fit_start(self, state: State, logger: Logger) -> None:
        """Raise if no rank ever has its full local gradient (sharded parameters), or not all ranks average theirs."""
        if state.replicas is not None and state.replicas.count > 1:
            raise NotImplementedError(
                "GradientNoiseScale compares the gradient of each rank's first microbatch with that of the batch of "
                "all ranks, which is not computed while replicas train apart (DiLoCo, LocalSGD). Measure without them."
            )
        if any(map(is_dtensor, state.model.parameters())):
            raise NotImplementedError(
                "GradientNoiseScale compares the gradient of each rank's first microbatch with that of the batch. "
                "With sharded parameters, no rank ever holds a full local gradient, and after a microbatch the "
                "gradients may be reduced over only some of the ranks. Measure with data parallelism "
                "(parallelism_config=None)."
            )

    def batch_start(self, state: State, logger: Logger) -> None:
        """Check whether this batch is due."""
        self._due = self._cadence.due(state.timestamp)

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Start over, also if an optimizer evaluates the gradients of a batch several times."""
        if self._step is not None:
            self._step.close()
        # A rank whose data has ended runs one microbatch of a dummy batch, whose samples do not count.
        samples = _count(state) if state.train_phase.num_fetched else 0
        self._step = _Step(samples, state) if self._due else None

    def before_backward(self, state: State, logger: Logger) -> None:
        """Record the weight of the loss in the gradients."""
        if self._step is None:
            return
        if self._step.microbatch_size != state.microbatch_size:
            # The size was found just now; or it was too large, and the batch is retried with a smaller one.
            self._step.close()
            self._step = _Step(self._step.samples, state)
        self._step.watch(state.loss)

    def after_backward(self, state: State, logger: Logger) -> None:
        """Read the gradients of the first microbatch, and of the full batch."""
        if self._step is not None:
            self._step.read(state.model, _count(state))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the averages and log them."""
        step, self._step = self._step, None
        if step is None:
            return
        step.close()
        if dist.get_world_size() == 1 and not step.has_two_sizes:
            if self._averages is None:
                raise RuntimeError(
                    f"GradientNoiseScale requires several microbatches per batch, but all {step.samples} samples went "
                    f"through the model at once. Pass a smaller number as Trainer(device_train_microbatch_size=...)."
                )
            return  # the short batch at the end of an epoch
        if self._averages is None:
            step.check_averaged()
        norm, trace = step.terms()
        new = torch.stack([norm, trace, torch.ones_like(norm)])
        past = torch.zeros_like(new) if self._averages is None else self._averages.to(new.device)
        # A step whose gradients overflowed must not spoil the averages; checked on the device, without a sync.
        average = torch.where(new.isfinite().all(), torch.lerp(new, past, self.decay), past)
        self._averages = average
        logger.enqueue(
            {
                "gradient_noise_scale/noise_scale": self.noise_scale,
                "gradient_noise_scale/squared_gradient_norm": average[0] / average[2],
                "gradient_noise_scale/gradient_variance": average[1] / average[2],
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return {} if self._averages is None else {"averages": self._averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._averages = state["averages"]


class _Step:
    """The gradient norms of one batch, read during gradient accumulation.

    The weight of a microbatch in the batch, and the loss scale, need not be known: their product is the derivative of
    the differentiated value with respect to the microbatch's loss.

    Args:
        samples: Number of samples on this rank.
        state: The state, with the model whose gradients are read.
    """

    def __init__(self, samples: int, state: State) -> None:
        self.samples = samples
        self.microbatch_size = state.microbatch_size
        self._done = 0
        self._factors: list[Tensor] = []
        self._small: Tensor | None = None
        self._large: Tensor | None = None
        self._local_norms: dict[int, Tensor] = {}
        self._hooks: list[Any] = []
        if dist.get_world_size() > 1:
            # Called when a gradient has been accumulated, before it is averaged over ranks.
            trained = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
            self._hooks = [parameter.register_post_accumulate_grad_hook(self._note_local) for parameter in trained]

    @property
    def has_two_sizes(self) -> bool:
        """Whether there were several microbatches, all of which were read."""
        return len(self._factors) > 1 and self._small is not None and self._large is not None

    def watch(self, loss: Any) -> None:
        """Record the factor of a loss in the gradients, once it is differentiated."""
        if isinstance(loss, Mapping):
            losses = cast("Mapping[str, Tensor]", loss)
            loss = losses["total"] if "total" in losses else next(iter(losses.values()))
        elif isinstance(loss, Sequence):
            loss = cast("Sequence[Tensor]", loss)[0]
        cast(Tensor, loss).register_hook(self._note_factor)

    def _note_factor(self, gradient: Tensor) -> None:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        self._factors.append(gradient.detach().sum(dtype=wide))

    def _note_local(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            [self._local_norms[id(parameter)]] = norms([parameter.grad])

    def read(self, model: nn.Module, samples: int) -> None:
        """Read the gradients after a microbatch."""
        self._done += samples
        if self._small is None:
            local = list(self._local_norms.values())
            self._small = joint_norm(local).square() if local else _squared_norm(model)
            self.close()
        if self._done >= self.samples and (len(self._factors) > 1 or dist.get_world_size() > 1):
            self._large = _squared_norm(model)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._local_norms = [], {}

    def check_averaged(self) -> None:
        """Raise if gradients had not been averaged over ranks when they were read."""
        if dist.get_world_size() == 1:
            return
        assert self._large is not None
        ends = torch.stack([self._large, -self._large])
        dist.all_reduce(ends, "MAX")
        most, least = ends[0].item(), -ends[1].item()
        if most - least > 1e-3 * most:
            raise RuntimeError(
                "GradientNoiseScale reads the averaged gradients at the end of the last backward pass, but here they "
                "are averaged after it: with ddp_sync_strategy='forced_sync', or if parameters may be unused and "
                "device_train_microbatch_size is 'auto'. Use another ddp_sync_strategy, or a fixed microbatch size."
            )

    def terms(self) -> tuple[Tensor, Tensor]:
        """Return the estimates of |G|^2 and tr(Sigma), scalars on the device."""
        assert self._small is not None
        assert self._large is not None
        total = torch.stack(self._factors).sum()
        first = self._factors[0]
        # A rank without samples, which only takes part because of uneven inputs, does not count.
        counts = total > 0
        zero = torch.zeros_like(total)
        local = [
            torch.where(counts, self._small / first.square(), zero),
            torch.where(counts, 1 / first, zero),
            total,
            torch.where(counts, self.samples, zero),
            torch.where(counts, 1, zero),
        ]
        sums = torch.stack([value.to(total.dtype) for value in local])
        dist.all_reduce(sums)
        small, inverse, total, samples, ranks = sums.unbind()
        # E|G_b|^2 is linear in 1 / b, so that its mean over ranks is that of one microbatch of size b.
        small_size = ranks / inverse / total * samples
        large = self._large / (total / dist.get_world_size()).square()
        return noise_scale_terms(small / ranks, large, small_size, samples)


def _squared_norm(model: nn.Module) -> Tensor:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return joint_norm(norms(gradients)).square()


def _count(state: State) -> int:
    """Return the number of samples of the current batch or microbatch."""
    spec = state.train_phase.loader
    return count_samples(state.batch) if spec is None else spec.__num_samples__(state.batch)
