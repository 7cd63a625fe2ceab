"""OptimizerMonitor: log norms of gradients, parameters, moments and updates."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from composer._numbers import whole_number
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.core.traits import Traits
from composer.dist.dtensor import full_tensor, joint_norm, norms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["OptimizerMonitor"]

# Names that optimizers use for their running average of the gradients.
_MOMENTS = ("exp_avg", "momentum_buffer", "moment")


class OptimizerMonitor(Callback):
    """Logs the L2 norm of each parameter's gradient, the global gradient norm, and metrics of the optimizer.

    It always logs ``l2_norm/grad/{parameter}`` and ``l2_norm/grad/global``, of the gradients that the optimizer step
    used: clipped, if gradients are clipped. With ``log_optimizer_metrics`` it also logs

    - the entries that the optimizer's method ``report_per_parameter_metrics(parameter, name, metrics)`` adds to the
      given mapping, such as ``l2_norm/moment/{parameter}`` and ``l2_norm/update/{parameter}``;
    - for optimizers without that method ``l2_norm/param/{parameter}``, and ``l2_norm/moment/{parameter}`` if they keep
      a running average of the gradients;
    - ``l2_norm/{kind}/global`` for each of these, the norm over all parameters.

    The norms are computed by a few kernels for all parameters and stay on the device until a logger needs them. Norms
    of sharded parameters are those of the full parameters.

    Args:
        log_optimizer_metrics: Whether to log more than gradient norms.
        batch_log_interval: Number of batches between two logged points.

    Raises:
        TypeError: ``batch_log_interval`` is not an integer.
        ValueError: ``batch_log_interval`` is not positive.

    >>> from composer import Engine, State, Timestamp
    >>> from composer.loggers import InMemoryLogger
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> model.weight.grad = torch.tensor([[3.0, 4.0]])
    >>> log = InMemoryLogger()
    >>> monitor = OptimizerMonitor(log_optimizer_metrics=False, batch_log_interval=1)
    >>> engine = Engine(State(model=model), callbacks=[monitor, log])
    >>> _ = engine.run_event("batch_end")
    >>> log.most_recent_values
    {'l2_norm/grad/weight': 5.0, 'l2_norm/grad/global': 5.0}
    """

    __traits__ = Traits(
        engine_conflict="It reads the gradients.",
    )

    def __init__(self, log_optimizer_metrics: bool = True, batch_log_interval: int = 10) -> None:
        self.log_optimizer_metrics = log_optimizer_metrics
        self.batch_log_interval = whole_number("batch_log_interval", batch_log_interval, minimum=1)

    def batch_end(self, state: State, logger: Logger) -> None:
        if state.timestamp.count(TimeUnit.BATCH) % self.batch_log_interval:
            return
        trained = {name: p for name, p in state.model.named_parameters() if p.grad is not None}
        metrics: dict[str, Any] = {}
        if self.log_optimizer_metrics:
            metrics = _optimizer_metrics(trained, state.optimizers)
        missing = {name: p.grad for name, p in trained.items() if f"l2_norm/grad/{name}" not in metrics}
        metrics |= _named_norms("grad", missing)
        if metrics:
            logger.enqueue(metrics | _globals(metrics))


def _optimizer_metrics(trained: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Collect metrics from optimizers that report them; compute parameter and moment norms for the others."""
    owners = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    metrics: dict[str, Any] = {}
    unreported: dict[str, Tensor] = {}
    for name, parameter in trained.items():
        report = getattr(owners.get(parameter), "report_per_parameter_metrics", None)
        if report is None:
            unreported[name] = parameter
        else:
            # Published optimizers return the mapping that they received, or another.
            metrics = report(parameter, name, metrics)
    metrics = {
        name: full_tensor(value).detach() if isinstance(value, Tensor) else value for name, value in metrics.items()
    }
    moments: dict[str, Tensor] = {}
    for name, parameter in unreported.items():
        buffers = owners[parameter].state.get(parameter, {}) if parameter in owners else {}
        moment = next((buffers[key] for key in _MOMENTS if isinstance(buffers.get(key), Tensor)), None)
        if moment is not None:
            moments[name] = moment
    return metrics | _named_norms("param", unreported) | _named_norms("moment", moments)


def _named_norms(group: str, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    if not tensors:
        return {}
    found = norms(list(tensors.values()))
    return {f"l2_norm/{group}/{name}": norm for name, norm in zip(tensors, found, strict=True)}


def _globals(metrics: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the norm over all parameters for each group of norms: grad, param, moment, update, ..."""
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for name, value in metrics.items():
        if name.startswith("l2_norm/") and isinstance(value, Tensor):
            groups[name.split("/")[1]].append(value)
    return {f"l2_norm/{group}/global": joint_norm(found) for group, found in groups.items()}
