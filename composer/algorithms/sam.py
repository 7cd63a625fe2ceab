"""SAM, sharpness-aware minimization: step with the gradient at the worst point near the weights.

    e = rho * g(w) / |g(w)|;        w <- step(w, g(w + e))
    adaptive:   e = rho * T^2 g / |T g|,  T = |w| + eta
    between:    g <- g + a * |g| / |v| * v,  v the component of the last g(w + e) that is orthogonal to its g

Flat minima generalize better. Papers: Foret et al. 2021, https://arxiv.org/abs/2010.01412; adaptive, Kwon et al. 2021,
https://arxiv.org/abs/2102.11600; between, LookSAM, Liu et al. 2022, https://arxiv.org/abs/2203.02714
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer._numbers import non_negative, whole_number
from composer.algorithms._gradients import gradients_of, parameters_of, scale_gradients, total_norm
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import TimeUnit
from composer.core.traits import Traits
from composer.dist.dtensor import from_local_like, inner_products, local_tensors
from composer.optim.closure_use import needs_closure
from composer.rng import get_torch_rng_states, set_torch_rng_states

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SAM", "SAMOptimizer"]

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SAMOptimizer(Optimizer):
    """Wraps an optimizer so that it steps with the gradient at the worst point near the weights.

        e = rho * g(w) / |g(w)|;        w <- step(w, g(w + e))

    Parameter groups, state and state dict are those of the wrapped optimizer: a checkpoint of one loads into the
    other. The weights are restored from w + e bit for bit. Both evaluations use the same random state, so that dropout
    and augmentation are the same at both points.

    Args:
        base_optimizer: The optimizer.
        rho: Norm of e, 0 (off) or greater.
        epsilon: Added to the norm of the gradient.
        interval: Every ``interval``-th step is sharpness-aware; the others are plain.
        adaptive: Whether norms are relative to the magnitude of each weight (ASAM), which makes them invariant to the
            scale of layers. ``rho`` must then be about ten times as large or more.
        eta: Added to the magnitude of weights in the adaptive variant.
        reuse: Weight a with which plain steps reuse the component of the last sharpness-aware gradient that is
            orthogonal to the plain one (LookSAM); 0 is off. Takes a copy of the gradients.
        also: Further optimizers, whose parameters are perturbed too; they step separately afterwards.

    Attributes:
        steps: Number of steps so far.
        perturbed: Whether the gradient is being evaluated at w + e.

    Raises:
        ValueError: An argument is out of range.

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
        _check(rho, epsilon, eta, reuse)
        self.base_optimizer = base_optimizer
        # As if unpickled: sets up the hooks of an optimizer without separate groups and state.
        self.__setstate__({})
        self.rho, self.epsilon = rho, epsilon
        self.interval = whole_number("interval", interval, minimum=1)
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
        """Return the state for copying and pickling."""
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
            state_dict: A result of :meth:`state_dict`, or of that of the wrapped optimizer.
        """
        self.base_optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer.

        Args:
            param_group: The group.
        """
        self.base_optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients.

        Args:
            set_to_none: Whether to set them to None rather than to zero.
        """
        self.base_optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Perform one step.

        Args:
            closure: Resets the gradients, computes the loss and the gradients at the current weights, and returns the
                loss. Evaluated twice in sharpness-aware steps.

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
        """Replace the gradients by those at the perturbed weights."""
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
        """Copy the parameters into a persistent buffer: allocating it takes as long as writing to it."""
        alike = len(self._before) == len(parameters) and all(
            (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
            for old, new in zip(self._before, parameters, strict=True)
        )
        if not alike:
            self._before = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(local_tensors(self._before), local_tensors(parameters))  # pyright: ignore[reportPrivateImportUsage]
        return self._before

    def _move_to_worst(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Add e to the parameters, overwriting the gradients, which are no longer needed."""
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

    The trainer computes the gradient of the batch, including all its microbatches, twice in these steps. Losses,
    metrics and the running statistics of batch normalization are those of the first computation. Methods that modify
    gradients (clipping) act on both. With multiple optimizers, all their parameters are perturbed together.

    When to use it:
        For test accuracy, especially with little data or regularization.

    When not to:
        If training is limited by compute rather than by data, as in most pretraining, and in ``amp_fp16``, whose loss
        scaling allows one gradient computation per step: the trainer raises an error.

    How to choose:
        ``rho=0.05``; with ``adaptive=True`` 0.5 to 2. The mild ResNet recipe uses ``interval=10``;
        ``interval=5, reuse=0.7`` (LookSAM) compensates for the plain steps between.

    Cost:
        A second forward and backward pass in every ``interval``-th step: twice the computation at 1, 1.2 times at 5.
        A copy of weights and gradients.

    Args:
        rho: Distance to the worst point, 0 (off) or greater. 0.05 is usual, with ``adaptive`` 0.5 to 2.
        epsilon: Added to the norm of the gradient.
        interval: Every ``interval``-th step is sharpness-aware.
        adaptive: Whether norms are relative to the magnitude of each weight (ASAM).
        eta: Added to the magnitude of weights in the adaptive variant.
        reuse: Weight of the last sharpness-aware direction in the steps between (LookSAM); 0 is off.

    Raises:
        ValueError: An argument is out of range.

    >>> SAM(rho=0.05, interval=5)
    SAM(rho=0.05, epsilon=1e-12, interval=5, adaptive=False, eta=0.01, reuse=0.0)

    Papers: https://arxiv.org/abs/2010.01412 (Foret et al. 2021), https://arxiv.org/abs/2102.11600 (Kwon et al. 2021),
    https://arxiv.org/abs/2203.02714 (Liu et al. 2022)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="The norm is the total norm over all shards, and each rank perturbs its parameter shard.",
        engine_conflict="It computes the gradients twice in a step, at perturbed weights.",
        neutral={"rho": 0.0},
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
        _check(rho, epsilon, eta, reuse)
        self.rho, self.epsilon = rho, epsilon
        self.interval = whole_number("interval", interval, minimum=1)
        self.adaptive, self.eta, self.reuse = adaptive, eta, reuse
        self._optimizer: SAMOptimizer | None = None
        # Directions that were loaded, or left by a previous fit, until the next one starts.
        self._directions: list[Tensor] = []
        self._saved: tuple[list[Tensor], list[Tensor], Any, Any] | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Wrap the optimizer, before its schedulers are created and its state is loaded."""
        self._wrap(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Wrap a default optimizer created after initialization; move loaded directions to the device."""
        self._wrap(state)
        if self._optimizer is not None and self._directions:
            device = self._optimizer.param_groups[0]["params"][0].device
            self._optimizer.directions = [direction.to(device, copy=True) for direction in self._directions]
            self._directions = []

    def batch_start(self, state: State, logger: Logger) -> None:
        """Set the step count from the timestamp of the run, which checkpoints contain."""
        if self._optimizer is not None:
            self._optimizer.steps = int(state.timestamp.count(TimeUnit.BATCH))

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Save what the second evaluation must not change."""
        if self._optimizer is None or not self._optimizer.perturbed:
            return
        statistics = [b for name, b in state.model.named_buffers() if name.rpartition(".")[2] in _STATISTICS]
        # Copied back rather than disabled: a compiled model keeps its graph.
        copies = [buffer.clone() for buffer in statistics]
        self._saved = (statistics, copies, state.total_loss_dict, state.train_metrics)
        state.train_metrics = {}

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Restore it."""
        if self._saved is None:
            return
        statistics, copies, losses, metrics = self._saved
        self._saved = None
        for buffer, copy in zip(statistics, copies, strict=True):
            buffer.copy_(copy)
        state.total_loss_dict, state.train_metrics = losses, metrics

    def fit_end(self, state: State, logger: Logger) -> None:
        """Release the optimizer and its copy of the weights; keep the direction for the next ``fit``."""
        if self._optimizer is not None:
            self._directions, self._optimizer._before = self._directions or self._optimizer.directions, []
            self._optimizer = None

    def state_dict(self) -> dict[str, Any]:
        """Return the direction that plain steps reuse."""
        directions = self._directions or (self._optimizer.directions if self._optimizer else [])
        return {**super().state_dict(), "directions": directions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the direction.

        Args:
            state: A result of :meth:`state_dict`.
        """
        self._directions = list(state["directions"])

    def _wrap(self, state: State) -> None:
        """Wrap the first optimizer, unless there is none or it is already wrapped."""
        if self.rho == 0 or not state.optimizers:
            return
        first, *others = state.optimizers
        if not isinstance(first, SAMOptimizer):
            _check_base_optimizers(state.optimizers)
            first = state.optimizers[0] = SAMOptimizer(
                first, self.rho, self.epsilon, self.interval, self.adaptive, self.eta, self.reuse, others
            )
        self._optimizer = first


def _check_base_optimizers(optimizers: Sequence[Optimizer]) -> None:
    for name in (type(one).__name__ for one in optimizers if needs_closure(type(one))):
        raise ValueError(
            f"SAM evaluates the gradients of a step itself, and so does {name}, whose step requires a closure. Use "
            f"another optimizer, or {name} without SAM."
        )


def _check(rho: float, epsilon: float, eta: float, reuse: float) -> None:
    non_negative("rho", rho)
    non_negative("epsilon", epsilon)
    non_negative("eta", eta)
    non_negative("reuse", reuse)


def _orthogonal(gradients: list[Tensor], plain: list[Tensor]) -> list[Tensor]:
    """Return the component of the gradients, as one vector, that is orthogonal to the plain ones."""
    along = torch.stack([product.to(plain[0].device) for product in inner_products(gradients, plain)]).sum()
    scale_gradients(plain, along / total_norm(plain).square().clamp_min(1e-24))
    components = torch._foreach_sub(local_tensors(gradients), local_tensors(plain))  # pyright: ignore[reportPrivateImportUsage]
    return [from_local_like(gradient, component) for gradient, component in zip(gradients, components, strict=True)]
