"""Track how a run ends (duration, early stopping), so that a complete run is not trained further after a resume."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Generator

from composer.core.event import Event
from composer.core.time import Time, TimeUnit, ensure_time
from composer.trainer.evaluate import due_evaluators
from composer.trainer.run import Run
from composer.warnings import ComposerWarning

__all__ = ["discard_recorded_end", "is_complete", "training"]


def is_complete(run: Run, end: Time | None) -> bool:
    """Return whether the resumed call of ``fit`` is already complete, by duration or early stopping; warn if so.

    Calls after it may train on. If only the evaluation at the end is missing, ``fit`` is to run it.

    Args:
        run: The run, after a checkpoint was loaded.
        end: The training time at which ``fit`` is to end, if nothing stops or changes it.
    """
    state = run.state
    if run.state.loaded is None or state.train_phase.evaluation_event is not None:
        return False
    changed = _changed_end(run, end)
    end = end if changed is None else changed
    if end is None or not state.timestamp.has_reached(end):
        return False
    if _lacks_evaluation(run, end):
        state.train_phase.evaluation_event = Event.FIT_END.value
        run.logger.notice("training is complete, but its last evaluation is not: evaluating")
        return False
    if run.ledger is not None:
        run.ledger.look_up(state)  # which training would do
    stop = state.stop = run.state.loaded.stop
    reason = f"having reached {state.timestamp.get(end.unit)}" if stop is None else str(stop)
    message = f"autoresume: this call of fit is already complete, {reason}; not training."
    warnings.warn(message, ComposerWarning, stacklevel=3)
    for destination in run.logger.destinations:
        destination.__resume_complete__()
    return True


def discard_recorded_end(run: Run) -> None:
    """Discard how the loaded run ended, as recorded in the checkpoint, for example when training time is reset.

    Args:
        run: The run.
    """
    if run.state.loaded is not None:
        run.state.loaded = dataclasses.replace(run.state.loaded, planned_duration=None, stop=None, unevaluated=())


@contextlib.contextmanager
def training(run: Run, *, resumed: bool) -> Generator[None]:
    """Record in the state, for checkpoints, the planned duration of training and what stopped it early.

    Args:
        run: The run, whose ``max_duration`` is final.
        resumed: Whether the end recorded in the checkpoint applies, as after ``autoresume``.
    """
    state = run.state
    state.planned_duration, state.stop = state.max_duration, None
    if resumed and run.state.loaded is not None:
        changed = _changed_end(run, state.max_duration)
        if changed is not None:
            state.max_duration, state.stop = changed, run.state.loaded.stop
        elif run.state.loaded.stop is not None:
            run.logger.notice(
                f"resumed although {run.state.loaded.stop}: max_duration is now {state.planned_duration}, and was "
                f"{run.state.loaded.planned_duration}"
            )
    state.is_fitting = True
    try:
        yield
    finally:
        state.is_fitting = False


def _lacks_evaluation(run: Run, end: Time) -> bool:
    """Return whether an evaluation that is due at the end of training did not complete in the loaded run."""
    state = run.state
    if run.state.loaded is None or not run.state.loaded.unevaluated:
        return False
    planned, state.max_duration = state.max_duration, end
    try:
        return any(one.label in run.state.loaded.unevaluated for one in due_evaluators(state, Event.FIT_END))
    finally:
        state.max_duration = planned


def _changed_end(run: Run, planned: Time | None) -> Time | None:
    """Return the changed duration of the loaded run if its planned duration is that of this run; otherwise None."""
    loaded = run.state.loaded
    if loaded is None or planned is None or loaded.planned_duration != str(planned):
        return None
    return None if loaded.max_duration == loaded.planned_duration else _time(loaded.max_duration)


def _time(given: str | None) -> Time | None:
    return None if given is None else ensure_time(given, TimeUnit.EPOCH, "max_duration")
