"""What the passes over a batch change beside gradients, to run them again as if for the first time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from composer import rng
from composer.core.state import State

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = ["MetricStates", "Replay"]

# After so many batches it is known which buffers a forward pass changes.
_BATCHES_TO_LEARN = 3


class Replay:
    """The random generators, the buffers that forward passes change, and the metrics of training.

    Args:
        state: The state of the run.

    >>> state = State(model=torch.nn.BatchNorm1d(1))
    >>> replay = Replay(state)
    >>> replay.note()
    >>> _ = state.model(torch.rand(4, 1))
    >>> replay.restore()
    >>> state.model.running_mean, state.model.num_batches_tracked
    (tensor([0.]), tensor(0))
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._generators: dict[str, Any] = {}
        self._metrics: MetricStates | None = None
        self._watched: list[_Buffer] = []
        self._changing: dict[tuple[int, str], _Buffer] = {}
        self._noted = 0

    def note(self) -> None:
        """Remember how things are before a batch."""
        self._generators = rng.get_local_rng_state()
        metrics = self._state.train_metrics
        self._metrics = MetricStates(metrics) if metrics else None
        if self._noted <= _BATCHES_TO_LEARN:
            self._learn()
        for buffer in self._watched:
            buffer.note()

    def restore(self) -> None:
        """Put things back; may be called again."""
        rng.set_local_rng_state(self._generators)
        if self._metrics is not None:
            self._metrics.restore()
        for buffer in self._watched:
            buffer.restore()

    def _learn(self) -> None:
        """Watch all buffers at first, then those that were seen to change: masks and tables do not.

        To see it waits for the device, in the first batches.
        """
        for buffer in self._watched:
            if buffer.has_changed():
                self._changing[id(buffer.module), buffer.name] = buffer
        if self._noted == _BATCHES_TO_LEARN:
            self._watched = list(self._changing.values())
        elif self._noted == 0:
            model = self._state.model
            self._watched = [_Buffer(module, name) for module in model.modules() for name in module._buffers]  # pyright: ignore[reportPrivateUsage]
        self._noted += 1


class _Buffer:
    """A buffer of a module: which tensor it is, and its values."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self._tensor: Tensor | None = None
        self._copy: Tensor | None = None

    def note(self) -> None:
        self._tensor = tensor = self._now()
        if tensor is None:
            return
        if self._copy is not None and self._copy.shape == tensor.shape and self._copy.dtype == tensor.dtype:
            self._copy.copy_(tensor)
        else:
            self._copy = tensor.detach().clone()

    def has_changed(self) -> bool:
        # By the values: batch normalisation writes where no version is counted.
        now = self._now()
        return now is not self._tensor or (now is not None and not torch.equal(now, cast(Tensor, self._copy)))

    def restore(self) -> None:
        self.module._buffers[self.name] = self._tensor  # pyright: ignore[reportPrivateUsage]
        if self._tensor is not None:
            self._tensor.detach().copy_(cast(Tensor, self._copy))

    def _now(self) -> Tensor | None:
        return self.module._buffers.get(self.name)  # pyright: ignore[reportPrivateUsage]


class MetricStates:
    """What some metrics have gathered so far.

    Args:
        metrics: By name.

    >>> from torchmetrics import MeanMetric
    >>> mean = MeanMetric()
    >>> mean.update(1.0)
    >>> states = MetricStates({"mean": mean})
    >>> mean.update(3.0)
    >>> states.restore()
    >>> mean.compute()
    tensor(1.)
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._states = [
            (each, {name: _copied(value) for name, value in each.metric_state.items()}, each.update_count)
            for each in _with_parts(metrics.values())
        ]

    def restore(self) -> None:
        """Put it back; may be called again."""
        for metric, values, count in self._states:
            for name, value in values.items():
                setattr(metric, name, _copied(value))
            metric._update_count, metric._computed = count, None


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else list(value)


def _with_parts(metrics: Iterable[Metric]) -> list[Any]:
    """The metrics, and those that they are made of."""
    modules = [module for metric in metrics for module in cast("nn.Module", metric).modules()]
    return [module for module in modules if hasattr(module, "metric_state")]
