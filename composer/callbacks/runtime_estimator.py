"""RuntimeEstimator: estimate the remaining training time."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from composer._numbers import whole_number
from composer._text import one_of
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["RuntimeEstimator"]

_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


@dataclass
class _Evaluations:
    """The evaluations seen so far on one dataset.

    Attributes:
        count: Number of evaluations.
        seconds: Total time of all of them.
        last: Training progress at the last one.
    """

    count: int = 0
    seconds: float = 0.0
    last: float = 0.0

    def remaining(self, start: float, end: float) -> float:
        """Return the seconds of the remaining evaluations, assuming that they keep the same distance."""
        between = (self.last - start) / self.count if self.count else 0.0
        if between <= 0:
            return 0.0
        # Half a distance of slack, because the last evaluation coincides with the end.
        remaining = int((end - self.last) / between + 0.5)
        return remaining * self.seconds / self.count


class RuntimeEstimator(Callback):
    """Logs after each batch an estimate of the remaining training time.

    With w seconds of training for a progress of p since the estimate began, and r the remaining progress, it is

        w / p * r + sum over datasets of (remaining evaluations) * (mean time of an evaluation)

    assuming that evaluations keep the distance seen so far. Evaluators that have not run yet are not included.
    Progress is measured in the unit of ``max_duration``; if that is epochs, batches count as fractions of an epoch as
    soon as its length is known. After a checkpoint is loaded, the speed is measured again.

    Logs ``time/remaining_estimate`` and, once, the hyperparameter ``time/remaining_estimate_unit``.

    Args:
        skip_batches: Number of initial batches to ignore, because kernels are loaded and compiled in them.
        time_unit: ``seconds``, ``minutes``, ``hours`` or ``days``.

    Raises:
        TypeError: ``skip_batches`` is not an integer.
        ValueError: ``skip_batches`` is negative, or the unit is unknown.

    >>> from composer import Engine, State, Timestamp
    >>> from composer.loggers import InMemoryLogger
    >>> log = InMemoryLogger()
    >>> state = State(model=torch.nn.Linear(1, 1), max_duration="100ba")
    >>> engine = Engine(state, callbacks=[RuntimeEstimator(skip_batches=0, time_unit="seconds"), log])
    >>> for event in ("init", "fit_start", "batch_start"):
    ...     _ = engine.run_event(event)
    >>> state.timestamp = Timestamp(batch=10, total_wct=5)
    >>> _ = engine.run_event("batch_end")
    >>> log.most_recent_values
    {'time/remaining_estimate': 45.0}
    """

    def __init__(self, skip_batches: int = 1, time_unit: str = "hours") -> None:
        self.skip_batches = whole_number("skip_batches", skip_batches)
        self.time_unit = one_of("time_unit", time_unit, _SECONDS)
        self.divider = _SECONDS[self.time_unit]
        self._skipped = 0
        self._start: tuple[float, float] | None = None
        self._evaluations: dict[str, _Evaluations] = {}
        self._batches_in_epoch: int | None = None
        self._loaded: int | None = None  # in the current epoch

    def init(self, state: State, logger: Logger) -> None:
        self._batches_in_epoch = None
        logger.log_hyperparameters({"time/remaining_estimate_unit": self.time_unit})

    def fit_start(self, state: State, logger: Logger) -> None:
        self._skipped, self._start = 0, None
        self._evaluations.clear()
        if state.max_duration is None:
            message = "RuntimeEstimator cannot estimate the remaining time because max_duration is not set."
            warnings.warn(message, ComposerWarning, stacklevel=2)

    def batch_start(self, state: State, logger: Logger) -> None:
        if self._start is None and state.max_duration is not None:
            if self._skipped >= self.skip_batches:
                self._start = self._progress(state), state.timestamp.count(TimeUnit.SECOND)
            self._skipped += 1

    def batch_end(self, state: State, logger: Logger) -> None:
        self._loaded = state.train_phase.batches_loaded
        end = state.max_duration
        if self._start is None or end is None or not logger.destinations:
            return
        begin, clock = self._start
        now = self._progress(state)
        if now > begin:
            pace = (state.timestamp.count(TimeUnit.SECOND) - clock) / (now - begin)
            seconds = pace * max(0.0, end.value - now)
            seconds += sum(evals.remaining(begin, end.value) for evals in self._evaluations.values())
            logger.enqueue({"time/remaining_estimate": seconds / self.divider})

    def epoch_end(self, state: State, logger: Logger) -> None:
        if self._loaded is not None:
            self._batches_in_epoch = self._loaded

    def eval_end(self, state: State, logger: Logger) -> None:
        if self._start is None:
            return
        seen = self._evaluations.setdefault(str(state.dataloader_label), _Evaluations())
        seen.count += 1
        seen.seconds += state.eval_timestamp.count(TimeUnit.SECOND)
        seen.last = self._progress(state)

    def state_dict(self) -> dict[str, Any]:
        return {"batches_in_epoch": self._batches_in_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches_in_epoch = state.get("batches_in_epoch")

    def _progress(self, state: State) -> float:
        """Return the training progress in the unit of the maximum duration."""
        end = state.max_duration
        assert end is not None
        done = state.timestamp.count(end.unit)
        if end.unit is TimeUnit.EPOCH:
            length = state.train_phase.length or self._batches_in_epoch
            return done + state.train_phase.batches_loaded / length if length else done
        return done
