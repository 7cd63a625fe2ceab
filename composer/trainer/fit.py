"""The training loop of :meth:`.Trainer.fit`: epochs and batches, the events they fire, evaluation and checkpoints.

Its order of events is the pseudocode in the docstring of :class:`.Event`. One batch is trained by ``step``, which
accumulates gradients over ``microbatch``.
"""

from __future__ import annotations

import time

from composer.core.event import BATCH_CHECKPOINT, BATCH_END, BATCH_START, Event
from composer.optim.compiled_schedule import schedule_added_groups
from composer.trainer.batch_loading import batches, check_epochs_end, is_at_end
from composer.trainer.evaluate import evaluate_if_due
from composer.trainer.failed_step import reset_failed_step, rewind_batch
from composer.trainer.fingerprint.start import note_start
from composer.trainer.model_report import report_model
from composer.trainer.outputs import free_outputs
from composer.trainer.progress import (
    advance,
    advance_epoch,
    advance_iteration,
    check_tokens,
    iteration_is_complete,
    source_metrics,
)
from composer.trainer.resume import resume_at
from composer.trainer.run import Run
from composer.trainer.step import average_unread_losses, train_batch, zero_gradients
from composer.trainer.train_metrics import (
    finish_train_metrics,
    log_last_train_metrics,
    log_train_metrics,
    metrics_are_due,
    reset_train_metrics,
)
from composer.trainer.training_data import end_epoch_iterator, lend_workers

__all__ = ["fit"]


def fit(run: Run) -> None:
    """Train until ``state.finished``. If an exception ends a step, the next fit trains that batch again.

    Args:
        run: The run; its state has data, optimizers and ``max_duration``.
    """
    reset_failed_step(run)
    try:
        _fit(run)
    except BaseException:
        rewind_batch(run)
        raise
    finally:
        lend_workers(run)


def _fit(run: Run) -> None:
    """Run the training loop."""
    state, logger, fire = run.state, run.logger, run.engine.run_event
    phase = state.train_phase
    state.stop_requested, state.sync_stop_requests = None, run.step_sync is not None
    note_start(run)
    logger.begin()
    logger.log_event("start")
    fire(Event.FIT_START)
    if run.ledger is not None:
        run.ledger.begin(state)  # after the savers have checked their folders
    report_model(run)
    resume_at(run)
    phase.batch_start_time, first_batch = time.perf_counter(), state.timestamp.batch
    _finish_interrupted_evaluation(run)
    check_infinite = check_epochs_end(run)
    schedulers = state.schedulers
    while not state.finished:
        if state.timestamp.batch_in_epoch.value == 0:
            _start_epoch(run)
        for state.batch in batches(run, check_infinite=check_infinite):
            schedule_added_groups(schedulers)  # so that LRMonitor logs the rates of this step
            fire(BATCH_START)
            train_batch(run)
            step = phase.timestamp.__fields__.batch
            if logger.destinations:
                losses = state.total_loss_dict
                logger.enqueue({**losses, **source_metrics(run, losses)}, step, with_counters=True)
            advance(run)
            # Only if a logger is due after this batch: computing metrics synchronizes with the device.
            if metrics_are_due(run):
                log_train_metrics(run, step)
            phase.evaluation_event = BATCH_END.value  # a callback may save before the evaluation
            fire(BATCH_END)
            free_outputs(state)
            _evaluate_and_save_batch(run)
            if state.finished:
                break
        if phase.iterator is None or is_at_end(phase):
            _end_epoch(run)
    average_unread_losses(run)
    if state.timestamp.batch != first_batch:  # otherwise the values loaded from a checkpoint stay
        finish_train_metrics(run)
    logger.enqueue({"time/epoch": state.timestamp.epoch.value, **source_metrics(run, {})}, with_counters=True)
    if state.stop is not None:
        logger.notice(str(state.stop), kind="stop")
    evaluate_if_due(run, Event.FIT_END)
    state.sync_stop_requests = False
    logger.log_event("end", details={} if run.ledger is None else run.ledger.end())
    fire(Event.FIT_END)
    zero_gradients(run)


