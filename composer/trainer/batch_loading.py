"""Fetch training batches: iterate over an epoch of the data, transfer to the device, count samples and tokens."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import cast

import torch

from composer import trees
from composer._containers import copy_containers
from composer.core.data_spec import DataSpec
from composer.core.device_transfer import start_transfer
from composer.core.epoch_iterator import EpochIterator
from composer.core.event import AFTER_DATALOADER, BEFORE_DATALOADER
from composer.core.infinite_data import EFFECTIVELY_INFINITE, LongEpochWatch, raise_if_infinite
from composer.core.phase import Phase
from composer.core.time import Time, TimeUnit
from composer.core.types import Batch
from composer.core.user_counts import as_tokens
from composer.devices import Device
from composer.ledger.category import Category
from composer.trainer.microbatch_weights import batch_weight, count_loaded
from composer.trainer.run import Run
from composer.trainer.step import may_read_losses
from composer.trainer.training_data import end_epoch_iterator, start_epoch_iterator
from composer.trainer.uneven_data import END, UnevenInputs

__all__ = [
    "batches",
    "check_epochs_end",
    "is_at_end",
    "load",
    "to_device",
]

_REMEDY = "Set train_subset_num_batches, or give max_duration (duration of fit) in batches, samples, tokens or time."


def check_epochs_end(run: Run) -> bool:
    """Return whether training ends only if data of unknown length does; raise if the data is infinite.

    Args:
        run: The run; its state has data and ``max_duration``.

    Raises:
        ValueError: The duration is in epochs, their number of batches is not given, and the data is infinite.
    """
    state, phase = run.state, run.state.train_phase
    duration = cast(Time, state.max_duration)
    unit = duration.unit
    if unit is TimeUnit.ITERATION and (length := state._iteration_length) is not None:  # pyright: ignore[reportPrivateUsage]
        unit = length.unit
    if unit is not TimeUnit.EPOCH or run.options.overfit_batches or 0 < (phase.length or 0) < EFFECTIVELY_INFINITE:
        return False
    raise_if_infinite(f"max_duration={duration}, but an epoch of train_dataloader", phase.loader.dataloader, _REMEDY)
    return phase.length is None


def batches(run: Run, *, check_infinite: bool = False) -> Iterator[Batch]:
    """Yield the remaining batches of the epoch: fire the dataloader events, move each batch to the device, count it.

    An epoch that an earlier fit left in the middle continues there.

    Args:
        run: The run.
        check_infinite: Whether training never ends if the data is infinite. If so, infinite data raises, and a
            suspiciously long epoch warns.

    Raises:
        ValueError: The data yields no batches, or is infinite although it must end.
    """
    state, fire, clock = run.state, run.engine.run_event, run.state.clock
    phase = state.train_phase
    spec: DataSpec = phase.loader
    if phase.iterator is None:
        with clock.during(Category.DATA):
            phase.iterator = start_epoch_iterator(run)
    iterator = phase.iterator
    watch = _watch(phase, iterator) if check_infinite else None
    # Batches by index can be fetched again.
    keeps_batch = isinstance(iterator, EpochIterator) and iterator.resume_by != "indices"
    count = functools.partial(_set_counts, run, spec)
    while True:
        fire(BEFORE_DATALOADER)
        clock.wait()
        run.fetched, run.gradients_ready = (), False
        if phase.batches_per_step == 1:
            phase.batches_in_step = phase.num_fetched = 1
            batch = END if is_at_end(phase) else next(iterator, END)
            run.fetched = (copy_containers(batch) if keeps_batch else None,)
        else:
            batch = _fetch_joined(run, iterator, keeps_batch=keeps_batch)
        if run.uneven_inputs is not None:
            batch = _batch_or_dummy(run, run.uneven_inputs, batch)
        if batch is END:
            run.fetched = None
            clock.end_epoch()
            break
        phase.in_step = True
        is_idle = run.uneven_inputs is not None and run.uneven_inputs.is_idle
        state.batch = load(batch, spec, state.device, run.strategy.batch_dtype, None if is_idle else count)
        if run.uneven_inputs is not None and not is_idle:
            _send_counts(run)
            run.uneven_inputs.join_first_step()
        clock.train()
        fire(AFTER_DATALOADER)
        yield state.batch
        if watch is not None:
            watch.update(phase.batches_loaded)
    end_epoch_iterator(phase)
    if phase.timestamp.batch_in_epoch.value == 0:
        raise ValueError(
            f"train_dataloader yielded no batch in epoch {phase.timestamp.epoch.value}: {spec.dataloader!r}. It is "
            f"empty, drops its only batch (drop_last=True), or is an iterator, which can be read once; use an object "
            f"that can be iterated in every epoch, such as a DataLoader or a list."
        )


def _watch(phase: Phase, iterator: Iterator[Batch]) -> LongEpochWatch | None:
    """Raise if the iterator is infinite; if that is unknown, watch the first epoch for suspicious length."""
    source = iterator.source if isinstance(iterator, EpochIterator) else iterator
    raise_if_infinite("max_duration is in epochs, but an epoch of train_dataloader", source, _REMEDY)
    if phase.timestamp.epoch.value > 0:  # an epoch has ended
        return None
    message = (
        f"max_duration is in epochs, but the first epoch of train_dataloader takes very long, and "
        f"{phase.loader.dataloader!r} has no length. If the data is infinite, training never ends. {_REMEDY}"
    )
    return LongEpochWatch(message, seconds=3600)


def is_at_end(phase: Phase) -> bool:
    """Return whether the current epoch has yielded all its batches; False if their number is unknown.

    An epoch that was started with a different number of ranks or batch size has a different number of batches than
    later epochs.

    Args:
        phase: The training phase.

    >>> from composer.core import TrainerMode
    >>> is_at_end(Phase(TrainerMode.TRAIN, length=2))
    False
    """
    length = _epoch_length(phase)
    return length is not None and phase.batches_loaded >= length


def _epoch_length(phase: Phase) -> int | None:
    """Return the number of batches of the loader in the current epoch, or None if unknown."""
    length, own = phase.length, getattr(phase.iterator, "length", None)
    if own is None:
        return length
    is_part = length is not None and phase.epoch_iterators is not None and length != phase.epoch_iterators.length
    return min(length, own) if is_part else own


def _fetch_joined(run: Run, iterator: Iterator[Batch], *, keeps_batch: bool) -> Batch:
    """Fetch the batches of a step and join them to one; the last step of an epoch may have fewer, or none (``END``)."""
    phase = run.state.train_phase
    length, fetched = _epoch_length(phase), list[Batch]()
    left = phase.batches_per_step if length is None else max(length - phase.batches_loaded, 0)
    phase.batches_in_step = min(phase.batches_per_step, left)
    run.is_fetching = True
    for batch in itertools.islice(iterator, phase.batches_in_step):
        fetched.append(batch)
        assert run.fetched is not None
        run.fetched = (*run.fetched, copy_containers(batch) if keeps_batch else None)
    run.is_fetching = False
    phase.num_fetched = len(fetched)
    return phase.loader.join_batches(fetched) if fetched else END


def _batch_or_dummy(run: Run, uneven_inputs: UnevenInputs, batch: Batch) -> Batch:
    """Return the batch, or a dummy if this rank has none and other ranks do (uneven inputs)."""
    if batch is not END:
        uneven_inputs.set_batch(batch)
        return batch
    if is_at_end(run.state.train_phase):
        return END  # on all ranks
    run.samples = run.tokens = run.state.train_phase.num_fetched = 0
    run.batch_counts = None
    return uneven_inputs.dummy_batch(lambda: _send_counts(run, has_batch=False))


def _set_counts(run: Run, spec: DataSpec, batch: Batch) -> None:
    """Set the numbers of samples and tokens of the current batch, and what its loss averages over."""
    run.samples = spec.__num_samples__(batch)
    run.user_token_count = spec.__tokens__(batch)
    run.tokens = as_tokens(run.user_token_count)
    if run.step_sync is not None:
        run.batch_counts = count_loaded(run, batch)


def _send_counts(run: Run, *, has_batch: bool = True) -> None:
    """Start the all-reduce of the batch's counts over the ranks."""
    assert run.step_sync is not None
    phase, now = run.state.train_phase, time.perf_counter()
    signum = None if run.interruption is None else run.interruption.signum
    run.step_sync.send_counts(
        run.samples,
        run.tokens,
        now - phase.batch_start_time,
        signum,
        run.state.stop_requested is not None,
        has_batch=has_batch,
        metrics_due=_metrics_due(run),
        reads_losses=may_read_losses(run),
        weight=batch_weight(run, has_batch=has_batch),
    )
    phase.batch_start_time = now


