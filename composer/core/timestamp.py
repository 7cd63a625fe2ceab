"""Training progress: counters of epochs, batches, samples and tokens, and the wall-clock time, as a Timestamp."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Literal, overload

from composer.core._timestamp_fields import MICROSECOND, UNITS, Fields, as_count, as_field, as_microseconds
from composer.core.time import Time, TimeUnit

__all__ = ["Timestamp"]

_COUNTERS: dict[str, int] = {
    TimeUnit(name): Fields._fields.index(name) for name in ("iteration", "epoch", "batch", "sample", "token")
}
_NEW_EPOCH = dict.fromkeys(("batch_in_epoch", "sample_in_epoch", "token_in_epoch", "epoch_wct", "batch_wct"), 0)
# The other fields were added to checkpoints in later versions of the predecessor.
_ALWAYS_SAVED = {"epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch"}
_Counted = Literal[TimeUnit.ITERATION, TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN]


class Timestamp:  # noqa: PLW1641 - not hashable, since a field can be set
    """Progress of a run: finished iterations, epochs, batches, samples and tokens, and wall-clock time.

    Timestamps are not modified: methods such as :meth:`to_next_batch` return the next one. A timestamp compares with a
    :class:`Time` or a time string by the counter of the same unit.

    Args:
        iteration: Finished iterations, as a number or a time in that unit, like all counters.
        epoch: Finished epochs.
        batch: Finished batches (optimizer steps) of all epochs.
        sample: Samples seen, on all ranks.
        token: Tokens seen, on all ranks.
        epoch_in_iteration: Epochs finished in the current iteration.
        token_in_iteration: Tokens seen in the current iteration.
        batch_in_epoch: Batches finished in the current epoch.
        sample_in_epoch: Samples seen in the current epoch.
        token_in_epoch: Tokens seen in the current epoch.
        total_wct: Wall-clock time trained, as a timedelta or in seconds, like all clocks; kept to the microsecond.
        iteration_wct: Wall-clock time of the current iteration.
        epoch_wct: Wall-clock time of the current epoch.
        batch_wct: Wall-clock time of the last batch.

    Raises:
        TypeError: A counter is not an integer, or a clock is not a duration.
        ValueError: A counter or clock is negative, or a time has the unit of another field.

    >>> now = Timestamp(epoch=1, batch=10).to_next_batch(samples=32)
    >>> now >= "11ba", now < Time(2, "ep"), now.sample.value
    (True, True, 32)
    """

    __slots__ = ("__fields__",)

    def __init__(
        self,
        iteration: int | Time = 0,
        epoch: int | Time = 0,
        batch: int | Time = 0,
        sample: int | Time = 0,
        token: int | Time = 0,
        epoch_in_iteration: int | Time = 0,
        token_in_iteration: int | Time = 0,
        batch_in_epoch: int | Time = 0,
        sample_in_epoch: int | Time = 0,
        token_in_epoch: int | Time = 0,
        total_wct: datetime.timedelta | float | None = None,
        iteration_wct: datetime.timedelta | float | None = None,
        epoch_wct: datetime.timedelta | float | None = None,
        batch_wct: datetime.timedelta | float | None = None,
    ) -> None:
        counters = (iteration, epoch, batch, sample, token, epoch_in_iteration, token_in_iteration)
        in_epoch = (batch_in_epoch, sample_in_epoch, token_in_epoch)
        clocks = (total_wct, iteration_wct, epoch_wct, batch_wct)
        given = zip(UNITS, (*counters, *in_epoch, *clocks), strict=True)
        self.__fields__ = Fields(*(as_field(name, value) for name, value in given))

    def copy(
        self,
        iteration: int | Time | None = None,
        epoch: int | Time | None = None,
        batch: int | Time | None = None,
        sample: int | Time | None = None,
        token: int | Time | None = None,
        epoch_in_iteration: int | Time | None = None,
        token_in_iteration: int | Time | None = None,
        batch_in_epoch: int | Time | None = None,
        sample_in_epoch: int | Time | None = None,
        token_in_epoch: int | Time | None = None,
        total_wct: datetime.timedelta | float | None = None,
        iteration_wct: datetime.timedelta | float | None = None,
        epoch_wct: datetime.timedelta | float | None = None,
        batch_wct: datetime.timedelta | float | None = None,
    ) -> Timestamp:
        """Return this timestamp with some fields replaced; the arguments are those of the class.

        >>> Timestamp(epoch=1, batch=10).copy(batch="11ba")
        Timestamp(epoch=1, batch=11)
        """
        counters = (iteration, epoch, batch, sample, token, epoch_in_iteration, token_in_iteration)
        in_epoch = (batch_in_epoch, sample_in_epoch, token_in_epoch)
        clocks = (total_wct, iteration_wct, epoch_wct, batch_wct)
        given = zip(UNITS, (*counters, *in_epoch, *clocks), strict=True)
        return self._with(**{name: as_field(name, value) for name, value in given if value is not None})

    def to_next_batch(
        self,
        samples: int | Time = 0,
        tokens: int | Time = 0,
        duration: datetime.timedelta | float | None = None,
    ) -> Timestamp:
        """Return the timestamp after one more batch.

        Args:
            samples: Samples in the batch, on all ranks.
            tokens: Tokens in the batch, on all ranks.
            duration: Wall-clock time of the batch, as a timedelta or in seconds; None is zero.

        >>> Timestamp(batch=3, sample=96).to_next_batch(samples=32).sample
        Time(128, TimeUnit.SAMPLE)
        """
        if type(samples) is not int:
            samples = as_count("samples", samples, TimeUnit.SAMPLE)
        if type(tokens) is not int:
            tokens = as_count("tokens", tokens, TimeUnit.TOKEN)
        elapsed = 0 if duration is None else as_microseconds(duration)
        now = self.__fields__
        # In the order of the fields: without names, since this runs in each step.
        fields = (
            now.iteration,
            now.epoch,
            now.batch + 1,
            now.sample + samples,
            now.token + tokens,
            now.epoch_in_iteration,
            now.token_in_iteration + tokens,
            now.batch_in_epoch + 1,
            now.sample_in_epoch + samples,
            now.token_in_epoch + tokens,
            now.total_wct + elapsed,
            now.iteration_wct + elapsed,
            now.epoch_wct + elapsed,
            elapsed,
        )
        new = object.__new__(Timestamp)
        new.__fields__ = tuple.__new__(Fields, fields)
        return new

    def to_next_epoch(self, duration: datetime.timedelta | float | None = None) -> Timestamp:
        """Return the timestamp after the end of the epoch: one more epoch, and per-epoch counters reset to zero.

        Args:
            duration: Wall-clock time since the last batch, as a timedelta or in seconds; None is zero.

        >>> Timestamp(epoch=1, batch=10, batch_in_epoch=5).to_next_epoch()
        Timestamp(epoch=2, batch=10, epoch_in_iteration=1)
        """
        elapsed = 0 if duration is None else as_microseconds(duration)
        now = self.__fields__
        return self._with(
            epoch=now.epoch + 1,
            epoch_in_iteration=now.epoch_in_iteration + 1,
            total_wct=now.total_wct + elapsed,
            iteration_wct=now.iteration_wct + elapsed,
            **_NEW_EPOCH,
        )

    def to_next_iteration(self, duration: datetime.timedelta | float | None = None) -> Timestamp:
        """Return the timestamp after the end of the iteration: counters per iteration and per epoch reset to zero.

        Args:
            duration: Wall-clock time since the last batch, as a timedelta or in seconds; None is zero.

        >>> Timestamp(epoch=2, epoch_in_iteration=2).to_next_iteration()
        Timestamp(iteration=1, epoch=2)
        """
        elapsed = 0 if duration is None else as_microseconds(duration)
        now = self.__fields__
        return self._with(
            iteration=now.iteration + 1,
            total_wct=now.total_wct + elapsed,
            epoch_in_iteration=0,
            token_in_iteration=0,
            iteration_wct=0,
            **_NEW_EPOCH,
        )

    @overload
    def count(self, unit: _Counted) -> int: ...
    @overload
    def count(self, unit: Literal[TimeUnit.SECOND]) -> float: ...
    @overload
    def count(self, unit: TimeUnit) -> int | float: ...
    def count(self, unit: TimeUnit) -> int | float:
        """Return the counter of ``unit`` as a plain number, which costs less than :meth:`get`.

        Args:
            unit: The unit. Seconds are ``total_wct``, including the fraction.

        Raises:
            ValueError: The unit is ``dur``, which requires ``max_duration``.

        >>> Timestamp(batch=7).count(TimeUnit.BATCH)
        7
        """
        index = _COUNTERS.get(unit)
        if index is not None:
            return self.__fields__[index]
        if unit == TimeUnit.SECOND:
            return self.__fields__.total_wct / 1_000_000
        raise ValueError(
            f"A timestamp has no counter for {str(unit)!r}; use state.get_elapsed_duration() for the completed "
            f"fraction of a run."
        )

    def get(self, unit: TimeUnit | str) -> Time:
        """Return the counter of ``unit`` as a time.

        Args:
            unit: The unit. Seconds are ``total_wct``, truncated to an integer.

        Raises:
            ValueError: The unit is ``dur``, which requires ``max_duration``.

        >>> Timestamp(batch=7).get("ba")
        Time(7, TimeUnit.BATCH)
        """
        unit = TimeUnit(unit)
        return Time(int(self.count(unit)), unit)

    def has_reached(self, time: Time) -> bool:
        """Return whether the counter of the unit of ``time`` is at or beyond ``time``.

        Args:
            time: The time, in any unit but ``dur``.

        >>> Timestamp(batch=7).has_reached(Time(7, "ba"))
        True
        """
        index = _COUNTERS.get(time.unit)
        return (self.count(time.unit) if index is None else self.__fields__[index]) >= time.value

    def state_dict(self) -> dict[str, int | datetime.timedelta]:
        """Return every field by name: counters as numbers, clocks as timedeltas.

        >>> Timestamp(batch=7).state_dict()["batch"]
        7
        """
        amounts = self.__fields__._asdict()
        return {name: n * MICROSECOND if UNITS[name] is TimeUnit.SECOND else n for name, n in amounts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set every field from the result of :meth:`state_dict`.

        Args:
            state: Fields by name. Fields of iterations and wall-clock time may be missing; they are then zero.

        Raises:
            ValueError: Another field is missing, or a value is not valid; the timestamp is then unchanged.

        >>> timestamp = Timestamp()
        >>> timestamp.load_state_dict(Timestamp(batch=7).state_dict())
        >>> timestamp
        Timestamp(batch=7)
        """
        missing = sorted(_ALWAYS_SAVED - state.keys())
        if missing:
            raise ValueError(f"The state of the timestamp lacks {missing}; it holds {sorted(state)}.")
        self.__fields__ = Fields(*(as_field(name, state.get(name, 0)) for name in UNITS))

    @property
    def iteration(self) -> Time:
        """Finished iterations."""
        return Time(self.__fields__.iteration, TimeUnit.ITERATION)

    @property
    def epoch(self) -> Time:
        """Finished epochs."""
        return Time(self.__fields__.epoch, TimeUnit.EPOCH)

    @property
    def batch(self) -> Time:
        """Finished batches."""
        return Time(self.__fields__.batch, TimeUnit.BATCH)

    @property
    def sample(self) -> Time:
        """Samples seen."""
        return Time(self.__fields__.sample, TimeUnit.SAMPLE)

    @property
    def token(self) -> Time:
        """Tokens seen."""
        return Time(self.__fields__.token, TimeUnit.TOKEN)

    @property
    def epoch_in_iteration(self) -> Time:
        """Epochs finished in the current iteration; the only counter that can be set."""
        return Time(self.__fields__.epoch_in_iteration, TimeUnit.EPOCH)

    @epoch_in_iteration.setter
    def epoch_in_iteration(self, value: int | Time) -> None:
        count = as_count("epoch_in_iteration", value, TimeUnit.EPOCH)
        self.__fields__ = self.__fields__._replace(epoch_in_iteration=count)

    @property
    def token_in_iteration(self) -> Time:
        """Tokens seen in the current iteration."""
        return Time(self.__fields__.token_in_iteration, TimeUnit.TOKEN)

    @property
    def batch_in_epoch(self) -> Time:
        """Batches finished in the current epoch."""
        return Time(self.__fields__.batch_in_epoch, TimeUnit.BATCH)

    @property
    def sample_in_epoch(self) -> Time:
        """Samples seen in the current epoch."""
        return Time(self.__fields__.sample_in_epoch, TimeUnit.SAMPLE)

    @property
    def token_in_epoch(self) -> Time:
        """Tokens seen in the current epoch."""
        return Time(self.__fields__.token_in_epoch, TimeUnit.TOKEN)

    @property
    def total_wct(self) -> datetime.timedelta:
        """Wall-clock time trained."""
        return self.__fields__.total_wct * MICROSECOND

    @property
    def iteration_wct(self) -> datetime.timedelta:
        """Wall-clock time of the current iteration."""
        return self.__fields__.iteration_wct * MICROSECOND

    @property
    def epoch_wct(self) -> datetime.timedelta:
        """Wall-clock time of the current epoch."""
        return self.__fields__.epoch_wct * MICROSECOND

    @property
    def batch_wct(self) -> datetime.timedelta:
        """Wall-clock time of the last batch."""
        return self.__fields__.batch_wct * MICROSECOND

    def __repr__(self) -> str:
        given = {name: value for name, value in self.state_dict().items() if value}
        seconds = {name: value.total_seconds() for name, value in given.items() if not isinstance(value, int)}
        return f"Timestamp({', '.join(f'{name}={value}' for name, value in (given | seconds).items())})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self.__fields__ == other.__fields__
        lead = self._lead(other)
        return NotImplemented if lead is None else lead == 0

    def __lt__(self, other: Time | str) -> bool:
        lead = self._lead(other)
        return NotImplemented if lead is None else lead < 0

    def __le__(self, other: Time | str) -> bool:
        lead = self._lead(other)
        return NotImplemented if lead is None else lead <= 0

    def __gt__(self, other: Time | str) -> bool:
        lead = self._lead(other)
        return NotImplemented if lead is None else lead > 0

    def __ge__(self, other: Time | str) -> bool:
        lead = self._lead(other)
        return NotImplemented if lead is None else lead >= 0

    def _lead(self, other: object) -> int | float | None:
        """Return how far this timestamp is beyond a time, or None if ``other`` is not a time."""
        if isinstance(other, str):
            other = Time.from_timestring(other)
        if not isinstance(other, Time):
            return None
        return int(self.count(other.unit)) - other.value  # integer seconds, as in `get`

    def _with(self, **fields: int) -> Timestamp:
        """Return a copy with some fields replaced by valid values."""
        new = object.__new__(Timestamp)
        new.__fields__ = self.__fields__._replace(**fields)
        return new
