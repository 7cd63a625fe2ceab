"""ActivationMonitor: log statistics of every module's inputs and outputs (activation norms, maxima, kurtosis)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer.callbacks._cadence import Cadence
from composer.core.callback import Callback
from composer.core.time import Time

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.logger_destination import LoggerDestination
    from composer.core.state import State

__all__ = ["ActivationMonitor", "compute_kurtosis"]


def compute_kurtosis(value: Tensor) -> Tensor:
    r"""Return the kurtosis over the last dimension, averaged over all others.

        k = E[(x - E[x])^4] / E[(x - E[x])^2]^2

    It is 3 for normally distributed values and larger when outliers dominate the variance. Constant rows, such as
    those of dead units, have no kurtosis and are skipped.

    Args:
        value: Any shape (..., D), of a floating-point dtype.

    Returns:
        A scalar of at least float32; NaN if no row varies.

    >>> compute_kurtosis(torch.tensor([[-1.0, 1.0], [0.0, 0.0]]))
    tensor(1.)
    """
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    squares = (value - value.mean(-1, keepdim=True)).square()
    variance = squares.mean(-1)
    return torch.where(variance > 0, squares.square().mean(-1) / variance.square(), torch.nan).nanmean()


class ActivationMonitor(Callback):
    """Logs activation statistics of the inputs and outputs of every module at an interval.

    ``<name>`` is the dotted name of a module followed by ``_input.i`` or ``_output.i``, where i is the index of the
    tensor; nested structures append their keys and indices. x is a floating-point tensor whose last dimension holds
    the features:

    - ``activations/l2_norm/<name>``: the Euclidean norm of x over the last dimension, averaged over the others;
    - ``activations/max/<name>``: the maximum over the last dimension, averaged over the others;
    - ``activations/average/<name>``: the mean of x;
    - ``activations/kurtosis/<name>``: see :func:`compute_kurtosis`.

    The statistics are computed on the device, in the forward pass of the first microbatch, and read back together. A
    compiled model runs that one forward pass in eager mode, because compiled code does not call forward hooks.

    Args:
        interval: How often to log: a number of batches, or a time in batches or epochs.
        ignore_module_types: Modules to skip: those whose dotted name or class name contains one of these words
            (case-insensitive), such as ``["dropout", "ln"]``.
        only_log_wandb: Send the statistics, which are numerous, to a ``WandBLogger`` only.

    Raises:
        ValueError: The interval is not positive, or has an unsupported unit.

    >>> from composer import Trainer
    >>> from composer.loggers import InMemoryLogger
    >>> from composer.models import ComposerClassifier
    >>> log = InMemoryLogger()
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> trainer = Trainer(
    ...     model=model,
    ...     train_dataloader=[(torch.ones(2, 2), torch.tensor([0, 1]))],
    ...     optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     max_duration="1ba",
    ...     callbacks=ActivationMonitor("1ba", only_log_wandb=False),
    ...     loggers=log,
    ...     progress_bar=False,
    ... )
    >>> trainer.fit()
    >>> log.data["activations/max/module_input.0"][0][1]
    1.0
    """

    def __init__(
        self,
        interval: int | str | Time = "25ba",
        ignore_module_types: list[str] | None = None,
        only_log_wandb: bool = True,
    ) -> None:
        if isinstance(ignore_module_types, str):
            raise TypeError(
                f"ignore_module_types must be a list of words; got {ignore_module_types!r}. "
                f"Write [{ignore_module_types!r}]."
            )
        self.ignore_module_types = ignore_module_types
        self.only_log_wandb = only_log_wandb
        self._cadence = Cadence("interval", interval)
        self._due = False
        self._attached = ExitStack()
        self._found: dict[str, Tensor] = {}

    @property
    def interval(self) -> Time:
        """How often the statistics are logged."""
        return self._cadence.interval

    def batch_start(self, state: State, logger: Logger) -> None:
        """Check whether this batch is due."""
        self._due = bool(self._destinations(logger)) and self._cadence.due(state.timestamp)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Register forward hooks for the first microbatch of a batch that is due."""
        if not self._due:
            return
        self._due = False
        self._attached.close()
        self._attached.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in state.model.named_modules():
            if not self._is_ignored(name, module):
                self._attached.enter_context(_Hook(self, name, module))

    def after_forward(self, state: State, logger: Logger) -> None:
        """Remove the forward hooks and log the statistics."""
        self._attached.close()
        if self._found:
            metrics, self._found = self._found, {}
            logger.only(self._destinations(logger)).enqueue(metrics)

    def close(self, state: State, logger: Logger) -> None:
        """Remove the forward hooks, also after an error in the forward pass."""
        self._attached.close()
        self._found = {}

    def _is_ignored(self, name: str, module: nn.Module) -> bool:
        texts = (name.lower(), type(module).__name__.lower())
        return any(word.lower() in text for word in self.ignore_module_types or () for text in texts)

    def _destinations(self, logger: Logger) -> Sequence[LoggerDestination]:
        if not self.only_log_wandb:
            return logger.destinations
        # By name, because callbacks must not import loggers.
        return [d for d in logger.destinations if any(c.__name__ == "WandBLogger" for c in type(d).__mro__)]

    def record(self, name: str, value: Any) -> None:
        """Compute and keep the statistics of a module's inputs or outputs.

        Args:
            name: Name of the module, with ``_input`` or ``_output`` appended.
            value: A tensor, or any nested structure that contains tensors.
        """
        with torch.no_grad():
            for path, tensor in _tensors(value):
                x = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
                full = f"{name}{path}"
                self._found[f"activations/l2_norm/{full}"] = torch.linalg.vector_norm(x, dim=-1).mean()
                self._found[f"activations/average/{full}"] = x.mean()
                self._found[f"activations/kurtosis/{full}"] = compute_kurtosis(x)
                self._found[f"activations/max/{full}"] = x.amax(-1).mean()


class _Hook:
    """Context manager that registers a forward hook which passes inputs and outputs to a monitor."""

    def __init__(self, monitor: ActivationMonitor, name: str, module: nn.Module) -> None:
        self._monitor, self._name, self._module = monitor, name, module

    def __enter__(self) -> None:
        self._handle = self._module.register_forward_hook(self._call)

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def _call(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        self._monitor.record(f"{self._name}_input", inputs)
        self._monitor.record(f"{self._name}_output", outputs if isinstance(outputs, tuple) else (outputs,))


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the nonempty floating-point tensors of a nested structure that have features, each with its path."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.ndim > 0 and value.numel() > 0:
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}.{index}")