def _metrics_due(run: Run) -> bool:
    """Return whether a logger is due after this batch: metrics are computed on all ranks or on none."""
    if not run.logger.destinations:
        return False
    phase = run.state.train_phase
    now, extra = phase.timestamp, phase.extra_batches
    phase.timestamp = now.to_next_batch(run.samples, run.tokens)
    phase.extra_batches += phase.batches_in_step - 1
    try:
        return run.logger.poll()
    finally:
        phase.timestamp, phase.extra_batches = now, extra


def to_device(batch: Batch, device: Device) -> Batch:
    """Move a batch to a device, overlapping the transfer with computation.

    Args:
        batch: The batch; transfers are asynchronous only from pinned memory.
        device: The target device.

    >>> from composer.devices import get_device
    >>> to_device([torch.ones(2)], get_device("cpu"))
    [tensor([1., 1.])]
    """
    if not device.has_side_streams:
        return device.batch_to_device(batch)
    # The host runs ahead of the device, so a copy on its own stream overlaps the step that is still being computed.
    return start_transfer(batch, device.torch_device, device.batch_to_device).wait()


def load(
    batch: Batch,
    spec: DataSpec,
    device: Device,
    dtype: torch.dtype | None = None,
    count: Callable[[Batch], object] | None = None,
) -> Batch:
    """Move a batch to the device and apply the data's transforms.

    Args:
        batch: The batch that the loader yielded.
        spec: Describes the data.
        device: The target device.
        dtype: Dtype to convert floating-point tensors to afterwards; None does not convert.
        count: Called with the batch on the host, so that a user function that reads values does not synchronize with
            the device; if the data has batch transforms, called with the transformed batch instead.

    >>> from composer.devices import get_device
    >>> load(torch.ones(2), DataSpec([], batch_transforms=lambda batch: batch * 2), get_device("cpu"))
    tensor([2., 2.])
    """
    if count is not None and spec.batch_transforms is None:
        count(batch)
    batch = to_device(batch, device)
    if spec.batch_transforms is not None:
        batch = spec.batch_transforms(batch)
        if count is not None:
            count(batch)
    if dtype is None:
        return batch
    return trees.map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, batch)
