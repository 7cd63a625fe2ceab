"""Schedules of large runs: the square roots, and warm-up, stable phase and cool-down."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, final

from composer._text import one_of
from composer.core.time import Time
from composer.optim import schedule_curves
from composer.optim.schedule import ComposerScheduler, Plan, as_time, over, rising
from composer.optim.schedule_times import Horizon, Span
from composer.optim.warmup_schedules import warmup_span
from composer.warnings import ComposerWarning

__all__ = ["InverseSquareRootScheduler", "OneMinusSqrtScheduler", "WarmupStableDecayScheduler"]

_COOLDOWNS: dict[str, Callable[..., float]] = {
    "linear": lambda share, end: schedule_curves.linear(share, 1.0, end),
    "sqrt": schedule_curves.one_minus_sqrt,
    "cosine": schedule_curves.cosine,
}


@final
class OneMinusSqrtScheduler(ComposerScheduler):
    """Goes down to ``alpha_f``, fast at first.

        f(t) = alpha_f + (1 - alpha_f) * (1 - sqrt(min(1, t / t_max)))

    Args:
        t_max: When the curve ends.
        alpha_f: The multiplier from then on.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: ``t_max`` is negative.

    >>> [round(value, 3) for value in OneMinusSqrtScheduler().preview("4ba")]
    [1.0, 0.5, 0.293, 0.134, 0.0]

    Paper: https://arxiv.org/abs/2405.18392 (Hägele et al. 2024)
    """

    def __init__(self, t_max: str | Time = "1dur", alpha_f: float = 0.0) -> None:
        self.t_max = as_time("t_max", t_max)
        self.alpha_f = alpha_f

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        return over(self.__end__(horizon), partial(schedule_curves.one_minus_sqrt, end=self.alpha_f))


@final
class InverseSquareRootScheduler(ComposerScheduler):
    """Rises linearly, then falls with the square root of the time; does not depend on the length of the run.

        f(t) = t / t_warmup                                         before t_warmup
        f(t) = sqrt(timescale / (timescale + t - t_warmup))         from then on

    With ``timescale`` equal to ``t_warmup``, the default, this is the rate of the first transformers,
    ``min(t / t_warmup, sqrt(t_warmup / t))``.

    Args:
        t_warmup: How long the rise takes; "0ba" is no rise.
        timescale: The time until the square of the multiplier has halved; by default ``t_warmup``.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``, and to a ``timescale`` equal to it.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: A time is negative, or ``timescale`` zero, also by default; when the run begins: the times are
            counted in different units.

    >>> [round(value, 3) for value in InverseSquareRootScheduler("2ba").preview("8ba", num_points=5)]
    [0.0, 1.0, 0.707, 0.577, 0.5]

    Paper: https://arxiv.org/abs/1706.03762 (Vaswani et al. 2017)
    """

    def __init__(self, t_warmup: str | Time, timescale: str | Time | None = None, scale_warmup: bool = False) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.timescale = None if timescale is None else as_time("timescale", timescale, allow_zero=False)
        self.scale_warmup = scale_warmup
        if timescale is None and self.t_warmup.value == 0:
            raise ValueError(f"timescale must be given where t_warmup is '{self.t_warmup}', as that is its default.")

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        warmup = warmup_span(horizon, self.t_warmup, self.scale_warmup)
        scale = warmup if self.timescale is None else horizon.span(self.timescale)
        if scale.unit is not warmup.unit:
            raise ValueError(
                f"t_warmup='{self.t_warmup}' is counted in '{warmup.unit}' and timescale='{self.timescale}' in "
                f"'{scale.unit}' in this run. Pass both in one unit."
            )
        if scale.length <= 0:
            raise ValueError(f"timescale is less than one {scale.unit.name.lower()} in this run; give a longer one.")
        unit, stop, timescale = warmup.unit, warmup.stop, scale.length
        return rising(warmup, 1.0, lambda now: schedule_curves.inverse_square_root(now.count(unit) - stop, timescale))


@final
class WarmupStableDecayScheduler(ComposerScheduler):
    """Rises linearly, stays, and cools down at the end (WSD).

        f(t) = t / t_warmup                                         before t_warmup
        f(t) = 1                                                    until t_max - t_decay
        f(t) = alpha_f + (1 - alpha_f) * g(s)                       until t_max
        s = (t - (t_max - t_decay)) / t_decay

    where g(s) is ``1 - s`` ("linear"), ``1 - sqrt(s)`` ("sqrt") or ``(1 + cos(pi * s)) / 2`` ("cosine").

    Until the cool-down the multiplier does not depend on the length of the training, if ``t_warmup`` is no share of it.
    So a checkpoint of the stable phase is a branching point: go on from it with ``max_duration`` at what was done plus
    ``t_decay`` to have the cooled-down model of that length, or with a longer one to train on.

    Args:
        t_warmup: How long the rise takes.
        t_decay: How long the cool-down takes, counted back from ``t_max``.
        decay: Its shape: "linear", "sqrt" or "cosine". "sqrt" is often a little better than "linear".
        alpha_f: The multiplier at ``t_max``.
        t_max: When the schedule ends.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: A time is negative, or there is no such shape; when the run begins: rise and cool-down are
            counted in another unit than ``t_max``.

    Warns:
        ComposerWarning: When the run begins: rise and cool-down together are longer than ``t_max``; the cool-down then
            takes what the rise leaves.

    >>> WarmupStableDecayScheduler("2ba", "4ba", decay="linear").preview("8ba")
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    Paper: https://arxiv.org/abs/2404.06395 (Hu et al. 2024), https://arxiv.org/abs/2405.18392 (Hägele et al. 2024: the
    shapes and lengths of cool-downs)
    """

    def __init__(
        self,
        t_warmup: str | Time,
        t_decay: str | Time = "0.2dur",
        decay: Literal["linear", "sqrt", "cosine"] = "sqrt",
        alpha_f: float = 0.0,
        t_max: str | Time = "1dur",
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.t_decay = as_time("t_decay", t_decay)
        self.decay = one_of("decay", decay, tuple(_COOLDOWNS))
        self.alpha_f = alpha_f
        self.t_max = as_time("t_max", t_max)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        warmup = warmup_span(horizon, self.t_warmup, self.scale_warmup)
        cooldown, whole = horizon.span(self.t_decay), self.__end__(horizon)
        if not warmup.unit is cooldown.unit is whole.unit:
            raise ValueError(
                f"t_warmup='{self.t_warmup}' is counted in '{warmup.unit}', t_decay='{self.t_decay}' in "
                f"'{cooldown.unit}' and t_max='{self.t_max}' in '{whole.unit}' in this run. Pass all in one unit."
            )
        begin = whole.stop - cooldown.length
        if warmup.stop > begin:
            message = (
                f"t_warmup='{self.t_warmup}' ({warmup}) and t_decay='{self.t_decay}' ({cooldown}) are together longer "
                f"than t_max='{self.t_max}' ({whole}): the cool-down takes what the warm-up leaves."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)
            begin = warmup.stop
        curve = partial(_COOLDOWNS[self.decay], end=self.alpha_f)
        cooling = over(Span(whole.unit, whole.stop - begin, begin), curve)
        unit = whole.unit
        return rising(warmup, 1.0, lambda now: 1.0 if now.count(unit) < begin else cooling(now))
