"""Learning-rate schedulers for large runs: inverse square root, 1 - sqrt, and warmup-stable-decay (WSD)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, final

from composer._numbers import non_negative
from composer._text import one_of
from composer.core.time import Time
from composer.optim import schedule_curves
from composer.optim.schedule import ComposerScheduler, Plan, as_time, over, rising
from composer.optim.schedule_times import Horizon, Span
from composer.optim.warmup_schedules import warmup_span
from composer.warnings import ComposerWarning

__all__ = ["InverseSquareRootScheduler", "OneMinusSqrtScheduler", "WarmupStableDecayScheduler"]

_COOLDOWNS: dict[str, Callable[..., float]] = {
    "linear": lambda fraction, end: schedule_curves.linear(fraction, 1.0, end),
    "sqrt": schedule_curves.one_minus_sqrt,
    "cosine": schedule_curves.cosine,
}


@final
class OneMinusSqrtScheduler(ComposerScheduler):
    """Decays to ``alpha_f`` as one minus the square root of time: fast at first, then slower.

        f(t) = alpha_f + (1 - alpha_f) * (1 - sqrt(min(1, t / t_max)))

    Args:
        t_max: When the curve ends.
        alpha_f: The final multiplier.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``t_max`` or ``alpha_f`` is negative.

    >>> [round(value, 3) for value in OneMinusSqrtScheduler().preview("4ba")]
    [1.0, 0.5, 0.293, 0.134, 0.0]

    Paper: https://arxiv.org/abs/2405.18392 (Hägele et al. 2024)
    """

    def __init__(self, t_max: str | Time = "1dur", alpha_f: float = 0.0) -> None:
        self.t_max = as_time("t_max", t_max)
        self.alpha_f = non_negative("alpha_f", alpha_f)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        return over(self.__end__(horizon), partial(schedule_curves.one_minus_sqrt, end=self.alpha_f))


@final
class InverseSquareRootScheduler(ComposerScheduler):
    """Warms up linearly, then decays with the inverse square root of time, independent of the duration of the run.

        f(t) = t / t_warmup                                         before t_warmup
        f(t) = sqrt(timescale / (timescale + t - t_warmup))         from then on

    With ``timescale`` equal to ``t_warmup``, the default, this is the schedule of the original Transformer,
    ``min(t / t_warmup, sqrt(t_warmup / t))``.

    Args:
        t_warmup: Length of the warm-up; "0ba" is none.
        timescale: Time until the square of the multiplier has halved. Default: ``t_warmup``.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``, and to a ``timescale`` equal to it.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time is negative, or ``timescale`` is zero, also by default; when the run begins: the times are
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
            raise ValueError(f"timescale is required with t_warmup='{self.t_warmup}', because t_warmup is its default.")

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
            raise ValueError(f"timescale is less than one {scale.unit.name.lower()} in this run. Use a longer one.")
        unit, stop, timescale = warmup.unit, warmup.stop, scale.length
        return rising(warmup, 1.0, lambda now: schedule_curves.inverse_square_root(now.count(unit) - stop, timescale))


@final
class WarmupStableDecayScheduler(ComposerScheduler):
    """Warms up linearly, stays constant, and decays at the end (WSD, warmup-stable-decay).

        f(t) = t / t_warmup                                         before t_warmup
        f(t) = 1                                                    until t_max - t_decay
        f(t) = alpha_f + (1 - alpha_f) * g(s)                       until t_max
        s = (t - (t_max - t_decay)) / t_decay

    where g(s) is ``1 - s`` ("linear"), ``1 - sqrt(s)`` ("sqrt") or ``(1 + cos(pi * s)) / 2`` ("cosine").

    Until the decay phase, the multiplier does not depend on the duration of the run, unless ``t_warmup`` is a fraction
    of it. So a checkpoint from the stable phase is a branching point: resume with ``max_duration`` set to the elapsed
    time plus ``t_decay`` to get the decayed model, or with a longer ``max_duration`` to keep training.

    Args:
        t_warmup: Length of the warm-up.
        t_decay: Length of the decay phase, which ends at ``t_max``.
        decay: Shape of the decay: "linear", "sqrt" or "cosine". "sqrt" is often slightly better than "linear".
        alpha_f: The multiplier at ``t_max``.
        t_max: When the schedule ends.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time or multiplier is negative, or ``decay`` is unknown; when the run begins: warm-up or
            decay is counted in a different unit than ``t_max``.

    Warns:
        ComposerWarning: When the run begins: warm-up and decay together are longer than ``t_max``. The decay then
            takes the time that the warm-up leaves.

    >>> WarmupStableDecayScheduler("2ba", "4ba", decay="linear").preview("8ba")
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    Paper: https://arxiv.org/abs/2404.06395 (Hu et al. 2024), https://arxiv.org/abs/2405.18392 (Hägele et al. 2024: the
    shapes and lengths of the decay phase)
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
        self.alpha_f = non_negative("alpha_f", alpha_f)
        self.t_max = as_time("t_max", t_max)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        warmup = warmup_span(horizon, self.t_warmup, self.scale_warmup)
        cooldown, full_span = horizon.span(self.t_decay), self.__end__(horizon)
        if not warmup.unit is cooldown.unit is full_span.unit:
            raise ValueError(
                f"t_warmup='{self.t_warmup}' is counted in '{warmup.unit}', t_decay='{self.t_decay}' in "
                f"'{cooldown.unit}' and t_max='{self.t_max}' in '{full_span.unit}' in this run. Use the same unit."
            )
        begin = full_span.stop - cooldown.length
        if warmup.stop > begin:
            message = (
                f"t_warmup='{self.t_warmup}' ({warmup}) and t_decay='{self.t_decay}' ({cooldown}) are together longer "
                f"than t_max='{self.t_max}' ({full_span}): the decay takes the time that the warm-up leaves."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)
            begin = warmup.stop
        curve = partial(_COOLDOWNS[self.decay], end=self.alpha_f)
        cooling = over(Span(full_span.unit, full_span.stop - begin, begin), curve)
        unit = full_span.unit
        return rising(warmup, 1.0, lambda now: 1.0 if now.count(unit) < begin else cooling(now))
