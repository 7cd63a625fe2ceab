"""Fetching batches: passes over the data, transfers to the device, counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import cast

import torch

from composer import dist, trees
from composer.core.data_spec import DataSpec
from composer.core.device_transfer import start_transfer
from composer.core.epoch_iterator import EpochIterator
from composer.core.epoch_iterators import EpochIterators
from composer.core.event import Event
from composer.core.infinite_data import AS_GOOD_AS_ENDLESS, LongEpochWatch, refuse_endless
from composer.core.phase import Phase
from composer.core.time import Time, TimeUnit
from composer.core.types import Batch
from composer.core.user_counts import as_tokens
from composer.devices import SIDE_STREAMS, Device
from composer.trainer.failed_step import own_containers
from composer.trainer.run import Run
from composer.trainer.uneven_data import END, UnevenInputs

__all__ = [
    "batches",
    "begin_pass",
    "check_epochs_end",
    "go_between",
    "is_at_end",
    "lend_workers",
    "load",
    "most",
    "to_device",
    "touch",
]

# Larger than any length, and all that 64 bits hold.
_UNKNOWN = 2**63 - 1
_REMEDY = "Give train_subset_num_batches, or max_duration (duration of fit) in batches, samples, tokens or time."


def check_epochs_end(run: Run) -> bool:
    """Return whether training ends only if passes over data of unknown length do; refuse data without an end.

    Args:
        run: The run; its state has data and a maximal duration.

    Raises:
        ValueError: The duration is in epochs, whose number of batches is not given, and the data never ends.
    """
    state, phase = run.state, run.state.train_phase
    duration = cast(Time, state.max_duration)
    unit = duration.unit
    if unit is TimeUnit.ITERATION and (length := state._iteration_length) is not None:  # pyright: ignore[reportPrivateUsage]
        unit = length.unit
    if unit is not TimeUnit.EPOCH or run.options.overfit_batches or (phase.length or _UNKNOWN) < AS_GOOD_AS_ENDLESS:
        return False
    refuse_endless(f"max_duration={duration}, but an epoch of train_dataloader", phase.loader.dataloader, _REMEDY)
    return phase.length is None


def batches(run: Run, *, must_end: bool = False) -> Iterator[Batch]:
    """Iterate over the rest of the epoch: fires the loader's events, moves each batch to the device, counts it.

    A pass that was left in the middle, because training ended, goes on where it was left.

    Args:
        run: The run.
        must_end: Whether training goes on for ever if the data yields without end; a pass that is suspiciously long
            raises a warning then.

    Raises:
        ValueError: The data yields nothing at all, or without end where it has to end.
    """
    state, fire = run.state, run.engine.run_event
    phase = state.train_phase
    spec: DataSpec = phase.loader
    if phase.iterator is None:
        phase.iterator = begin_pass(run)
    iterator = phase.iterator
    watch = _watch(phase, iterator) if must_end else None
    keeps = getattr(iterator, "kind", "indices") != "indices"  # others can be fetched again
    while True:
        fire(Event.BEFORE_DATALOADER)
        run.fetched, run.steps = (), False
        batch = END if is_at_end(phase) else next(iterator, END)
        run.fetched = (own_containers(batch) if keeps else None,)
        if run.uneven_inputs is not None:
            batch = _in_step(run, run.uneven_inputs, batch)
        if batch is END:
            run.fetched = None
            break
        is_idle = run.uneven_inputs is not None and run.uneven_inputs.is_idle
        counts = None if is_idle else (lambda batch: _set_counts(run, spec, batch))
        state.batch = load(batch, spec, state.device, run.strategy.batch_dtype, counts)
        if run.uneven_inputs is not None and not is_idle:
            _tell(run)
            run.uneven_inputs.meet()
        fire(Event.AFTER_DATALOADER)
        yield state.batch
        if watch is not None:
            watch.look(phase.timestamp.batch_in_epoch.value)
    phase.iterator = None
    if isinstance(iterator, EpochIterator):
        iterator.stop()
        phase.ended = iterator, int(phase.timestamp.sample_in_epoch), int(phase.timestamp.batch_in_epoch)
    if phase.timestamp.batch_in_epoch.value == 0:
        raise ValueError(
            f"train_dataloader yielded no batch in epoch {phase.timestamp.epoch.value}: {spec.dataloader!r}. It is "
            f"empty, drops its only batch (drop_last=True), or is an iterator, which can be read once; give an object "
            f"that can be iterated in every epoch, such as a DataLoader or a list."
        )


def _watch(phase: Phase, iterator: Iterator[Batch]) -> LongEpochWatch | None:
    """Refuse an iterator that has no end; watch the first epoch where that cannot be known."""
    source = iterator.source if isinstance(iterator, EpochIterator) else iterator
    refuse_endless("max_duration is in epochs, but an epoch of train_dataloader", source, _REMEDY)
    if phase.timestamp.epoch.value > 0:  # There was an end.
        return None
    message = (
        f"max_duration is in epochs, but the first epoch of train_dataloader has become very long, and "
        f"{phase.loader.dataloader!r} has no length. If it yields without end, training never ends. {_REMEDY}"
    )
    return LongEpochWatch(message, seconds=3600)


def is_at_end(phase: Phase) -> bool:
    """Tell whether the pass under way has had all of its batches, as far as their number is known.

    A pass that was begun by another number of processes, or with another batch size, has another number of batches
    than the ones after it.

    Args:
        phase: That of the training.

    >>> from composer.core import TrainerMode
    >>> is_at_end(Phase(TrainerMode.TRAIN, length=2))
    False
    """
    length, own = phase.length, getattr(phase.iterator, "length", None)
    if own is not None:
        is_part = length is not None and phase.epoch_iterators is not None and length != phase.epoch_iterators.length
        length = min(length, own) if is_part else own
    return length is not None and phase.timestamp.batch_in_epoch.value >= length


def _in_step(run: Run, uneven_inputs: UnevenInputs, batch: Batch) -> Batch:
    """Return the batch, or one in its place where other processes go on without this one."""
    if batch is not END:
        uneven_inputs.keep(batch)
        return batch
    if is_at_end(run.state.train_phase):
        return END  # as all know
    run.samples = run.tokens = 0
    return uneven_inputs.substitute(lambda: _tell(run, has_batch=False))


def _set_counts(run: Run, spec: DataSpec, batch: Batch) -> None:
    """Note the samples and tokens of the batch in work."""
    run.samples = spec.__num_samples__(batch)
    run.counted = spec.__tokens__(batch)
    run.tokens = as_tokens(run.counted)


def _tell(run: Run, *, has_batch: bool = True) -> None:
    """Begin to tell the other processes of the batch."""
    assert run.step_sync is not None
    phase, now = run.state.train_phase, time.perf_counter()
    signum = None if run.interruption is None else run.interruption.signum
    run.step_sync.send_counts(
        run.samples,
        run.tokens,
        now - phase.mark,
        signum,
        run.state.stop_requested is not None,
        has_batch=has_batch,
        looks=_looks(run),
    )
    phase.mark = now


def _looks(run: Run) -> bool:
    """Ask the loggers whether they are due after this batch: all processes compute metrics together, or none does."""
    if not run.logger.destinations:
        return False
    phase = run.state.train_phase
    now, phase.timestamp = phase.timestamp, phase.timestamp.to_next_batch(run.samples, run.tokens)
    try:
        return run.logger.poll()
    finally:
        phase.timestamp = now


def begin_pass(run: Run) -> Iterator[Batch]:
    """Start to iterate over the training data, in the order of the epoch, where a checkpoint says if one was loaded.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    passes = _passes(run, phase)
    epoch, done = int(phase.timestamp.epoch), int(phase.timestamp.batch_in_epoch)
    saved = phase.resume
    phase.resume = phase.ended = None
    touch(run)
    if not run.options.overfit_batches:
        begun = passes.begin(epoch, 0 if saved is None else done, saved)
        if passes.can_prefetch:
            begun.watch_first(phase.first_batch_rng["train"], passes.loader)
        return begun
    if phase.repeated is None:
        first = passes.begin(epoch=0)
        phase.repeated = list(itertools.islice(first, run.options.overfit_batches))
        phase.length = most(len(phase.repeated))
    return itertools.islice(phase.repeated, done, None)


