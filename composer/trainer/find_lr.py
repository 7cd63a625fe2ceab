"""Looking for a learning rate by training at growing ones, and leaving no trace."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from composer import dist, rng
from composer._text import positive
from composer.core.epoch_iterator import EpochIterator
from composer.core.epoch_iterators import EpochIterators
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.phase import Phase
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.optim.lr_finder import RangeTest, geometric_learning_rates
from composer.trainer.auto_microbatch.undo import Snapshot
from composer.trainer.batch_loading import batches
from composer.trainer.progress import advance
from composer.trainer.run import Run
from composer.trainer.step import train_batch

__all__ = ["find_lr"]

# The losses are read from the device so often, to see whether they explode.
_READ_EVERY = 10
# The share of the running mean that stays from loss to loss.
_KEPT = 0.9


def find_lr(run: Run, min_lr: float, max_lr: float, num_batches: int, stop_factor: float) -> RangeTest:
    """Train with the run's algorithms from where it is, at rates that grow from batch to batch; then undo all of it.

    Callbacks and loggers see nothing of it.

    Args:
        run: The run; its state has data and optimizers.
        min_lr: The first rate.
        max_lr: The last rate.
        num_batches: Number of rates.
        stop_factor: Stop when the running mean of the loss is so many times the lowest one.

    Raises:
        ValueError: An argument is out of its range, data or optimizers are missing, or the data can be read only once.
    """
    learning_rates = geometric_learning_rates(min_lr, max_lr, num_batches)
    if positive("stop_factor", stop_factor) <= 1:
        raise ValueError(f"stop_factor must be greater than 1, but got {stop_factor}.")
    if run.state.train_phase.loader is None:
        raise ValueError("train_dataloader must be given to the Trainer: the rates are tried on it.")
    if not run.state.optimizers:
        raise ValueError("optimizers must be given to the Trainer: a learning rate is good for one of them.")
    if run.strategy.steps_itself:
        raise ValueError(f"find_lr does not work with {run.strategy.name}: its weights cannot be put back afterwards.")
    with _without_trace(run):
        losses = _train(run, learning_rates, stop_factor)
    return RangeTest(learning_rates[: len(losses)], losses)


def _train(run: Run, learning_rates: list[float], stop_factor: float) -> list[float]:
    state, fire = run.state, run.engine.run_event
    groups = _relative_rates(run)
    losses: list[float] = []
    unread: list[Tensor] = []
    fire(Event.FIT_START)
    state.train_phase.mark = time.perf_counter()
    fire(Event.EPOCH_START)
    for number, (rate, state.batch) in enumerate(zip(learning_rates, _endless(run), strict=False), start=1):
        for group, share in groups:
            _set_rate(group, rate * share)
        fire(Event.BATCH_START)
        train_batch(run)
        unread.append(state.total_loss_dict["loss/train/total"].clone())
        advance(run)
        fire(Event.BATCH_END)
        if len(unread) == _READ_EVERY or number == len(learning_rates):
            losses += _read(unread)
            unread = []
            end = _end(losses, stop_factor)
            if end < len(losses):
                return losses[:end]
    return losses


def _relative_rates(run: Run) -> list[tuple[dict[str, Any], float]]:
    """The groups of all optimizers, and their rates relative to the first's, schedules apart."""
    groups = [group for optimizer in run.state.optimizers for group in optimizer.param_groups]
    found = [float(group.get("initial_lr", group["lr"])) for group in groups]
    if not found[0]:
        raise ValueError("optimizers: the first parameter group has a learning rate of 0; give any other.")
    return [(group, rate / found[0]) for group, rate in zip(groups, found, strict=True)]


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
    if "initial_lr" in group:  # as if the optimizer had been made with it: decay may be relative to that
        group["initial_lr"] = rate


def _endless(run: Run) -> Iterator[Batch]:
    phase = run.state.train_phase
    while True:
        yield from batches(run)
        phase.timestamp = phase.timestamp.to_next_epoch()


def _read(losses: list[Tensor]) -> list[float]:
    """The means over all ranks, in one transfer."""
    values = torch.stack(losses).float()
    if dist.get_world_size() > 1:
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return values.tolist()


def _end(losses: list[float], stop_factor: float) -> int:
    """The number of losses before their running mean explodes: single batches may differ by more."""
    lowest, mean = math.inf, 0.0
    for place, loss in enumerate(losses):
        mean = _KEPT * mean + (1 - _KEPT) * loss
        level = mean / (1 - _KEPT ** (place + 1))
        if not math.isfinite(level) or (lowest > 0 and level > stop_factor * lowest):
            return place
        lowest = min(lowest, level)
    return len(losses)


@contextlib.contextmanager
def _without_trace(run: Run) -> Generator[None]:
    """Have the run begin anew at its seed, with nobody watching; then make everything what it was, bit for bit."""
    state, engine, phase = run.state, run.engine, run.state.train_phase
    put_data_back = _keep_place(phase, state.rank_zero_seed)
    loader = phase.loader.dataloader
    drawing = [getattr(loader, name, None) for name in ("generator", "sampler", "batch_sampler")]
    snapshot = Snapshot(
        [state.model, state.optimizers, tuple(state.algorithms), state.schedulers, state.scaler, *drawing]
    )
    algorithms, callbacks = list(state.algorithms), list(state.callbacks)
    logger, model = engine.logger, state.model
    attributes = [(owner, dict(vars(owner))) for owner in (state, phase, run)]
    with rng.seed_context(state.seed):
        try:
            engine.logger = run.logger = Logger(state, [])
            if getattr(model, "logger", None) is logger:
                model.logger = run.logger  # type: ignore[assignment]
            state.callbacks = []
            state.schedulers, state.train_metrics = [], {}
            phase.timestamp, phase.iterator, phase.passes, phase.resume = Timestamp(), None, None, None
            model.train()
            yield
        finally:
            for owner, before in attributes:
                vars(owner).clear()
                vars(owner).update(before)
            engine.logger = logger
            # Which also has the engine make new plans.
            state.algorithms, state.callbacks = algorithms, callbacks
            snapshot.restore()
            put_data_back()


def _keep_place(phase: Phase, seed: int) -> Callable[[], None]:
    """Return what puts the data back to where it is, whose passes may all be one."""
    loader = phase.loader.dataloader
    kind = EpochIterators(loader, seed).kind
    if kind == "replay" and isinstance(loader, Iterator):
        raise ValueError(
            f"train_dataloader is an iterator, which can be read once: {loader!r}. Give an object that can be iterated "
            f"in every epoch, such as a DataLoader or a list."
        )
    if kind in ("indices", "replay"):
        attributes = getattr(loader, "__dict__", {})
        if "_iterator" not in attributes:
            return lambda: None
        # Workers that persist serve one pass at a time: those of the pass under way are to stay with it.
        workers, attributes["_iterator"] = attributes["_iterator"], None
        return lambda: attributes.update(_iterator=workers)
    under_way, owner = phase.iterator, loader if kind == "loader" else loader.dataset
    keep = getattr(under_way, "state_dict", None)
    if keep is None:
        keep = EpochIterator(kind, iter(()), owner=owner).state_dict
    place = keep(int(phase.timestamp.sample_in_epoch))

    def put_back() -> None:
        if under_way is None:
            owner.load_state_dict(place["state"])
        else:  # taken up as from a checkpoint
            phase.iterator, phase.resume = None, place

    return put_back
