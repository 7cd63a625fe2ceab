"""SGD whose weight decay does not depend on the size of the learning rate.

    w <- (1 - lr / lr0 * weight_decay) * w - lr * b          lr0: the rate that the optimizer was made with

The usual decoupled decay multiplies with the rate itself, so that another rate needs another decay. Here the two are
tuned one by one, and the decay follows the schedule all the same. Paper: Decoupled Weight Decay Regularization,
Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer._text import non_negative
from composer.optim._decoupled import Parameters, decay_share, evaluate, remember_rate, sgdw_

__all__ = ["DecoupledSGDW"]


class DecoupledSGDW(Optimizer):
    """SGD with momentum, and with weight decay relative to the first learning rate.

        b <- momentum * b + (1 - dampening) * g
        w <- (1 - lr / lr0 * weight_decay) * w - lr * b          nesterov:  ... - lr * (g + momentum * b)

    In its first step b is g. lr0 is ``initial_lr`` of the group, set when the group is added.

    Args:
        params: Parameters, pairs of names and parameters, or groups of either as dicts.
        lr: Learning rate.
        momentum: Share of b that stays.
        dampening: Share of the gradient that does not go into b.
        weight_decay: Share of a weight that a step at the first learning rate takes away: some thousand times smaller
            than for ``torch.optim``; the product of the two there.
        nesterov: Whether to look ahead; needs momentum and no dampening.

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
                f"nesterov=True needs momentum above 0 and dampening=0; got momentum={momentum} and "
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
        """Add a group of parameters, whose rate now is the one that its decay is relative to.

        Args:
            param_group: ``params``, and settings that differ from the optimizer's.
        """
        super().add_param_group(param_group)
        remember_rate(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # of a saved state, perhaps of an optimizer without this
            remember_rate(group)

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
        """Update parameters in place, under ``torch.no_grad()``; what the optimizer does with a group.

        Args:
            params: The parameters.
            d_p_list: Their gradients.
            momentum_buffer_list: Their buffers b; None where there is none yet, which is filled in.
            weight_decay: Share of a weight that a step at ``initial_lr`` takes away.
            momentum: Share of b that stays.
            lr: Learning rate.
            initial_lr: The rate that the decay is relative to; at 0 the decay does not follow the rate.
            dampening: Share of the gradient that does not go into b.
            nesterov: Whether to look ahead.
        """
        sgdw_(
            params,
            d_p_list,
            momentum_buffer_list,
            momentum=momentum,
            lr=lr,
            decay=decay_share(lr, initial_lr, weight_decay),
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
        loss = evaluate(closure)
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
