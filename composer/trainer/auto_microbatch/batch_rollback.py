"""Save and restore what running a batch changes (random state, buffers, metrics), to retry it after OOM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, is_
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

_join = b"".join
_table_of = attrgetter("_buffers")
_shape_and_dtype = attrgetter("shape", "dtype")


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
        # Small buffers on the host that stay in place, and all others.
        self._in_place: _BuffersInPlace | None = None
        self._others: list[_Buffer] = []

    def save(self) -> None:
        """Save the state before a batch."""
        if self._generators is None:
            self._generators = rng.RNGSnapshot()
        else:
            self._generators.save()
        metrics = self._state.train_metrics
        self._metrics = MetricStates(metrics) if metrics else None
        self._find_buffers()
        if self._in_place is not None and not self._in_place.save():
            self._in_place, self._others = None, list(self._buffers.values())
        is_new = False
        for buffer in self._others:
            buffer.save()
            is_new = is_new or buffer.is_in_place
        if is_new:
            self._group_buffers()

    def _group_buffers(self) -> None:
        """Save the buffers that stay in place together from now on."""
        if self._in_place is not None:
            self._in_place.copy_to_buffers()
        buffers = self._buffers.values()
        self._in_place = _BuffersInPlace([buffer for buffer in buffers if buffer.is_in_place])
        self._others = [buffer for buffer in buffers if not buffer.is_in_place]

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
        if self._in_place is not None:
            self._in_place.copy_to_buffers()
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
            self._in_place, self._others = None, list(self._buffers.values())


class _Buffer:
    """A module's buffer: its tensor, and a copy of its values at the start of a batch.

    A large buffer that the first batches did not change is copied once, to the host. Afterwards its version counter
    shows whether it changed, without a device synchronization. For small buffers the version is not reliable: BatchNorm
    writes its running statistics without incrementing it. Those on the host are copied as bytes, since a call of
    ``copy_`` takes longer than the copy; those that stay in place, all in one call by :class:`_BuffersInPlace`.

    Attributes:
        module: The module.
        name: The name of the buffer in it.
        tensor: The tensor that was saved.
        is_in_place: Whether it is small, on the host, and had the same memory and layout in the last batches.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self.tensor: Tensor | None = None
        self.is_in_place = False
        self._num_in_place = 0
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
        if self._memory is not None and now is not None and now is self.tensor and _layout(now) == self._layout:
            source, target = self._memory
            target[:] = source
            self._num_in_place += 1
            self.is_in_place = self._num_in_place >= _BATCHES_TO_LEARN
            return
        self._num_in_place, self.is_in_place = 0, False
        if self._unchanged is not None:
            if self._is_unchanged(now):
                return
            self._unchanged, self._changes = None, True
        elif now is not None and not self._changes and _is_large(now):
            # Comparing values synchronizes with the device, but only in the first batches.
            self._changes = self._num_saved > 0 and not (now is self.tensor and _equal(now, self._copy))
            if self._num_saved == _BATCHES_TO_LEARN and not self._changes:
                self._copy, self._unchanged = now.detach().to("cpu", copy=True), _version(now)
                return
            self._num_saved += 1
        self.tensor = now
        if now is None:
            self._copy = None
        elif self._copy is not None and _is_like(self._copy, now) and self._copy.device == now.device:
            self._copy.copy_(now.detach())
        else:
            self._copy = now.detach().clone()
        self._view_memory()

    def set_copy(self, values: bytes) -> None:
        """Set the copy of a buffer in place."""
        assert self._memory is not None
        self._memory[1][:] = values

    def _view_memory(self) -> None:
        """Prepare to copy the buffer as bytes, if it is a small one on the host."""
        tensor, copy = self.tensor, self._copy
        self._memory = None
        # The copy may be older, and have the strides that the buffer had then.
        if tensor is not None and copy is not None and _is_plain(tensor) and _is_plain(copy):
            self._layout = _layout(tensor)
            self._memory = memory_at(tensor.data_ptr(), tensor.nbytes), memory_at(copy.data_ptr(), copy.nbytes)

    def restore(self) -> None:
        """Restore the buffer; may be called more than once."""
        now, tensor = self._now(), self.tensor
        if self._unchanged is not None:
            if self._is_unchanged(now):
                self._check_unchanged()
                return
            self._unchanged, self._changes = None, True
        self.module._buffers[self.name] = tensor  # pyright: ignore[reportPrivateUsage]
        if tensor is None or _equal(tensor, self._copy):
            return
        copy = cast(Tensor, self._copy)
        if _is_like(tensor, copy):
            tensor.detach().copy_(copy)
        else:
            tensor.data = copy.to(tensor.device, copy=True)

    def _check_unchanged(self) -> None:
        """Raise if the value of the buffer is unknown, since it changed without a version increment."""
        if not _equal(cast(Tensor, self.tensor), self._copy):
            raise RuntimeError(
                f"Out of memory, and the buffer {self.name!r} of {type(self.module).__name__} cannot be restored: it "
                f"did not change in the first {_BATCHES_TO_LEARN} batches, and was then written without incrementing "
                f"its version, such as through `.data`. Write to the buffer itself, or set "
                f"device_train_microbatch_size to a number."
            )

    def _is_unchanged(self, now: Tensor | None) -> bool:
        return now is not None and now is self.tensor and _version(now) == self._unchanged

    def _now(self) -> Tensor | None:
        return self.module._buffers.get(self.name)  # pyright: ignore[reportPrivateUsage]


class _BuffersInPlace:
    """Small buffers on the host that stay in place: one call copies them all.

    After a training step, calls cost more than what they copy, so each check below is one call for all buffers too.

    Args:
        buffers: Saved buffers in place.
    """

    def __init__(self, buffers: Sequence[_Buffer]) -> None:
        self._buffers = buffers
        self._modules = [buffer.module for buffer in buffers]
        self._names = [buffer.name for buffer in buffers]
        self._tensors = [cast(Tensor, buffer.tensor) for buffer in buffers]
        self._layouts = self._find_layouts()
        self._memory = [memory_at(tensor.data_ptr(), tensor.nbytes) for tensor in self._tensors]
        # None if the copies of the buffers themselves are the latest ones.
        self._copied: bytes | None = None

    def save(self) -> bool:
        """Copy the values; return False, and copy nothing, if a buffer was replaced or has another layout."""
        now = map(dict.get, map(_table_of, self._modules), self._names)
        # The memory may have been freed if the layout is another.
        if not all(map(is_, now, self._tensors)) or self._find_layouts() != self._layouts:
            return False
        self._copied = _join(self._memory)
        return True

    def copy_to_buffers(self) -> None:
        """Hand the saved values to the buffers, which restore them."""
        if self._copied is None:
            return
        begin = 0
        for buffer, memory in zip(self._buffers, self._memory, strict=True):
            buffer.set_copy(self._copied[begin : begin + len(memory)])
            begin += len(memory)

    def _find_layouts(self) -> tuple[list[Any], ...]:
        tensors = self._tensors
        return (
            [*map(Tensor.data_ptr, tensors)],
            [*map(_shape_and_dtype, tensors)],
            [*map(Tensor.stride, tensors)],
        )


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
