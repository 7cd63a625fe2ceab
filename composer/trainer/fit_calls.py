"""Count the calls of ``fit`` of a run, so that a resumed run knows which of them had ended, and where they began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.core.time import COUNTED_UNITS, Time, TimeUnit, ensure_time
from composer.trainer.schedules import scaled

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.trainer.run import Run

__all__ = ["FitCalls", "begin_program"]

# Calls of fit of all trainers that have ended since the program began.
_num_ended = 0


def begin_program() -> None:
    """Begin to count the calls of ``fit`` of a program that runs in this process.

    >>> begin_program()
    """
    global _num_ended
    _num_ended = 0


class FitCalls:
    """The calls of ``fit`` of a trainer.

    Checkpoints list the calls that had begun when they were saved, with the training time at which each began and the
    one at which it was to end (``state.fit_calls``). A program that is started again makes the same calls: those before
    the last of the list had ended, the last one goes on, and those after it are new. A call with another duration than
    in the list has been changed: it is trained until its new end. The list also has the number of each call among
    those of all trainers of the program, and whether it reset the training time.

    Attributes:
        number: Number of the next call, from 1.

    >>> FitCalls().number
    1
    """

    def __init__(self) -> None:
        self.number = 1
        self._begun = 0  # calls that had begun when the loaded checkpoint was saved

    @property
    def is_resumed(self) -> bool:
        """Whether the next call had begun when the loaded checkpoint was saved."""
        return self.number <= self._begun

    def begins(self, run: Run) -> bool:
        """Return whether the next call begins anew, rather than where a checkpoint was saved.

        Args:
            run: The run; a checkpoint of ``load_path``, which has no calls of this program, is continued.
        """
        return run.state.loaded is None or (self._begun > 0 and not self.is_resumed)

    def keeps_time(self, run: Run) -> bool:
        """Return whether the next call goes on from the loaded checkpoint and had reset the training time before it.

        Args:
            run: The run; once it has trained on from the checkpoint, a call with ``reset_time`` begins anew.
        """
        if run.state.loaded is None or not self.is_resumed:
            return False
        return run.state.fit_calls[self.number - 1].get("reset_time", False)

    def resume(self, run: Run) -> None:
        """Continue the calls of a checkpoint.

        Args:
            run: The run, after the checkpoint was loaded.
        """
        loaded = run.state.loaded
        if loaded is None:  # weights only
            return
        # Older checkpoints say only until when to train.
        end = loaded.planned_duration or loaded.max_duration
        run.state.fit_calls = [dict(call) for call in loaded.fit_calls] or [{"began": {}, "end": end}]
        self.number, self._begun = 1, len(run.state.fit_calls)

    def reset(self, state: State) -> None:
        """Let the next call begin anew.

        Args:
            state: The state of the run.
        """
        self._begun = min(self._begun, self.number - 1)
        state.fit_calls = state.fit_calls[: self.number - 1]

    def plan(self, state: State, duration: int | str | Time | None, ratio: float) -> tuple[Time | None, bool]:
        """Return the training time at which the next call ends, and whether it had ended before a restart.

        Args:
            state: The state of the run.
            duration: The ``duration`` of the call; None trains until ``max_duration``.
            ratio: Its ``scale_schedule_ratio``.

        Raises:
            ValueError: The scaled duration is zero; or the duration is negative, or a fraction of the training.
        """
        end = self._end_of(state, duration, ratio)
        return end, self._had_ended(state, end)

    def _end_of(self, state: State, duration: int | str | Time | None, ratio: float) -> Time | None:
        """Return the training time at which the next call ends; None if it is unlimited."""
        if duration is None:
            return scaled(state.max_duration, ratio)
        more = scaled(ensure_time(duration, TimeUnit.EPOCH, "duration", COUNTED_UNITS), ratio)
        assert more is not None
        if more.value < 0:
            raise ValueError(f"duration is how much longer to train, and must not be negative; got {duration!r}.")
        began = state.timestamp.count(more.unit)
        if self.is_resumed:
            call = state.fit_calls[self.number - 1]
            if more.unit.value not in call["began"]:
                return more if call["end"] is None else ensure_time(call["end"], TimeUnit.EPOCH, "max_duration")
            began = call["began"][more.unit.value]
        return Time(int(began) + more.value, more.unit)

    def _had_ended(self, state: State, end: Time | None) -> bool:
        """Return whether the next call had ended, since the loaded checkpoint was saved in a later one."""
        if self.number >= self._begun or end is None:
            return False
        return str(end) == state.fit_calls[self.number - 1]["end"] or state.timestamp.has_reached(end)

    def begin(self, state: State, *, reset_time: bool) -> bool:
        """Note that the next call begins; return whether it had begun before the checkpoint was saved.

        Args:
            state: The state of the run, with the ``max_duration`` of the call.
            reset_time: Whether the call resets the training time where it begins.
        """
        is_resumed, before = self.is_resumed, state.fit_calls[: self.number - 1]
        call = state.fit_calls[self.number - 1] if is_resumed else {"began": _counts(state), "reset_time": reset_time}
        end = None if state.max_duration is None else str(state.max_duration)
        state.fit_calls = [*before, {**call, "end": end, "number": _num_ended + 1}]
        self._begun = min(self._begun, self.number)  # calls that were made after this one are new ones
        return is_resumed

    def end(self) -> None:
        """Note that the next call has ended; one that fails is the next call again."""
        global _num_ended
        _num_ended += 1
        self.number += 1


def _counts(state: State) -> dict[str, Any]:
    """Return the training time in each unit."""
    return {unit.value: state.timestamp.count(unit) for unit in COUNTED_UNITS}