def touch(run: Run) -> None:
    """Have the training data draw again what they drew, and keep, before the checkpoint that was loaded.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    passes = _passes(run, phase)
    if passes.can_prefetch:
        phase.first_batch_rng["train"].repeat(passes.loader, lambda: passes.begin(epoch=0))


def go_between(run: Run) -> None:
    """Bring the training data to where they were between two passes, if a checkpoint says where that was.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    saved, phase.resume = phase.resume, None
    if saved is not None and not run.options.overfit_batches:
        _passes(run, phase).restore_after(int(phase.timestamp.epoch) - 1, saved)


def lend_workers(run: Run) -> None:
    """Let the user's loader of the training data have its persistent workers until the next fit.

    Args:
        run: The run, whose fit is over.
    """
    phase: Phase = run.state.train_phase
    if phase.epoch_iterators is not None:
        current = phase.iterator if isinstance(phase.iterator, EpochIterator) else None
        phase.epoch_iterators.lend_workers(current, int(phase.timestamp.epoch), int(phase.timestamp.batch_in_epoch))


def _passes(run: Run, phase: Phase) -> EpochIterators:
    """What begins passes over the loader that there is now."""
    if phase.epoch_iterators is None or phase.epoch_iterators.loader is not phase.loader.dataloader:
        phase.epoch_iterators = EpochIterators(phase.loader.dataloader, run.state.rank_zero_seed, run.state.data_shard)
        if run.step_sync is not None:
            run.uneven_inputs = UnevenInputs(run.step_sync)
    return phase.epoch_iterators


def most(length: int | None) -> int | None:
    """Return the number of batches of the process that has the most; None where one does not know.

    Args:
        length: That of this process, or None.

    >>> most(3)
    3
    """
    found = dist.largest(_UNKNOWN if length is None else length)
    return None if found == _UNKNOWN else found


def to_device(batch: Batch, device: Device) -> Batch:
    """Move a batch to a device, beside what the device is computing.

    Args:
        batch: The batch; its copies run ahead only if it lies in pinned memory.
        device: Where to.

    >>> from composer.devices import get_device
    >>> to_device([torch.ones(2)], get_device("cpu"))
    [tensor([1., 1.])]
    """
    if device.torch_device.type not in SIDE_STREAMS:
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
        batch: What the loader yielded.
        spec: Describes the data.
        device: Where to.
        dtype: Format that floating-point numbers are brought to then; None leaves them as they are.
        count: Called with the batch on the host, where a function of the user's that reads values waits for no device;
            or, as that counts what the transforms return, with the transformed batch where there are any.

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
