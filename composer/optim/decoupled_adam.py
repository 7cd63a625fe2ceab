"""AdamW with weight decay decoupled from the learning rate, and per-parameter metrics (``DecoupledAdamW``).

    w <- (1 - lr / lr0 * weight_decay) * w - lr * step          lr0: the initial learning rate

Paper: Decoupled Weight Decay Regularization, Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer import dist
from composer._numbers import non_negative
from composer.dist.same_on_all_ranks import have_same_digest
from composer.optim._decoupled import Parameters, adamw_, bias_correction, decay_fraction, run_closure, set_initial_lr

__all__ = ["DecoupledAdamW"]

Metrics = dict[str, Tensor]

# A group with its learning rate and decay in the last step; a schedule may have changed them since.
_Stepped = tuple[dict[str, Any], float | Tensor, float | Tensor]


class DecoupledAdamW(Optimizer):
    """Adam with weight decay relative to the initial learning rate.

        m <- beta1 * m + (1 - beta1) * g;        v <- beta2 * v + (1 - beta2) * g^2
        w <- (1 - lr / lr0 * weight_decay) * w - lr * m' / (sqrt(v') + eps)

    m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t) after t steps. lr0 is ``initial_lr`` of the group, set when the
    group is added.

    Args:
        params: Parameters, named parameters, or dicts of parameter groups.
        lr: Learning rate.
        betas: Decay coefficients of the running averages m and v.
        eps: Term added to the denominator for numerical stability.
        weight_decay: Fraction of a weight that a step at the initial learning rate removes. It corresponds to
            ``lr * weight_decay`` of ``torch.optim``, so it is typically a thousand times smaller.
        amsgrad: Whether v' is the maximum so far (Reddi et al. 2018, https://arxiv.org/abs/1904.09237).

    Attributes:
        metric_functions: Metrics reported per parameter: functions ``(param, state, update) -> scalar`` by name.

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

    # Step counts are on the device of the parameters, as the fused kernels require; see Device.optimizer_to_device.
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
        """Add a parameter group; its decay is relative to its current learning rate.

        Args:
            param_group: A dict with ``params`` and group-specific options.
        """
        super().add_param_group(param_group)
        set_initial_lr(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._stepped, self._stepped_by_param = [], {}
        for group in self.param_groups:  # a saved state may lack initial_lr
            set_initial_lr(group)
        # load_state_dict leaves step counts on the CPU, where they were saved.
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
        """Update the parameters of a group in place. Call it under ``torch.no_grad()``.

        Args:
            params: The parameters.
            grads: Their gradients.
            exp_avgs: Their averages m.
            exp_avg_sqs: Their averages v.
            max_exp_avg_sqs: The maximum v so far with ``amsgrad``; otherwise empty.
            state_steps: The number of updates including this one, each a scalar on the parameter's device.
            amsgrad: Whether to use the maximum v.
            beta1: Decay coefficient of m.
            beta2: Decay coefficient of v.
            lr: Learning rate.
            initial_lr: Learning rate to which the decay is relative. If 0, the decay does not depend on ``lr``.
            weight_decay: Fraction of a weight that a step at ``initial_lr`` removes.
            eps: Term added to the denominator for numerical stability.
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
            decay=decay_fraction(lr, initial_lr, weight_decay),
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
        loss = run_closure(closure)
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
            self._stepped.append((group, settings["lr"], decay_fraction(**settings)))
        return loss

    def report_per_parameter_metrics(self, param: Tensor, name: str, optimizer_metrics: Metrics) -> Metrics:
        """Add the norms of a parameter, its gradient, its average m and its last update, as scalars on its device.

        The update includes the decay and is that of the last step, even if a schedule has changed the learning rate
        since. For a sharded parameter (``DTensor``), the scalars are DTensors of the full parameter.

        Args:
            param: The parameter.
            name: Its name, the last component of the metric names.
            optimizer_metrics: Metrics by name, such as ``"l2_norm/update/fc.weight"``; updated in place.

        Returns:
            The same dict, unchanged if the parameter has not been updated yet.
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
            # w = (1 - decay) * before - step, so before - w is:
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

        All ranks must call this; each may hold metrics of different parameters. It uses one all-reduce for all plain
        tensors, and one collective for each ``DTensor``.

        Args:
            optimizer_metrics: Metrics by name, scalars; changed in place.

        Returns:
            The same dict, with the metrics of every rank.
        """
        sharded = sorted(name for name, value in optimizer_metrics.items() if _is_dtensor(value))
        for name in sharded:
            full = cast("Any", optimizer_metrics[name]).full_tensor()
            optimizer_metrics[name] = full.sqrt() if name.startswith("l2_norm") else full
        names = sorted(name for name in optimizer_metrics if name not in sharded)
        if not have_same_digest(names):  # names of other parameters on other ranks
            names = sorted({name for rank_names in dist.all_gather_object(names) for name in rank_names})
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
                f"DecoupledAdamW does not support sparse gradients, but the gradient of a parameter of shape "
                f"{tuple(param.shape)} is sparse. Use sparse=False in the embedding, or torch.optim.SparseAdam."
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
    assert param.grad is not None, "called only for parameters that were updated"
    return param.grad


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach())


def _is_dtensor(value: Tensor) -> bool:
    return hasattr(value, "full_tensor")
