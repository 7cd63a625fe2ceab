"""The training loop; reads as the docstring of :class:`.Event`."""

from __future__ import annotations

import time

from composer.core.event import Event
from composer.core.time import TimeUnit
from composer.trainer.batch_loading import batches, check_epochs_end, is_at_end, lend_workers
from composer.trainer.evaluate import evaluate_if_due
from composer.trainer.failed_step import put_back, recover
from composer.trainer.model_report import report_model
from composer.trainer.outputs import free_outputs
from composer.trainer.progress import (
    advance,
    advance_epoch,
    advance_iteration,
    check_tokens,
    iteration_is_complete,
    time_metrics,
)
from composer.trainer.resume import resume_at
from composer.trainer.run import Run
from composer.trainer.step import train_batch, zero_gradients
from composer.trainer.train_metrics import (
    log_last_train_metrics,
    log_train_metrics,
    metrics_are_due,
    note_last_train_values,
    reset_train_metrics,
)

__all__ = ["fit"]


def fit(run: Run) -> None:
    """Train until ``state.finished``; a batch whose step an exception ended is trained by the next fit.

    Args:
        run: The run; its state has data, optimizers and a maximal duration.
    """
    recover(run)
    try:
        _fit(run)
    except BaseException:
        put_back(run)
        raise
    finally:
        lend_workers(run)


def _fit(run: Run) -> None:
    """Train."""
    state, logger, fire = run.state, run.logger, run.engine.run_event
    state.stop_requested, state.stops_together = None, run.step_sync is not None
    logger.begin()
    fire(Event.FIT_START)
    report_model(run)
    resume_at(run)
    state.train_phase.mark, begun = time.perf_counter(), state.timestamp.batch
    _finish_stage(run)
    must_end = check_epochs_end(run)
    while not state.finished:
        if state.timestamp.batch_in_epoch.value == 0:
            _open_epoch(run)
        for state.batch in batches(run, must_end=must_end):
            fire(Event.BATCH_START)
            train_batch(run)
            step = state.timestamp.count(TimeUnit.BATCH)
            if logger.destinations:
                logger.enqueue({**time_metrics(run), **state.total_loss_dict}, step)
            advance(run)
            # Computed for all who look at this batch, and only then: computing waits for the device.
            if metrics_are_due(run):
                log_train_metrics(run, step)
            fire(Event.BATCH_END)
            free_outputs(state)
            _close_batch(run)
            if state.finished:
                break
        if state.train_phase.iterator is None or is_at_end(state.train_phase):
            _close_epoch(run)
    if state.timestamp.batch != begun:  # or they have the values that a checkpoint had
        if run.step_sync is not None or logger.destinations:
            log_last_train_metrics(run)
        else:
            note_last_train_values(run)
    logger.enqueue({"time/epoch": state.timestamp.epoch.value, **time_metrics(run)})
    if state.stop is not None:
        logger.notice(str(state.stop))
    evaluate_if_due(run, Event.FIT_END)
    state.stops_together = False
    fire(Event.FIT_END)
    zero_gradients(run)


def _finish_stage(run: Run) -> None:
    """Do what an interruption in an evaluation has left undone.

    Args:
        run: The run.
    """
    phase = run.state.train_phase
    stage, phase.stage = phase.stage, None
    if stage == Event.BATCH_END:
        _close_batch(run)
        if run.state.finished and phase.iterator is not None and is_at_end(phase):
            _close_epoch(run)  # which the loop does for those that train on
    elif stage == Event.EPOCH_END:
        _finish_epoch(run)


def _close_batch(run: Run) -> None:
    """Evaluate and save after a batch, where these are due.

    Args:
        run: The run.
    """
    evaluate_if_due(run, Event.BATCH_END)
    if run.state.finished:
        note_last_train_values(run)
    run.engine.run_event(Event.BATCH_CHECKPOINT)
    _leave_if_asked(run)


def _leave_if_asked(run: Run) -> None:
    """Raise where a signal asks to stop.

    Args:
        run: The run.
    """
    if run.interruption is not None:
        told = None if run.step_sync is None or run.step_sync.last is None else run.step_sync.last.signum
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
    run.metrics_logged_at = None
    fire(Event.EPOCH_START)
    run.logger.enqueue({"time/epoch": state.timestamp.epoch.value})


def _close_epoch(run: Run) -> None:
    """End the epoch: metrics over all of it, the count, evaluation.

    Args:
        run: The run.
    """
    state, fire = run.state, run.engine.run_event
    state.train_phase.iterator = None
    log_last_train_metrics(run)
    check_tokens(run, in_epoch=True)
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
