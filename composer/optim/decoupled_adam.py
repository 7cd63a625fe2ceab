"""Adam whose weight decay does not depend on the size of the learning rate, and that reports what it does.

    w <- (1 - lr / lr0 * weight_decay) * w - lr * step          lr0: the rate that the optimizer was made with

Paper: Decoupled Weight Decay Regularization, Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer import dist
from composer._text import non_negative
from composer.optim._decoupled import Parameters, adamw_, bias_correction, decay_share, evaluate, remember_rate

__all__ = ["DecoupledAdamW"]

Metrics = dict[str, Tensor]

# A group of the last step with the rate and the decay that it had, which a schedule has changed since.
_Stepped = tuple[dict[str, Any], float | Tensor, float | Tensor]


class DecoupledAdamW(Optimizer):
    """Adam with weight decay relative to the first learning rate.

        m <- beta1 * m + (1 - beta1) * g;        v <- beta2 * v + (1 - beta2) * g^2
        w <- (1 - lr / lr0 * weight_decay) * w - lr * m' / (sqrt(v') + eps)

    m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t) after t steps. lr0 is ``initial_lr`` of the group, set when the
    group is added.

    Args:
        params: Parameters, pairs of names and parameters, or groups of either as dicts.
        lr: Learning rate.
        betas: Weights of the averages m and v that stay.
        eps: Added to the square root.
        weight_decay: Share of a weight that a step at the first learning rate takes away: some thousand times smaller
            than for ``torch.optim``; the product of the two there.
        amsgrad: Whether v' is the largest so far (Reddi et al. 2018, https://arxiv.org/abs/1904.09237).

    Attributes:
        metric_functions: What is reported of a parameter: functions ``(param, state, update) -> scalar`` by name.

    Raises:
        ValueError: An argument is out of its range.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = DecoupledAdamW([weight], lr=0.1)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight.data
    tensor([0.9000])

    Paper: https://arxiv.org/abs/1711.05101 (Loshchilov and Hutter 2017)
    """

    metric_functions: ClassVar[dict[str, Callable[[Tensor, dict[str, Tensor], Tensor], Tensor]]] = {
        "l2_norm/moment": lambda param, state, update: _norm(state["exp_avg"]),
        "l2_norm/param": lambda param, state, update: _norm(param),
        "l2_norm/update": lambda param, state, update: _norm(update),
        "l2_norm/grad": lambda param, state, update: _norm(_gradient(param)),
    }

    # Step counts lie where the parameters do, since the fused kernels take them there; see Device.optimizer_to_device.
    step_on_device: ClassVar[bool] = True

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-5,
        amsgrad: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            non_negative(name, float(value))
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1, such as (0.9, 0.95), but got {betas!r}.")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        self._stepped: list[_Stepped] = []
        self._stepped_by_param: dict[Tensor, _Stepped] = {}
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
        self._stepped, self._stepped_by_param = [], {}
        for group in self.param_groups:  # of a saved state, perhaps of an optimizer without this
            remember_rate(group)
        # load_state_dict leaves step counts where they were saved, which is on the CPU.
        for param, values in self.state.items():
            if "step" in values:
                values["step"] = torch.as_tensor(values["step"], dtype=torch.float32, device=param.device)

    @staticmethod
    def adamw(
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
        *,
        amsgrad: bool,
        beta1: float,
        beta2: float,
        lr: float | Tensor,
        initial_lr: float,
        weight_decay: float,
        eps: float,
    ) -> None:
        """Update parameters in place, under ``torch.no_grad()``; what the optimizer does with a group.

        Args:
            params: The parameters.
            grads: Their gradients.
            exp_avgs: Their averages m.
            exp_avg_sqs: Their averages v.
            max_exp_avg_sqs: The largest v so far, with ``amsgrad``; else empty.
            state_steps: The number of their updates, this one included, each a scalar on the parameter's device.
            amsgrad: Whether the largest v counts.
            beta1: Share of m that stays.
            beta2: Share of v that stays.
            lr: Learning rate.
            initial_lr: The rate that the decay is relative to; at 0 the decay does not follow the rate.
            weight_decay: Share of a weight that a step at ``initial_lr`` takes away.
            eps: Added to the square root.
        """
        adamw_(
            params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            state_steps,
            amsgrad=amsgrad,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            decay=decay_share(lr, initial_lr, weight_decay),
            eps=eps,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the parameters that have a gradient.

        Args:
            closure: Computes the gradients and returns the loss.

        Returns:
            What the closure returned.

        Raises:
            RuntimeError: A gradient is sparse.
        """
        loss = evaluate(closure)
        self._stepped, self._stepped_by_param = [], {}
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            states = [self._state_of(param, group["amsgrad"]) for param in params]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
            settings = {name: group[name] for name in ("lr", "initial_lr", "weight_decay")}
            self.adamw(
                params,
                [param.grad for param in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
                steps,
                amsgrad=group["amsgrad"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                eps=group["eps"],
                **settings,
            )
            self._stepped.append((group, settings["lr"], decay_share(**settings)))
        return loss

    def report_per_parameter_metrics(self, param: Tensor, name: str, optimizer_metrics: Metrics) -> Metrics:
        """Add the norms of a parameter, its gradient, its average m and its last update, as scalars on its device.

        The update includes the decay, and is that of the last step whatever the schedule has done since. Of a parameter
        that is divided among processes (``DTensor``) they are such scalars too, of the whole.

        Args:
            param: The parameter.
            name: Its name, the last part of the names of the metrics.
            optimizer_metrics: Metrics by name, such as ``"l2_norm/update/fc.weight"``; added to.

        Returns:
            The same dict; unchanged where the parameter has not been updated yet.
        """
        state = self.state.get(param)
        if not self._stepped_by_param:
            self._stepped_by_param = {other: step for step in self._stepped for other in step[0]["params"]}
        if not state or param not in self._stepped_by_param:
            return optimizer_metrics
        group, lr, decay = self._stepped_by_param[param]
        with torch.no_grad():
            square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
            scale = (square / bias_correction(group["betas"][1], state["step"])).sqrt() + group["eps"]
            step = lr / bias_correction(group["betas"][0], state["step"]) * state["exp_avg"] / scale
            # w is what the step has left, (1 - decay) * before - step; before - w is therefore:
            update = (step + decay * param) / (1 - decay)
            for metric, function in self.metric_functions.items():
                optimizer_metrics[f"{metric}/{name}"] = function(param, state, update)
        return optimizer_metrics

    def pre_reduce_metrics(self, optimizer_metrics: Metrics) -> Metrics:
        """Square the norms, so that those of the shards of a parameter add up.

        Args:
            optimizer_metrics: Metrics by name; changed in place.

        Returns:
            The same dict.
        """
        for name in [name for name in optimizer_metrics if name.startswith("l2_norm")]:
            optimizer_metrics[name] = optimizer_metrics[name] ** 2
        return optimizer_metrics

    def dist_reduce_metrics(self, optimizer_metrics: Metrics) -> Metrics:
        """Combine the metrics of all ranks, after :meth:`pre_reduce_metrics`: roots of sums for norms, else means.

        All ranks must call this; each may hold metrics of other parameters. One collective for all of them, and one for
        each that is a ``DTensor``, which knows itself what the whole is.

        Args:
            optimizer_metrics: Metrics by name, scalars; changed in place.

        Returns:
            The same dict, with the metrics of every rank.
        """
        divided = sorted(name for name, value in optimizer_metrics.items() if _is_divided(value))
        for name in divided:
            whole = cast("Any", optimizer_metrics[name]).full_tensor()
            optimizer_metrics[name] = whole.sqrt() if name.startswith("l2_norm") else whole
        present = [name for name in optimizer_metrics if name not in divided]
        names = sorted({name for some in dist.all_gather_object(present) for name in some})
        if not names:
            return optimizer_metrics
        device = self.param_groups[0]["params"][0].device
        zero = torch.zeros((), device=device)
        values = torch.stack([optimizer_metrics.get(name, zero).to(device, torch.float32) for name in names])
        if dist.get_world_size() > 1:
            dist.all_reduce(values)
        for name, value in zip(names, values.unbind(), strict=True):
            is_norm = name.startswith("l2_norm")
            optimizer_metrics[name] = value.sqrt() if is_norm else value / dist.get_world_size()
        return optimizer_metrics

    def _state_of(self, param: Tensor, amsgrad: bool) -> dict[str, Tensor]:
        if _gradient(param).is_sparse:
            raise RuntimeError(
                f"DecoupledAdamW: the gradient of a parameter of shape {tuple(param.shape)} is sparse, which its "
                f"averages cannot be. Use sparse=False in the embedding, or torch.optim.SparseAdam."
            )
        state: dict[str, Tensor] = self.state[param]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state


def _gradient(param: Tensor) -> Tensor:
    assert param.grad is not None, "asked for parameters that were updated"
    return param.grad


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach())


def _is_divided(value: Tensor) -> bool:
    return hasattr(value, "full_tensor")