def _finish_interrupted_evaluation(run: Run) -> None:
    """Finish the batch, epoch or training whose evaluation was to come, or was interrupted, in the loaded checkpoint.

    It may also be that of this process, which a signal or an exception interrupted.

    Args:
        run: The run.
    """
    phase = run.state.train_phase
    event, phase.evaluation_event = phase.evaluation_event, None
    before, phase.loaded_previous = phase.loaded_previous, None
    if event is None or (event == Event.FIT_END and not run.state.finished):
        phase.evaluators_done = []  # the next evaluation is another one
    if event is not None and before is not None:
        run.state.previous_timestamp = before  # which intervals were due depends on it
    phase.makes_up_evaluation = event == Event.FIT_END
    if event == Event.EPOCH_END:
        _evaluate_and_save_epoch(run)
        return
    if event == Event.ITERATION_END:
        _evaluate_and_save_iteration(run)
        _stop_if_interrupted(run)
        return
    if event == Event.BATCH_END:
        _evaluate_and_save_batch(run)
    elif run.state.timestamp.batch_in_epoch.value == 0 < run.state.timestamp.epoch_in_iteration.value:
        _end_iteration_if_complete(run)  # saved at the end of its last epoch
    if event is not None and run.state.finished and phase.iterator is not None and is_at_end(phase):
        _end_epoch(run)  # if training continues, the loop does this


def _evaluate_and_save_batch(run: Run) -> None:
    """Evaluate and save a checkpoint after a batch, if due.

    Args:
        run: The run.
    """
    evaluate_if_due(run, BATCH_END)
    # Before the checkpoint: a run that resumes from it has no batch left for them.
    if run.state.finished:
        finish_train_metrics(run)
    elif run.state.train_metrics and is_at_end(run.state.train_phase):
        log_last_train_metrics(run)
    run.engine.run_event(BATCH_CHECKPOINT)
    _stop_if_interrupted(run)


def _stop_if_interrupted(run: Run) -> None:
    """Raise :class:`.Interrupted` if a signal (SIGTERM, SIGINT, SIGUSR1) requested to stop.

    Args:
        run: The run.
    """
    if run.interruption is not None:
        signum = None if run.step_sync is None or run.step_sync.last is None else run.step_sync.last.signum
        if signum is not None:
            average_unread_losses(run)
        run.interruption.check(signum)


def _start_epoch(run: Run) -> None:
    """Start an epoch, and an iteration if one starts.

    Args:
        run: The run.
    """
    state, fire = run.state, run.engine.run_event
    if state.timestamp.epoch_in_iteration.value == 0:
        fire(Event.ITERATION_START)
    reset_train_metrics(state)
    state.train_phase.metrics_logged_at = None
    fire(Event.EPOCH_START)
    run.logger.enqueue({"time/epoch": state.timestamp.epoch.value})


def _end_epoch(run: Run) -> None:
    """End the epoch: log its metrics, advance the timestamp, evaluate.

    Args:
        run: The run.
    """
    state, fire = run.state, run.engine.run_event
    end_epoch_iterator(state.train_phase)  # if the duration ended with the epoch, its end was not requested
    average_unread_losses(run)
    log_last_train_metrics(run)
    check_tokens(run, in_epoch=True)
    advance_epoch(run)
    state.train_phase.evaluation_event = Event.EPOCH_END.value
    fire(Event.EPOCH_END)
    _evaluate_and_save_epoch(run)


def _evaluate_and_save_epoch(run: Run) -> None:
    """Evaluate and save a checkpoint after an epoch, if due.

    Args:
        run: The run.
    """
    evaluate_if_due(run, Event.EPOCH_END)
    run.engine.run_event(Event.EPOCH_CHECKPOINT)
    _end_iteration_if_complete(run)
    _stop_if_interrupted(run)


def _end_iteration_if_complete(run: Run) -> None:
    """End the iteration after its last epoch: advance the timestamp, evaluate, save.

    Args:
        run: The run.
    """
    if iteration_is_complete(run):
        advance_iteration(run)
        run.state.train_phase.evaluation_event = Event.ITERATION_END.value
        run.engine.run_event(Event.ITERATION_END)
        _evaluate_and_save_iteration(run)


def _evaluate_and_save_iteration(run: Run) -> None:
    """Evaluate and save a checkpoint after an iteration, if due.

    Args:
        run: The run.
    """
    evaluate_if_due(run, Event.ITERATION_END)
    run.engine.run_event(Event.ITERATION_CHECKPOINT)
