"""Sharpness-aware minimisation: step with the gradient at the worst point near the weights.

    e = rho * g(w) / |g(w)|;        w <- step(w, g(w + e))

    adaptive:   e = rho * T^2 g / |T g|,  T = |w| + eta
    between:    g <- g + a * |g| / |v| * v,  v the part of the last g(w + e) that is orthogonal to its g

Flat minima generalise better. Papers: Foret et al. 2021, https://arxiv.org/abs/2010.01412; adaptive, Kwon et al. 2021,
https://arxiv.org/abs/2102.11600; between, LookSAM, Liu et al. 2022, https://arxiv.org/abs/2203.02714
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer._text import non_negative, positive
from composer.algorithms._gradients import gradients_of, parameters_of, scale_gradients, total_norm
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import TimeUnit
from composer.core.traits import Traits
from composer.dist.dtensor import inner_products, local_tensors, shard_like
from composer.rng import get_torch_rng_states, set_torch_rng_states

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SAM", "SAMOptimizer"]

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SAMOptimizer(Optimizer):
    """Wraps an optimizer so that it steps with the gradient at the worst point near the weights.

        e = rho * g(w) / |g(w)|;        w <- step(w, g(w + e))

    Parameter groups, state and their saved form are those of the wrapped optimizer: a checkpoint of one loads into the
    other. The weights come back from w + e bit for bit. Both evaluations draw the same random numbers, so that dropout
    and augmentation are the same at both points.

    Args:
        base_optimizer: The optimizer.
        rho: Length of e, 0 or greater (off).
        epsilon: Added to the norm of the gradient.
        interval: Number of steps of which one, the last, is of this kind; the others are plain.
        adaptive: Whether lengths are measured relative to the size of each weight (ASAM), which makes them independent
            of how layers are scaled. ``rho`` is then ten times as large or more.
        eta: Added to the size of weights in the adaptive form.
        reuse: Weight a with which plain steps go on using the last sharpness-aware gradient's part that is orthogonal
            to the plain one (LookSAM); 0 is off. Takes a copy of the gradients.
        also: Further optimizers, whose parameters move to the worst point too; they step by themselves afterwards.

    Attributes:
        steps: Number of steps so far.
        perturbed: Whether the gradient is being evaluated at w + e.

    Raises:
        ValueError: An argument is out of its range.

    >>> weight = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = SAMOptimizer(torch.optim.SGD([weight], lr=0.1), rho=1.0)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (weight**2).sum()
    ...     loss.backward()
    ...     return loss
    >>> _ = optimizer.step(closure)  # the gradient at 2 + 1 is 6
    >>> weight.data
    tensor([1.4000])

    Paper: https://arxiv.org/abs/2010.01412 (Foret et al. 2021)
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: float = 0.05,
        epsilon: float = 1e-12,
        interval: int = 1,
        adaptive: bool = False,
        eta: float = 0.01,
        reuse: float = 0.0,
        also: Sequence[Optimizer] = (),
    ) -> None:
        _check(rho, epsilon, interval, eta, reuse)
        self.base_optimizer = base_optimizer
        # As if unpickled: sets up the hooks of an optimizer without groups and state of its own.
        self.__setstate__({})
        self.rho, self.epsilon, self.interval = rho, epsilon, interval
        self.adaptive, self.eta, self.reuse = adaptive, eta, reuse
        self.steps = 0
        self.perturbed = False
        self.directions: list[Tensor] = []
        self._before: list[Tensor] = []
        self._also = tuple(also)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of the wrapped optimizer."""
        return self.base_optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer."""
        return self.base_optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the wrapped optimizer."""
        return self.base_optimizer.defaults

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of."""
        names = ("base_optimizer", "rho", "epsilon", "interval", "adaptive", "eta", "reuse", "steps", "perturbed")
        return {**{name: getattr(self, name) for name in (*names, "directions", "_also")}, "_before": []}

    def __repr__(self) -> str:
        """Show the wrapped optimizer."""
        return f"SAMOptimizer({self.base_optimizer!r}, rho={self.rho}, interval={self.interval})"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer."""
        return self.base_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the wrapped optimizer.

        Args:
            state_dict: What :meth:`state_dict`, or that of the wrapped optimizer, returned.
        """
        self.base_optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer.

        Args:
            param_group: The group.
        """
        self.base_optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients.

        Args:
            set_to_none: Whether to drop them rather than to fill them with zeros.
        """
        self.base_optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Step once.

        Args:
            closure: Drops the old gradients, computes the loss and the gradients at the weights as they are, and
                returns the loss. Evaluated twice in sharpness-aware steps.

        Returns:
            The loss at the weights before the step.
        """
        closure = torch.enable_grad()(closure)
        sharp = self.rho > 0 and (self.steps + 1) % self.interval == 0
        self.steps += 1
        random_state = get_torch_rng_states() if sharp else None
        loss = closure()
        parameters = parameters_of([self, *self._also])
        if random_state is not None and parameters:
            self._descend_from_worst(closure, parameters, random_state)
        elif self.reuse and len(self.directions) == len(parameters):
            self._reuse(parameters)
        self.base_optimizer.step()
        return loss

    @torch.no_grad()
    def _descend_from_worst(
        self, closure: Callable[[], Any], parameters: list[Tensor], random_state: list[Tensor]
    ) -> None:
        """Replace the gradients by those at the worst point."""
        plain = gradients_of(parameters)
        kept = [gradient.clone() for gradient in plain] if self.reuse else []
        before = self._copy(parameters)
        self._move_to_worst(parameters, plain)
        del plain
        self.perturbed = True
        try:
            set_torch_rng_states(random_state)
            closure()
        finally:
            self.perturbed = False
            # Subtracting e would leave rounding errors.
            torch._foreach_copy_(local_tensors(parameters), local_tensors(before))  # pyright: ignore[reportPrivateImportUsage]
        if self.reuse:
            self.directions = _orthogonal(gradients_of(parameters), kept)

    def _copy(self, parameters: list[Tensor]) -> list[Tensor]:
        """The values of the parameters, in memory that is kept: getting it anew takes as long as writing to it."""
        alike = len(self._before) == len(parameters) and all(
            (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
            for old, new in zip(self._before, parameters, strict=True)
        )
        if not alike:
            self._before = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(local_tensors(self._before), local_tensors(parameters))  # pyright: ignore[reportPrivateImportUsage]
        return self._before

    def _move_to_worst(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Add e to the parameters. The gradients have served, and are overwritten."""
        weights, slopes = local_tensors(parameters), local_tensors(gradients)
        if not self.adaptive:
            factor = self.rho / (total_norm(gradients) + self.epsilon)
            if all(weight.device.type == "cpu" for weight in weights):  # one pass over memory
                torch._foreach_addcmul_(weights, slopes, [factor] * len(slopes))  # pyright: ignore[reportPrivateImportUsage]
                return
        else:
            sizes = torch._foreach_abs(weights)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(sizes, self.eta)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_mul_(slopes, sizes)  # pyright: ignore[reportPrivateImportUsage]
            factor = self.rho / (total_norm(gradients) + self.epsilon)
            torch._foreach_mul_(slopes, sizes)  # pyright: ignore[reportPrivateImportUsage]
        scale_gradients(gradients, factor)
        torch._foreach_add_(weights, slopes)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def _reuse(self, parameters: list[Tensor]) -> None:
        gradients = gradients_of(parameters)
        factor = self.reuse * total_norm(gradients) / (total_norm(self.directions) + self.epsilon)
        moves = list(torch._foreach_mul(local_tensors(self.directions), 1.0))  # pyright: ignore[reportPrivateImportUsage]
        scale_gradients(moves, factor)
        torch._foreach_add_(local_tensors(gradients), moves)  # pyright: ignore[reportPrivateImportUsage]


