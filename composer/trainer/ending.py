"""When a run ends: early stopping, a changed ``max_duration``; a resumed run that had ended trains no further."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Generator

from composer.core.time import Time, TimeUnit, ensure_time
from composer.trainer.run import Run
from composer.trainer.schedules import scaled
from composer.warnings import ComposerWarning

__all__ = ["forget", "is_complete", "rest_of", "training"]


def is_complete(run: Run, duration: object, ratio: float = 1.0) -> bool:
    """Return whether the training that was to be resumed has ended, by its duration or before it; warn if so.

    Args:
        run: The run, with what was loaded.
        duration: How much further to train, if that is given.
        ratio: By what ``max_duration`` is scaled, where no duration is given.
    """
    state = run.state
    if run.loaded is None or state.train_phase.stage is not None:
        return False
    planned = scaled(state.max_duration, ratio) if duration is None else None
    end = _changed_end(run, planned) if duration is None else _time(run.loaded.max_duration)
    end = planned if end is None else end
    if end is None or not state.timestamp.has_reached(end):
        return False
    stop = run.loaded.stop
    told = f"having come to {state.timestamp.get(end.unit)}" if stop is None else str(stop)
    warnings.warn(f"autoresume: this training is complete, {told}; nothing is done.", ComposerWarning, stacklevel=3)
    return True


def rest_of(run: Run, duration: int | str | Time | None) -> int | str | Time | None:
    """Return how much of a duration is left of the training that is resumed.

    Args:
        run: The run, with what was loaded.
        duration: How much further to train, as it was given when that training began.
    """
    end = None if run.loaded is None else _time(run.loaded.planned_duration or run.loaded.max_duration)
    if duration is None or end is None:
        return duration
    return Time(end.value - run.state.timestamp.count(end.unit), end.unit)


def forget(run: Run) -> None:
    """Let what a checkpoint says of the end of its run no longer hold, as where time begins anew.

    Args:
        run: The run.
    """
    if run.loaded is not None:
        run.loaded = dataclasses.replace(run.loaded, planned_duration=None, stop=None)


@contextlib.contextmanager
def training(run: Run, *, resumed: bool) -> Generator[None]:
    """Keep in the state, for its checkpoints, how long a training was to take and who ended it before that.

    Args:
        run: The run, whose ``max_duration`` is final.
        resumed: Whether what a checkpoint says of the end holds, as after ``autoresume``.
    """
    state = run.state
    state.planned_duration, state.stop = state.max_duration, None
    if resumed and run.loaded is not None:
        changed = _changed_end(run, state.max_duration)
        if changed is not None:
            state.max_duration, state.stop = changed, run.loaded.stop
        elif run.loaded.stop is not None:
            run.logger.notice(
                f"resumed though {run.loaded.stop}: max_duration is {state.planned_duration} now, and was "
                f"{run.loaded.planned_duration}"
            )
    state.is_fitting = True
    try:
        yield
    finally:
        state.is_fitting = False


def _changed_end(run: Run, planned: Time | None) -> Time | None:
    """The end of a run that changed it itself, if that run was to take as long as this one is."""
    loaded = run.loaded
    if loaded is None or planned is None or loaded.planned_duration != str(planned):
        return None
    return None if loaded.max_duration == loaded.planned_duration else _time(loaded.max_duration)


def _time(given: str | None) -> Time | None:
    return None if given is None else ensure_time(given, TimeUnit.EPOCH, "max_duration")
