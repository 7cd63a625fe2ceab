"""Series: the values of one metric over the steps, epochs, samples, tokens and seconds of a run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from composer._text import one_of

__all__ = ["TIMES", "UNITS", "Series"]

# The units of time that a log may have for each value, besides the step.
TIMES: Final = ("epoch", "sample", "token", "seconds")
# All units of a horizontal axis.
UNITS: Final = ("step", *TIMES)


@dataclass(frozen=True, eq=False)
class Series:
    """The values of one metric of a run, as arrays of equal length N, in the order of logging.

    Attributes:
        name: Name of the metric as it was logged, such as "metrics/eval/MulticlassAccuracy".
        step: Number of batches trained before each value was logged, (N,), int64.
        values: The values, (N,), float64; they may be NaN or infinite.
        epoch: Number of finished epochs, (N,), float64; None if the log does not have it.
        sample: Number of samples seen, likewise.
        token: Number of tokens seen, likewise.
        seconds: Time trained in seconds, without evaluations, likewise.

    >>> Series("loss", np.array([0, 1, 2]), np.array([0.9, 0.5, np.nan])).finite().last
    0.5
    """

    name: str
    step: np.ndarray
    values: np.ndarray
    epoch: np.ndarray | None = None
    sample: np.ndarray | None = None
    token: np.ndarray | None = None
    seconds: np.ndarray | None = None

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.values)

    def __getitem__(self, chosen: Any) -> Series:
        """Return some of the values as a series.

        Args:
            chosen: A slice, a mask (N,) or an array of indices.

        Raises:
            TypeError: It is an integer: a single value is in ``values``.
        """
        if isinstance(chosen, (int, np.integer)):
            raise TypeError(
                f"series[{chosen}]: choose values with a slice, a mask or an array of indices. A single value is "
                f"series.values[{chosen}]."
            )
        arrays = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "name"}
        return replace(self, **{name: None if array is None else array[chosen] for name, array in arrays.items()})

    @property
    def last(self) -> float:
        """The last value; NaN if there is none."""
        return float(self.values[-1]) if len(self) else float("nan")

    def finite(self) -> Series:
        """Return the series without values that are NaN or infinite."""
        return self[np.isfinite(self.values)]

    def followed_by(self, other: Series) -> Series:
        """Return the values of both series; a time that only one of them has is NaN in the other.

        Args:
            other: The series with the later values.
        """
        times: dict[str, np.ndarray] = {}
        for unit in TIMES:
            pair = [getattr(one, unit) for one in (self, other)]
            if any(array is not None for array in pair):
                known = [
                    np.full(len(one), np.nan) if array is None else array
                    for one, array in zip((self, other), pair, strict=True)
                ]
                times[unit] = np.concatenate(known)
        step, values = (np.concatenate([getattr(one, part) for one in (self, other)]) for part in ("step", "values"))
        return Series(self.name, step, values, **times)

    def over(self, unit: str = "step") -> np.ndarray:
        """Return the times of the values in a unit, (N,).

        Args:
            unit: "step", "epoch", "sample", "token" or "seconds".

        Raises:
            ValueError: The unit does not exist, or the log does not have it.

        >>> Series("loss", np.array([0, 1]), np.array([0.9, 0.5])).over("epoch")
        Traceback (most recent call last):
        ...
        ValueError: The log has no 'epoch' of 'loss'; it has 'step'.
        """
        found = getattr(self, one_of("unit", unit, UNITS))
        if found is None:
            known = [name for name in UNITS if getattr(self, name) is not None]
            raise ValueError(f"The log has no {unit!r} of {self.name!r}; it has {', '.join(map(repr, known))}.")
        return found
