"""The training loop; reads as the docstring of :class:`.Event`."""

from __future__ import annotations

import time

from composer.core.event import Event
from composer.core.time import TimeUnit
from composer.trainer.clock import advance, advance_epoch, advance_iteration, iteration_is_complete, time_metrics
from composer.trainer.evaluate import evaluate_if_due
from composer.trainer.loaders import batches
from composer.trainer.metrics import log_train_metrics, reset_train_metrics
from composer.trainer.resume import take_up
from composer.trainer.run import Run
from composer.trainer.step import train_batch

__all__ = ["fit"]


def fit(run: Run) -> None:
    """Train until ``state.finished``.

    Args:
        run: The run; its state has data, optimizers and a maximal duration.
    """
    state, logger, fire = run.state, run.logger, run.engine.run_event
    fire(Event.FIT_START)
    take_up(run)
    state.train_phase.mark = time.perf_counter()
    _finish_stage(run)
    while not state.finished:
        if state.timestamp.batch_in_epoch.value == 0:
            _open_epoch(run)
        for state.batch in batches(run):
            fire(Event.BATCH_START)
            train_batch(run)
            step = state.timestamp.count(TimeUnit.BATCH)
            if logger.destinations:
                logger.enqueue({**time_metrics(run), **state.total_loss_dict}, step)
            advance(run)
            # Computed for all who look at this batch, and only then: computing waits for the device.
            if logger.destinations and logger.poll() and state.train_metrics:
                log_train_metrics(run, step)
            fire(Event.BATCH_END)
            _close_batch(run)
            if state.finished:
                break
        if state.train_phase.iterator is None or _is_at_end_of_pass(run):
            _close_epoch(run)
    logger.enqueue({"time/epoch": state.timestamp.epoch.value, **time_metrics(run)})
    evaluate_if_due(run, Event.FIT_END)
    fire(Event.FIT_END)
    for optimizer in state.optimizers:
        optimizer.zero_grad()


def _finish_stage(run: Run) -> None:
    """Do what an interruption in an evaluation has left undone.

    Args:
        run: The run.
    """
    phase = run.state.train_phase
    stage, phase.stage = phase.stage, None
    if stage == Event.BATCH_END:
        _close_batch(run)
    elif stage == Event.EPOCH_END:
        _finish_epoch(run)


def _close_batch(run: Run) -> None:
    """Evaluate and save after a batch, where these are due.

    Args:
        run: The run.
    """
    evaluate_if_due(run, Event.BATCH_END)
    run.engine.run_event(Event.BATCH_CHECKPOINT)
    _leave_if_asked(run)


def _leave_if_asked(run: Run) -> None:
    """Raise where a signal asks to stop.

    Args:
        run: The run.
    """
    if run.interruption is not None:
        told = None if run.exchange is None or run.exchange.last is None else run.exchange.last.signum
        run.interruption.check(told)


def _open_epoch(run: Run) -> None:
    """Begin an epoch, and an iteration where one begins.

    Args:
        run: The run.
    """
    state, fire = run.state, run.engine.run_event
    if state.timestamp.epoch_in_iteration.value == 0:
        fire(Event.ITERATION_START)
    reset_train_metrics(state)
    fire(Event.EPOCH_START)
    run.logger.enqueue({"time/epoch": state.timestamp.epoch.value})


def _is_at_end_of_pass(run: Run) -> bool:
    """Tell whether the batch that ended the training was also the last of the epoch.

    Args:
        run: The run.
    """
    phase = run.state.train_phase
    return phase.length is not None and phase.timestamp.batch_in_epoch.value >= phase.length


def _close_epoch(run: Run) -> None:
    """End the epoch: metrics over all of it, the count, evaluation.

    Args:
        run: The run.
    """
    state, fire = run.state, run.engine.run_event
    state.train_phase.iterator = None
    if state.train_metrics:
        log_train_metrics(run, state.timestamp.count(TimeUnit.BATCH))
    _check_progress(run)
    advance_epoch(run)
    fire(Event.EPOCH_END)
    _finish_epoch(run)


def _finish_epoch(run: Run) -> None:
    """Evaluate and save after an epoch, where these are due.

    Args:
        run: The run.
    """
    fire = run.engine.run_event
    evaluate_if_due(run, Event.EPOCH_END)
    fire(Event.EPOCH_CHECKPOINT)
    if iteration_is_complete(run):
        advance_iteration(run)
        fire(Event.ITERATION_END)
        fire(Event.ITERATION_CHECKPOINT)
    _leave_if_asked(run)


def _check_progress(run: Run) -> None:
    """Refuse to train for ever because nobody counts what the duration is given in."""
    end = run.state.max_duration
    if end is not None and end.unit is TimeUnit.TOKEN and not run.state.timestamp.count(TimeUnit.TOKEN):
        raise ValueError(
            f"max_duration={end}, but no token was counted in an epoch. Give DataSpec(dataloader, "
            f"get_num_tokens_in_batch=...), or max_duration in another unit."
        )
