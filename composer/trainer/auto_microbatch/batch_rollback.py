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

# Smaller buffers are copied in every batch; larger ones, such as masks and tables of positions, only if they change,
# which so many batches show.
_LARGE = 2**20  # bytes
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
        # A model's modules stay; which buffers they have may change.
        self._tables: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._names: list[str] = []
        self._buffers: dict[tuple[int, str], _Buffer] = {}

    def note(self) -> None:
        """Remember how things are before a batch."""
        self._generators = rng.get_local_rng_state()
        metrics = self._state.train_metrics
        self._metrics = MetricStates(metrics) if metrics else None
        self._find_buffers()
        for buffer in self._buffers.values():
            buffer.note()

    def restore(self) -> None:
        """Put things back; may be called again.

        Raises:
            RuntimeError: A large buffer, unchanged in its first batches, was written where torch counts no version.
        """
        rng.set_local_rng_state(self._generators)
        if self._metrics is not None:
            self._metrics.restore()
        for module, table in self._tables:
            for name in [name for name in table if (id(module), name) not in self._buffers]:
                del table[name]  # made since
                module._non_persistent_buffers_set.discard(name)  # pyright: ignore[reportPrivateUsage]
        for buffer in self._buffers.values():
            buffer.restore()

    def _find_buffers(self) -> None:
        """Know those that there are now: some modules make them in a forward pass."""
        if not self._tables:
            self._tables = [(module, module._buffers) for module in self._state.model.modules()]  # pyright: ignore[reportPrivateUsage]
        names = [name for _, table in self._tables for name in table]
        if names != self._names:
            known, self._names = self._buffers, names
            keys = {(id(module), name): (module, name) for module, table in self._tables for name in table}
            self._buffers = {key: known.get(key) or _Buffer(*where) for key, where in keys.items()}


class _Buffer:
    """A buffer of a module: which tensor it is, and its values at the beginning of a batch.

    A large one that the first batches did not change has one copy, on the host, from then on. That it still is so at
    the beginning of a batch is told by its version, without waiting for the device. The version of a small one tells
    nothing: the running statistics of batch normalization are written without counting one.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self._name = module, name
        self._tensor: Tensor | None = None
        self._copy: Tensor | None = None
        self._noted = 0
        self._changes = False
        # Of a large one that has not changed: its memory and its version.
        self._unchanged: tuple[int, int] | None = None

    def note(self) -> None:
        """Remember it as it is now."""
        now = self._now()
        if self._unchanged is not None:
            if self._is_untouched(now):
                return
            self._unchanged, self._changes = None, True
        elif now is not None and not self._changes and _is_large(now):
            # To compare values waits for the device, in the first batches.
            self._changes = self._noted > 0 and not (now is self._tensor and _equal(now, self._copy))
            if self._noted == _BATCHES_TO_LEARN and not self._changes:
                self._copy, self._unchanged = now.detach().to("cpu", copy=True), _mark(now)
                return
            self._noted += 1
        self._tensor = now
        if now is None:
            self._copy = None
        elif self._copy is not None and _is_like(self._copy, now) and self._copy.device == now.device:
            self._copy.copy_(now.detach())
        else:
            self._copy = now.detach().clone()

    def restore(self) -> None:
        """Put it back; may be called again."""
        now, tensor = self._now(), self._tensor
        if self._unchanged is not None:
            if self._is_untouched(now):
                self._check()
                return
            self._unchanged, self._changes = None, True
        self._module._buffers[self._name] = tensor  # pyright: ignore[reportPrivateUsage]
        if tensor is None or _equal(tensor, self._copy):
            return
        copy = cast(Tensor, self._copy)
        if _is_like(tensor, copy):
            tensor.detach().copy_(copy)
        else:
            tensor.data = copy.to(tensor.device, copy=True)

    def _check(self) -> None:
        """Refuse to train on where a value is not known."""
        if not _equal(cast(Tensor, self._tensor), self._copy):
            raise RuntimeError(
                f"Out of memory, and the buffer {self._name!r} of {type(self._module).__name__} cannot be restored: it "
                f"did not change in the first {_BATCHES_TO_LEARN} batches, and was then written in a way that torch "
                f"does not count, such as through `.data`. Write to the buffer itself, or give "
                f"device_train_microbatch_size a number."
            )

    def _is_untouched(self, now: Tensor | None) -> bool:
        return now is not None and now is self._tensor and _mark(now) == self._unchanged

    def _now(self) -> Tensor | None:
        return self._module._buffers.get(self._name)  # pyright: ignore[reportPrivateUsage]


def _is_large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= _LARGE


def _mark(tensor: Tensor) -> tuple[int, int]:
    """What tells that a tensor was written, of those that count it; nothing writes those of inference."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _is_like(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _equal(tensor: Tensor, copy: Tensor | None) -> bool:
    return copy is not None and _is_like(tensor, copy) and torch.equal(tensor.to(copy.device), copy)


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
