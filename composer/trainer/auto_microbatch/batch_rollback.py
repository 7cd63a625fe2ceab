"""Save and restore what running a batch changes (random state, buffers, metrics), to retry it after OOM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from composer import rng
from composer._raw_memory import memory_at
from composer.core.state import State

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = ["BatchRollback", "MetricStates"]

# Smaller buffers are copied for every batch; larger ones, such as masks and position tables, only if they change, which
# is observed over this many batches.
_LARGE = 2**20  # bytes
_BATCHES_TO_LEARN = 3


class BatchRollback:
    """Saves the random generators, the buffers that forward passes change, and the training metrics.

    Args:
        state: The state of the run.

    >>> state = State(model=torch.nn.BatchNorm1d(1))
    >>> rollback = BatchRollback(state)
    >>> rollback.save()
    >>> _ = state.model(torch.rand(4, 1))
    >>> rollback.restore()
    >>> state.model.running_mean, state.model.num_batches_tracked
    (tensor([0.]), tensor(0))
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._generators: rng.RNGSnapshot | None = None
        self._metrics: MetricStates | None = None
        # The modules of a model are fixed; their sets of buffers may change.
        self._modules: list[nn.Module] = []
        self._tables: list[dict[str, Tensor | None]] = []
        self._empty: list[dict[str, Tensor | None]] = []
        self._filled: list[dict[str, Tensor | None]] = []
        # Of the filled tables.
        self._names: list[tuple[str, ...]] = []
        self._buffers: dict[tuple[int, str], _Buffer] = {}

    def save(self) -> None:
        """Save the state before a batch."""
        if self._generators is None:
            self._generators = rng.RNGSnapshot()
        else:
            self._generators.save()
        metrics = self._state.train_metrics
        self._metrics = MetricStates(metrics) if metrics else None
        self._find_buffers()
        for buffer in self._buffers.values():
            buffer.save()

    def restore(self) -> None:
        """Restore the saved state; may be called more than once.

        Raises:
            RuntimeError: A large buffer, unchanged in its first batches, was written without a version increment.
        """
        assert self._generators is not None, "nothing was saved"
        self._generators.restore()
        if self._metrics is not None:
            self._metrics.restore()
        for module, table in zip(self._modules, self._tables, strict=True):
            for name in [name for name in table if (id(module), name) not in self._buffers]:
                del table[name]  # created since
                module._non_persistent_buffers_set.discard(name)  # pyright: ignore[reportPrivateUsage]
        for buffer in self._buffers.values():
            buffer.restore()

    def _find_buffers(self) -> None:
        """Find the current buffers: some modules create them in a forward pass."""
        if not self._modules:
            self._modules = list(self._state.model.modules())
            self._tables = [module._buffers for module in self._modules]  # pyright: ignore[reportPrivateUsage]
            self._empty = self._tables
        if any(self._empty) or [*map(tuple, self._filled)] != self._names:
            self._empty = [table for table in self._tables if not table]
            self._filled = [table for table in self._tables if table]
            self._names = [*map(tuple, self._filled)]
            known = self._buffers
            self._buffers = {
                (id(module), name): known.get((id(module), name)) or _Buffer(module, name)
                for module, table in zip(self._modules, self._tables, strict=True)
                for name in table
            }


