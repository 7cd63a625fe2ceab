"""Training progress: advance the timestamp after a batch, epoch or iteration, and step the schedules that follow it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from composer import dist
from composer.core.first_batch_rng import FirstBatchRNG
from composer.core.time import TimeUnit
from composer.optim.torch_schedules import added_group_message
from composer.trainer.run import Run
from composer.trainer.schedules import bind, refresh_schedules

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim.lr_scheduler import LRScheduler

__all__ = [
    "advance",
    "advance_epoch",
    "advance_iteration",
    "begin_other_data",
    "check_tokens",
    "iteration_is_complete",
    "source_metrics",
]

# Number of batches in which a user function may count no tokens, before an error is raised.
_BATCHES_WITHOUT_TOKENS = 100
_TOKEN: Final = TimeUnit.TOKEN  # to read a member off its class takes long


def advance(run: Run) -> None:
    """Advance the timestamp by one batch, and step schedules that step every batch.

    Args:
        run: The run.
    """
    state, phase = run.state, run.state.train_phase
    state.previous_timestamp = phase.timestamp
    if run.step_sync is None:
        now = time.perf_counter()
        phase.timestamp = phase.timestamp.to_next_batch(run.samples, run.tokens, now - phase.batch_start_time)
        phase.batch_start_time = now
    else:
        counts = run.step_sync.end_step()
        dist.note_step(phase.timestamp.__fields__.batch + 1)
        phase.timestamp = phase.timestamp.to_next_batch(counts.samples, counts.tokens, counts.seconds)
        if counts.stop:
            # The reason is known only to the rank that requested it; once per run, it is all-gathered.
            requests = dist.all_gather_object(state.stop_requested)
            state.end_training(next(request for request in requests if request is not None))
    if phase.batches_in_step != 1:
        phase.extra_batches += phase.batches_in_step - 1
    run.fetched, phase.in_step = None, False
    if state.max_duration is not None and state.max_duration.unit is _TOKEN:
        check_tokens(run)
    if phase.restore_rates is not None:
        phase.restore_rates(state)  # many schedules of torch compute the next rate from the current one
    if run.options.step_schedulers_every_batch:
        _step(state.schedulers)


def _step(schedulers: Sequence[LRScheduler]) -> None:
    """Step schedules; many of torch's cannot if a parameter group was added to their optimizer."""
    for scheduler in schedulers:
        try:
            scheduler.step()
        except Exception as error:
            if (message := added_group_message(scheduler)) is None:
                raise
            raise ValueError(message) from error


def check_tokens(run: Run, *, in_epoch: bool = False) -> None:
    """Raise if ``max_duration`` is in tokens but no tokens are counted, so that training would never end.

    A user's token counting function may return 0 for some batches, such as the first; the default function counts
    tokens in all batches or in none.

    Args:
        run: The run, after counting a batch.
        in_epoch: Whether it was the last batch of an epoch.

    Raises:
        ValueError: ``max_duration`` is in tokens, and no tokens are counted.
    """
    phase, end = run.state.train_phase, run.state.max_duration
    if end is None or end.unit is not TimeUnit.TOKEN or phase.timestamp.token.value:
        return
    batches = phase.timestamp.batch.value
    counts_itself = phase.loader is not None and phase.loader.__counts_tokens__
    if in_epoch or batches >= _BATCHES_WITHOUT_TOKENS or (phase.timestamp.sample.value and not counts_itself):
        raise ValueError(
            f"max_duration={end}, but no tokens were counted until batch {batches}. Use "
            f"DataSpec(dataloader, get_num_tokens_in_batch=...), or max_duration in another unit."
        )


def advance_epoch(run: Run) -> None:
    """Advance the timestamp by one epoch; step schedules that step every epoch, refresh those that read the epoch.

    Args:
        run: The run.
    """
    phase = run.state.train_phase
    run.state.previous_timestamp = phase.timestamp
    phase.timestamp, phase.extra_batches = phase.timestamp.to_next_epoch(), 0
    if run.options.step_schedulers_every_batch:
        refresh_schedules(run)  # for schedules that depend on the epoch
    else:
        for scheduler in run.state.schedulers:
            # Also if the run was resumed at the end of the epoch, where torch would warn that it has not stepped yet.
            scheduler.optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue] - torch's own attribute
        _step(run.state.schedulers)


def iteration_is_complete(run: Run) -> bool:
    """Return whether the epoch that ended is the last of an iteration.

    Args:
        run: The run.
    """
    state = run.state
    length = state._iteration_length  # pyright: ignore[reportPrivateUsage] - the name that scripts set
    if length is None:
        return False
    if length.unit is TimeUnit.EPOCH:
        return state.timestamp.epoch_in_iteration >= length
    if length.unit is TimeUnit.TOKEN:
        return state.timestamp.token_in_iteration >= length
    raise NotImplementedError(f"An iteration has a length in epochs or tokens, not {length}.")


def advance_iteration(run: Run) -> None:
    """Advance the timestamp by one iteration, and refresh the schedules, which may depend on it.

    Args:
        run: The run.
    """
    phase = run.state.train_phase
    run.state.previous_timestamp = phase.timestamp
    phase.timestamp = phase.timestamp.to_next_iteration()
    refresh_schedules(run)


def begin_other_data(run: Run, *, reset_time: bool) -> None:
    """Begin other training data at its first batch: what is left of the epoch of the earlier data is left out.

    Args:
        run: The run, whose data was replaced.
        reset_time: Whether the training time, and the epoch with it, begins anew afterwards.
    """
    phase, run.check_start = run.state.train_phase, None  # it compares with the earlier data
    phase.resume_position = phase.last_epoch = None
    phase.first_batch_rng = defaultdict(FirstBatchRNG)
    if phase.timestamp.batch_in_epoch.value and not reset_time:
        if run.state.optimizers:
            bind(run)  # those of a call that had ended before a restart step at the end of this epoch, too
        advance_epoch(run)
        if iteration_is_complete(run):
            advance_iteration(run)


def source_metrics(run: Run, losses: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what is logged with each batch of data from several sources, such as a :class:`.Mixture`.

    Args:
        run: The run.
        losses: The losses of the batch; empty at the end of training.
    """
    metrics = getattr(run.state.train_phase.loader.dataloader, "__step_metrics__", None)
    return {} if metrics is None else metrics(losses)
