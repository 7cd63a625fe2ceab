"""Fetching batches: passes over the data, transfers to the device, counts."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch

from composer import trees
from composer.core.data import DataSpec
from composer.core.data_pass import PassFactory
from composer.core.event import Event
from composer.core.phase import Phase
from composer.core.types import Batch
from composer.devices import Device
from composer.trainer.run import Run

__all__ = ["batches", "begin_pass", "load", "to_device"]

_END: Any = object()


def batches(run: Run) -> Iterator[Batch]:
    """Iterate over the rest of the epoch: fires the loader's events, moves each batch to the device, counts it.

    A pass that was left in the middle, because training ended, goes on where it was left.

    Args:
        run: The run.

    Raises:
        ValueError: The data yields nothing at all.
    """
    state, fire = run.state, run.engine.run_event
    phase = state.train_phase
    spec: DataSpec = phase.loader
    if phase.iterator is None:
        phase.iterator = begin_pass(run)
    iterator = phase.iterator
    while True:
        fire(Event.BEFORE_DATALOADER)
        done = phase.timestamp.batch_in_epoch.value
        batch = _END if phase.length is not None and done >= phase.length else next(iterator, _END)
        if batch is _END:
            break
        state.batch = batch = load(batch, spec, state.device)
        run.samples = spec.get_num_samples_in_batch(batch)
        run.tokens = int(spec.get_num_tokens_in_batch(batch))
        if run.exchange is not None:
            _tell(run)
        fire(Event.AFTER_DATALOADER)
        yield state.batch
    phase.iterator = None
    if done == 0:
        raise ValueError(
            f"train_dataloader yielded no batch in epoch {phase.timestamp.epoch.value}: {spec.dataloader!r}. It is "
            f"empty, drops its only batch (drop_last=True), or is an iterator, which can be read once; give an object "
            f"that can be iterated in every epoch, such as a DataLoader or a list."
        )


def _tell(run: Run) -> None:
    """Begin to tell the other processes of the batch."""
    assert run.exchange is not None
    phase, now = run.state.train_phase, time.perf_counter()
    signum = None if run.interruption is None else run.interruption.signum
    run.exchange.send_counts(run.samples, run.tokens, now - phase.mark, signum)
    phase.mark = now


def begin_pass(run: Run) -> Iterator[Batch]:
    """Start to iterate over the training data, in the order of the epoch, where a checkpoint says if one was loaded.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    if phase.passes is None or phase.passes.loader is not phase.loader.dataloader:
        phase.passes = PassFactory(phase.loader.dataloader, run.state.seed)
    epoch, done = int(phase.timestamp.epoch), int(phase.timestamp.batch_in_epoch)
    saved = phase.resume
    phase.resume = None
    if not run.options.overfit_batches:
        return phase.passes.begin(epoch, 0 if saved is None else done, saved)
    if phase.repeated is None:
        first = phase.passes.begin(epoch=0)
        phase.repeated = list(itertools.islice(first, run.options.overfit_batches))
        phase.length = len(phase.repeated)
    return itertools.islice(phase.repeated, done, None)


def load(batch: Batch, spec: DataSpec, device: Device) -> Batch:
    """Move a batch to the device and apply the data's transforms.

    Args:
        batch: What the loader yielded.
        spec: Describes the data.
        device: Where to.

    >>> from composer.devices import get_device
    >>> load(torch.ones(2), DataSpec([], batch_transforms=lambda batch: batch * 2), get_device("cpu"))
    tensor([2., 2.])
    """
    batch = to_device(batch, device)
    return batch if spec.batch_transforms is None else spec.batch_transforms(batch)


def to_device(batch: Batch, device: Device) -> Batch:
    """Move a batch to a device, beside what the device is computing.

    Args:
        batch: The batch; its copies run ahead only if it lies in pinned memory.
        device: Where to.

    >>> from composer.devices import get_device
    >>> to_device([torch.ones(2)], get_device("cpu"))
    [tensor([1., 1.])]
    """
    if device.torch_device.type != "cuda":
        return device.batch_to_device(batch)
    # The host runs ahead of the device, so a copy on its own stream overlaps the step that is still being computed.
    side = _side_stream(device.torch_device)
    with torch.cuda.stream(side):
        batch = device.batch_to_device(batch)
    current = torch.cuda.current_stream(device.torch_device)
    current.wait_stream(side)
    for leaf in trees.leaves(batch):
        if isinstance(leaf, torch.Tensor):
            leaf.record_stream(current)
    return batch


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