class _Buffer:
    """A module's buffer: its tensor, and a copy of its values at the start of a batch.

    A large buffer that the first batches did not change is copied once, to the host. Afterwards its version counter
    shows whether it changed, without a device synchronization. For small buffers the version is not reliable: BatchNorm
    writes its running statistics without incrementing it. Those on the host are copied as bytes, since a call of
    ``copy_`` takes longer than the copy.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self._name = module, name
        self._tensor: Tensor | None = None
        self._copy: Tensor | None = None
        self._num_saved = 0
        self._changes = False
        # Memory address and version of a large buffer that has not changed.
        self._unchanged: tuple[int, int] | None = None
        # The memory of a small buffer on the host and of its copy, and the layout of both.
        self._memory: tuple[memoryview, memoryview] | None = None
        self._layout: tuple[Any, ...] = ()

    def save(self) -> None:
        """Save the buffer."""
        now = self._now()
        if self._memory is not None and now is not None and now is self._tensor and _layout(now) == self._layout:
            source, target = self._memory
            target[:] = source
            return
        if self._unchanged is not None:
            if self._is_unchanged(now):
                return
            self._unchanged, self._changes = None, True
        elif now is not None and not self._changes and _is_large(now):
            # Comparing values synchronizes with the device, but only in the first batches.
            self._changes = self._num_saved > 0 and not (now is self._tensor and _equal(now, self._copy))
            if self._num_saved == _BATCHES_TO_LEARN and not self._changes:
                self._copy, self._unchanged = now.detach().to("cpu", copy=True), _version(now)
                return
            self._num_saved += 1
        self._tensor = now
        if now is None:
            self._copy = None
        elif self._copy is not None and _is_like(self._copy, now) and self._copy.device == now.device:
            self._copy.copy_(now.detach())
        else:
            self._copy = now.detach().clone()
        self._view_memory()

    def _view_memory(self) -> None:
        """Prepare to copy the buffer as bytes, if it is a small one on the host."""
        tensor, copy = self._tensor, self._copy
        self._memory = None
        # The copy may be older, and have the strides that the buffer had then.
        if tensor is not None and copy is not None and _is_plain(tensor) and _is_plain(copy):
            self._layout = _layout(tensor)
            self._memory = memory_at(tensor.data_ptr(), tensor.nbytes), memory_at(copy.data_ptr(), copy.nbytes)

    def restore(self) -> None:
        """Restore the buffer; may be called more than once."""
        now, tensor = self._now(), self._tensor
        if self._unchanged is not None:
            if self._is_unchanged(now):
                self._check_unchanged()
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

    def _check_unchanged(self) -> None:
        """Raise if the value of the buffer is unknown, since it changed without a version increment."""
        if not _equal(cast(Tensor, self._tensor), self._copy):
            raise RuntimeError(
                f"Out of memory, and the buffer {self._name!r} of {type(self._module).__name__} cannot be restored: it "
                f"did not change in the first {_BATCHES_TO_LEARN} batches, and was then written without incrementing "
                f"its version, such as through `.data`. Write to the buffer itself, or set "
                f"device_train_microbatch_size to a number."
            )

    def _is_unchanged(self, now: Tensor | None) -> bool:
        return now is not None and now is self._tensor and _version(now) == self._unchanged

    def _now(self) -> Tensor | None:
        return self._module._buffers.get(self._name)  # pyright: ignore[reportPrivateUsage]


def _is_large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= _LARGE


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is small, and its values are bytes in contiguous memory of the host."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    is_lazy = tensor.is_complex() or tensor.is_neg()  # the bytes may not be the values
    return tensor.is_contiguous() and not is_lazy and 0 < tensor.nbytes < _LARGE


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    """Return what says where the values of a tensor are; it changes if ``.data`` is set."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _version(tensor: Tensor) -> tuple[int, int]:
    """Return the address and version of a tensor, which change when it is written (inference tensors have none)."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _is_like(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _equal(tensor: Tensor, copy: Tensor | None) -> bool:
    return copy is not None and _is_like(tensor, copy) and torch.equal(tensor.to(copy.device), copy)


class MetricStates:
    """Saves the states of metrics.

    Args:
        metrics: Metrics by name.

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
            for each in _with_children(metrics.values())
        ]

    def restore(self) -> None:
        """Restore the states; may be called more than once."""
        for metric, values, count in self._states:
            for name, value in values.items():
                setattr(metric, name, _copied(value))
            metric._update_count, metric._computed = count, None


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else list(value)


def _with_children(metrics: Iterable[Metric]) -> list[Any]:
    """Return the metrics and their child metrics."""
    modules = [module for metric in metrics for module in cast("nn.Module", metric).modules()]
    return [module for module in modules if hasattr(module, "metric_state")]
