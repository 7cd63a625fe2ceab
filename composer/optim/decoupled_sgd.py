"""SGD with momentum and weight decay decoupled from the learning rate (``DecoupledSGDW``).

    w <- (1 - lr / lr0 * weight_decay) * w - lr * b          lr0: the initial learning rate

The usual decoupled decay is multiplied by the learning rate, so a new learning rate needs a new decay. Here the two are
tuned independently, and the decay still follows the schedule. Paper: Decoupled Weight Decay Regularization, Loshchilov
and Hutter 2017, https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer._numbers import non_negative
from composer.optim._decoupled import Parameters, decay_fraction, run_closure, set_initial_lr, sgdw_

__all__ = ["DecoupledSGDW"]


class DecoupledSGDW(Optimizer):
    """SGD with momentum and weight decay relative to the initial learning rate.

        b <- momentum * b + (1 - dampening) * g
        w <- (1 - lr / lr0 * weight_decay) * w - lr * b          nesterov:  ... - lr * (g + momentum * b)

    In the first step b is g. lr0 is ``initial_lr`` of the group, set when the group is added.

    Args:
        params: Parameters, named parameters, or dicts of parameter groups.
        lr: Learning rate.
        momentum: Momentum factor.
        dampening: Dampening for momentum.
        weight_decay: Fraction of a weight that a step at the initial learning rate removes. It corresponds to
            ``lr * weight_decay`` of ``torch.optim``, so it is typically a thousand times smaller.
        nesterov: Whether to use Nesterov momentum; requires momentum and no dampening.

    Raises:
        ValueError: An argument is out of its range.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = DecoupledSGDW([weight], lr=0.1, weight_decay=0.0005)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.data
    tensor([0.8995])

    Paper: https://arxiv.org/abs/1711.05101 (Loshchilov and Hutter 2017)
    """

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            non_negative(name, float(value))
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"nesterov=True requires momentum above 0 and dampening=0, but got momentum={momentum} and "
                f"dampening={dampening}."
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; its decay is relative to its current learning rate.

        Args:
            param_group: A dict with ``params`` and group-specific options.
        """
        super().add_param_group(param_group)
        set_initial_lr(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a saved state may lack initial_lr
            set_initial_lr(group)

    @staticmethod
    def sgdw(
        params: list[Tensor],
        d_p_list: list[Tensor],
        momentum_buffer_list: list[Tensor | None],
        *,
        weight_decay: float,
        momentum: float,
        lr: float | Tensor,
        initial_lr: float,
        dampening: float,
        nesterov: bool,
    ) -> None:
        """Update the parameters of a group in place. Call it under ``torch.no_grad()``.

        Args:
            params: The parameters.
            d_p_list: Their gradients.
            momentum_buffer_list: Their buffers b; None entries are replaced by new buffers.
            weight_decay: Fraction of a weight that a step at ``initial_lr`` removes.
            momentum: Momentum factor.
            lr: Learning rate.
            initial_lr: Learning rate to which the decay is relative. If 0, the decay does not depend on ``lr``.
            dampening: Dampening for momentum.
            nesterov: Whether to use Nesterov momentum.
        """
        sgdw_(
            params,
            d_p_list,
            momentum_buffer_list,
            momentum=momentum,
            lr=lr,
            decay=decay_fraction(lr, initial_lr, weight_decay),
            dampening=dampening,
            nesterov=nesterov,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the parameters that have a gradient.

        Args:
            closure: Computes the gradients and returns the loss.

        Returns:
            What the closure returned.
        """
        loss = run_closure(closure)
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            momentum = group["momentum"]
            buffers = [self.state[param].get("momentum_buffer") for param in params] if momentum else []
            settings = {name: group[name] for name in ("weight_decay", "lr", "initial_lr", "dampening", "nesterov")}
            self.sgdw(params, [param.grad for param in params], buffers, momentum=momentum, **settings)
            for param, buffer in zip(params, buffers, strict=bool(momentum)):
                self.state[param]["momentum_buffer"] = buffer
        return loss