class SAM(Algorithm):
    """Wraps the optimizer in a :class:`SAMOptimizer`.

    The trainer computes the gradient of the batch twice in these steps, all microbatches of it; losses and metrics are
    those of the first time, and so are the running statistics of batch normalisation. What other methods do to a
    gradient (clipping) they do to both. With several optimizers all their parameters move to the worst point
    together.

    When to use it:
        For accuracy on test data, in particular without much data or regularisation.

    When not to:
        Where training is short of computation rather than of data, as in most pretraining, and in ``amp_fp16``, whose
        gradient scaling allows one evaluation: the trainer says so.

    How to choose:
        ``rho=0.05``; with ``adaptive=True`` 0.5 to 2. ``interval=10`` is that of the milder ResNet recipes;
        ``interval=5, reuse=0.7`` (LookSAM) makes up for the plain steps between.

    Cost:
        A second forward and backward pass in every ``interval``-th step: twice the computation at 1, 1.2 times at 5.
        A copy of weights and gradients.

    Args:
        rho: Length of the way to the worst point, 0 or greater (off). 0.05 is usual, with ``adaptive`` 0.5 to 2.
        epsilon: Added to the norm of the gradient.
        interval: Number of steps of which one is sharpness-aware.
        adaptive: Whether lengths are relative to the size of each weight (ASAM).
        eta: Added to the size of weights in the adaptive form.
        reuse: Weight of the last sharpness-aware direction in the steps between (LookSAM); 0 is off.

    Raises:
        ValueError: An argument is out of its range.

    >>> SAM(rho=0.05, interval=5)
    SAM(rho=0.05, epsilon=1e-12, interval=5, adaptive=False, eta=0.01, reuse=0.0)

    Papers: https://arxiv.org/abs/2010.01412 (Foret et al. 2021), https://arxiv.org/abs/2102.11600 (Kwon et al. 2021),
    https://arxiv.org/abs/2203.02714 (Liu et al. 2022)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="The norm is that of all parts together, and each process moves the weights that it holds.",
        engine_conflict="It computes the gradients twice in a step, at moved weights.",
    )

    def __init__(
        self,
        rho: float = 0.05,
        epsilon: float = 1e-12,
        interval: int = 1,
        adaptive: bool = False,
        eta: float = 0.01,
        reuse: float = 0.0,
    ) -> None:
        _check(rho, epsilon, interval, eta, reuse)
        self.rho, self.epsilon, self.interval = rho, epsilon, interval
        self.adaptive, self.eta, self.reuse = adaptive, eta, reuse
        self._optimizer: SAMOptimizer | None = None
        # What was loaded or left by a training, until the next one starts.
        self._directions: list[Tensor] = []
        self._kept: tuple[list[Tensor], list[Tensor], Any, Any] | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Wrap the optimizer, before schedules are made for it and its state is loaded."""
        self._wrap(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Wrap the optimizer that was made where none was given; bring what was loaded to the device."""
        self._wrap(state)
        if self._optimizer is not None and self._directions:
            device = self._optimizer.param_groups[0]["params"][0].device
            self._optimizer.directions = [direction.to(device, copy=True) for direction in self._directions]
            self._directions = []

    def batch_start(self, state: State, logger: Logger) -> None:
        """Let the intervals go by the time of the run, which is saved."""
        if self._optimizer is not None:
            self._optimizer.steps = int(state.timestamp.count(TimeUnit.BATCH))

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Keep what the second evaluation must not change."""
        if self._optimizer is None or not self._optimizer.perturbed:
            return
        statistics = [b for name, b in state.model.named_buffers() if name.rpartition(".")[2] in _STATISTICS]
        # Copied back rather than switched off: a compiled model stays the same graph.
        copies = [buffer.clone() for buffer in statistics]
        self._kept = (statistics, copies, state.total_loss_dict, state.train_metrics)
        state.train_metrics = {}

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Put it back."""
        if self._kept is None:
            return
        statistics, copies, losses, metrics = self._kept
        self._kept = None
        for buffer, copy in zip(statistics, copies, strict=True):
            buffer.copy_(copy)
        state.total_loss_dict, state.train_metrics = losses, metrics

    def fit_end(self, state: State, logger: Logger) -> None:
        """Release the optimizer and its copy of the weights; the direction is kept for the next ``fit``."""
        if self._optimizer is not None:
            self._directions, self._optimizer._before = self._directions or self._optimizer.directions, []
            self._optimizer = None

    def state_dict(self) -> dict[str, Any]:
        """Return the direction that steps between go on using."""
        directions = self._directions or (self._optimizer.directions if self._optimizer else [])
        return {**super().state_dict(), "directions": directions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the direction.

        Args:
            state: What :meth:`state_dict` returned.
        """
        self._directions = list(state["directions"])

    def _wrap(self, state: State) -> None:
        """Wrap the first optimizer, if there is one and it is not wrapped."""
        if self.rho == 0 or not state.optimizers:
            return
        first, *others = state.optimizers
        if not isinstance(first, SAMOptimizer):
            first = state.optimizers[0] = SAMOptimizer(
                first, self.rho, self.epsilon, self.interval, self.adaptive, self.eta, self.reuse, others
            )
        self._optimizer = first


def _check(rho: float, epsilon: float, interval: int, eta: float, reuse: float) -> None:
    non_negative("rho", rho)
    non_negative("epsilon", epsilon)
    positive("interval", interval)
    non_negative("eta", eta)
    non_negative("reuse", reuse)


def _orthogonal(gradients: list[Tensor], plain: list[Tensor]) -> list[Tensor]:
    """The part of the gradients, as one vector, that is orthogonal to the plain ones."""
    along = torch.stack([product.to(plain[0].device) for product in inner_products(gradients, plain)]).sum()
    scale_gradients(plain, along / total_norm(plain).square().clamp_min(1e-24))
    parts = torch._foreach_sub(local_tensors(gradients), local_tensors(plain))  # pyright: ignore[reportPrivateImportUsage]
    return [shard_like(gradient, part) for gradient, part in zip(gradients, parts, strict=True)]
