"""Learning rate finder (range test): train at growing learning rates, then restore the run bit for bit."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composer import dist, rng
from composer._numbers import positive
from composer.core.data_sharding import parts_of
from composer.core.data_spec import DataSpec
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.ledger.clock import LedgerClock
from composer.optim.lr_finder import RangeTest, geometric_learning_rates
from composer.trainer.auto_microbatch.undo import ObjectSnapshot
from composer.trainer.batch_loading import batches
from composer.trainer.progress import advance
from composer.trainer.run import Run
from composer.trainer.step import train_batch
from composer.trainer.training_data import training_data_kept

__all__ = ["find_lr"]

# Number of batches between reads of the losses from the device, to check whether they diverge.
_READ_EVERY = 10
# Decay of the running mean of the losses.
_KEPT = 0.9


def find_lr(run: Run, min_lr: float, max_lr: float, num_batches: int, stop_factor: float) -> RangeTest:
    """Train with the run's algorithms from its current state, at a learning rate that grows per batch; then restore it.

    Callbacks and loggers see nothing.

    Args:
        run: The run; its state has data and optimizers.
        min_lr: The first learning rate.
        max_lr: The last learning rate.
        num_batches: Number of learning rates.
        stop_factor: Stop when the running mean of the loss exceeds its minimum by this factor.

    Raises:
        ValueError: An argument is out of range, data or optimizers are missing, or the data can be read only once.
    """
    learning_rates = geometric_learning_rates(min_lr, max_lr, num_batches)
    if positive("stop_factor", stop_factor) <= 1:
        raise ValueError(f"stop_factor must be greater than 1, but got {stop_factor}.")
    if run.state.train_phase.loader is None:
        raise ValueError("find_lr requires train_dataloader of the Trainer: it trains on this data.")
    if not run.state.optimizers:
        raise ValueError("find_lr requires optimizers of the Trainer: a learning rate is specific to an optimizer.")
    if run.strategy.has_own_optimizer_step:
        raise ValueError(f"find_lr does not work with {run.strategy.name}: its weights cannot be restored afterwards.")
    with _restored_afterwards(run):
        losses = _train(run, learning_rates, stop_factor)
    return RangeTest(learning_rates[: len(losses)], losses)


def _train(run: Run, learning_rates: list[float], stop_factor: float) -> list[float]:
    state, fire = run.state, run.engine.run_event
    groups = _relative_lrs(run)
    losses: list[float] = []
    unread: list[Tensor] = []
    fire(Event.FIT_START)
    state.train_phase.batch_start_time = time.perf_counter()
    fire(Event.EPOCH_START)
    for number, (rate, state.batch) in enumerate(zip(learning_rates, _repeat_batches(run), strict=False), start=1):
        for group, ratio in groups:
            _set_lr(group, rate * ratio)
        fire(Event.BATCH_START)
        train_batch(run)
        unread.append(state.total_loss_dict["loss/train/total"].clone())
        advance(run)
        fire(Event.BATCH_END)
        if len(unread) == _READ_EVERY or number == len(learning_rates):
            losses += _read(unread)
            unread = []
            end = _divergence_index(losses, stop_factor)
            if end < len(losses):
                return losses[:end]
    return losses


def _relative_lrs(run: Run) -> list[tuple[dict[str, Any], float]]:
    """Return all parameter groups with their learning rates relative to the first group, without schedules."""
    groups = [group for optimizer in run.state.optimizers for group in optimizer.param_groups]
    found = [float(group.get("initial_lr", group["lr"])) for group in groups]
    if not found[0]:
        raise ValueError("optimizers: the first parameter group has a learning rate of 0; give any other.")
    return [(group, rate / found[0]) for group, rate in zip(groups, found, strict=True)]


def _set_lr(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
    if "initial_lr" in group:  # as if the optimizer had been created with it: weight decay may be relative to it
        group["initial_lr"] = rate


def _repeat_batches(run: Run) -> Iterator[Batch]:
    phase = run.state.train_phase
    while True:
        yield from batches(run)
        phase.timestamp, phase.extra_batches = phase.timestamp.to_next_epoch(), 0


def _read(losses: list[Tensor]) -> list[float]:
    """Return the losses averaged over all ranks, in one transfer."""
    values = torch.stack(losses).float()
    if dist.get_world_size() > 1:
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return values.tolist()


def _divergence_index(losses: list[float], stop_factor: float) -> int:
    """Return the number of losses before their running mean diverges; single batches may vary by more."""
    lowest, mean = math.inf, 0.0
    for index, loss in enumerate(losses):
        mean = _KEPT * mean + (1 - _KEPT) * loss
        level = mean / (1 - _KEPT ** (index + 1))
        if not math.isfinite(level) or (lowest > 0 and level > stop_factor * lowest):
            return index
        lowest = min(lowest, level)
    return len(losses)


@contextlib.contextmanager
def _restored_afterwards(run: Run) -> Generator[None]:
    """Start the run from its seed, without callbacks and loggers; on exit, restore everything bit for bit."""
    state, engine, phase = run.state, run.engine, run.state.train_phase
    names = ("generator", "sampler", "batch_sampler")
    samplers = [getattr(part, name, None) for part in parts_of(phase.loader.dataloader) for name in names]
    with _data_kept(run) as used, rng.seed_context(state.seed):
        snapshot = ObjectSnapshot(
            [state.model, state.optimizers, tuple(state.algorithms), state.schedulers, state.scaler, *samplers]
        )
        algorithms, callbacks = list(state.algorithms), list(state.callbacks)
        logger, model = engine.logger, state.model
        attributes = [(owner, dict(vars(owner))) for owner in (state, phase, run)]
        try:
            engine.logger = run.logger = Logger(state, [])
            if getattr(model, "logger", None) is logger:
                model.logger = run.logger  # type: ignore[assignment]
            state.clock = LedgerClock()  # its steps are not those of the run
            state.callbacks = []
            state.schedulers, state.train_metrics = [], {}
            phase.loader = used
            phase.timestamp, phase.extra_batches = Timestamp(), 0
            phase.iterator = phase.epoch_iterators = phase.resume_position = phase.last_epoch = None
            model.train()
            yield
        finally:
            for owner, before in attributes:
                vars(owner).clear()
                vars(owner).update(before)
            engine.logger = logger
            # Setting them also makes the engine rebuild its event plans.
            state.algorithms, state.callbacks = algorithms, callbacks
            snapshot.restore()


@contextlib.contextmanager
def _data_kept(run: Run) -> Generator[DataSpec]:
    """Keep the position in the training data, and yield what to train on meanwhile."""
    spec: DataSpec = run.state.train_phase.loader
    loader = spec.dataloader
    if isinstance(loader, Iterator):
        raise ValueError(
            f"train_dataloader is an iterator, which can be read once: {loader!r}. Use an object that can be iterated "
            f"in every epoch, such as a DataLoader or a list."
        )
    # Persistent workers serve one iterator at a time: keep those of the current epoch with it.
    attributes = getattr(loader, "__dict__", {})
    workers = {"_iterator": attributes["_iterator"]} if isinstance(loader, DataLoader) else {}
    with training_data_kept(run, loader, "train_dataloader") as used:
        attributes.update(dict.fromkeys(workers))
        try:
            given = copy.copy(spec)
            given.dataloader = used
            yield given
        finally:
            attributes.update(workers)
