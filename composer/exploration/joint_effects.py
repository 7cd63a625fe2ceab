"""Effects of methods, estimated together: a run of a combination tells something of each of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from composer.exploration.variant import TUNED_KINDS, Variant
from composer.statistics.paired import Ratio

__all__ = ["JointEffects"]

Floats = npt.NDArray[np.float64]

# Standard deviation of the effect of a method, beyond what the cost of its steps says, before it was tried.
_PRIOR = 0.2
# Most methods that do not help cost a little.
_PRIOR_MEAN = -0.02
_UNKNOWN = _PRIOR_MEAN, _PRIOR
# Standard deviation of what the parts of a combination gain or lose by being together.
_TOGETHER = 0.1
# Share of the logarithm of the speed of a step that is expected to be gained, and its standard deviation.
_COST_SHARE, _COST_DOUBT = 0.5, 0.5
# Of what changes nothing but the speed of a step: standard deviation of the logarithm of this speed, before it is
# measured, and of what the effect is besides.
_SPEEDS, _SPEED_DOUBT = 0.3, 0.1
# Half the width of an interval of 95 % in standard deviations.
_NORMAL = 1.96
# What deviates in a draw from the mean of a method without a run is multiplied by this: effects have long tails.
_UNTRIED = 2.0
# Methods of a combination at most. Of more, it is less clear which one has helped, and more hinder each other.
_MOST_METHODS = 3
# Of the effect of a learning rate by the logarithm of its factor to the base 2: standard deviation of the slope, mean
# and standard deviation of the curvature, and standard deviation of the rest over a factor of 2.
_SLOPE, _CURVATURE, _CURVATURES, _REST = 0.4, -0.15, 0.2, 0.4


class JointEffects:
    """Bayesian linear regression of the gains of runs on the methods that they have, and on their learning rate.

        gain of a run = what all runs share + effect of its learning rate + sum of the effects of its methods + noise
        effect of a method ~ N(c / 2 - 0.02, 0.2^2 + (c / 2)^2),  c = log(speed of a step)
        effect of a method that changes only the speed of a step ~ N(k c, k s^2 + 0.1^2),  k = 0.3^2 / (0.3^2 + s^2)
        effect of a learning rate = a x + b x^2 + Brownian motion of x,  a ~ N(0, 0.4^2),  b ~ N(-0.15, 0.2^2)

    Steps that are cheaper may teach less, and dearer ones more, so that their cost says less the further it is from
    that of the baseline. The speed of a step is measured with the standard deviation s of its logarithm. What all runs
    share is the effect of their seed; x is the logarithm to the base 2 of the factor of a learning rate, 0 for that of
    the program.

    New combinations are chosen by Thompson sampling: effects are drawn from the posterior distribution, and the
    methods whose drawn effect is positive are tried together, with the learning rate whose drawn effect is largest. Of
    methods without a run, draws are twice as far from their mean, since a few effects are much larger than most.

    Args:
        factors: The methods, learning rates and batch sizes.
        speeds: How many times as fast a step is with each method, with its interval, where it was measured.
        scale: What gains are measured in, as a multiple of the logarithm of a factor of speed.
        shared: Standard deviation of what all runs share.
        speed_is_gain: Whether a gain is the logarithm of a factor of speed, as of the time to a target, so that speeds
            say what a variant gains whose ``speed_only`` is true.

    >>> blur, ema = Variant("BlurPool"), Variant("EMA")
    >>> effects = JointEffects([blur, ema], {})
    >>> for _ in range(8):
    ...     effects.add([blur, ema], 0.3, 0.02)
    ...     effects.add([ema], 0.0, 0.02)
    >>> mean, deviation = effects.effect(blur)
    >>> 0.25 < mean < 0.3, deviation < 0.1
    (True, True)

    Paper: Agrawal & Goyal 2013, https://arxiv.org/abs/1209.3352
    """

    def __init__(
        self,
        factors: Sequence[Variant],
        speeds: Mapping[Variant, Ratio],
        scale: float = 1.0,
        shared: float = 0.02,
        *,
        speed_is_gain: bool = True,
    ) -> None:
        self.factors = list(factors)
        self.counts = dict.fromkeys(self.factors, 0)
        self._place = {factor: place for place, factor in enumerate(self.factors)}
        self.scale = scale
        mean = np.zeros(len(self.factors) + 1)  # the last one is what all runs share
        covariance = np.diag([0.0] * len(self.factors) + [shared**2])
        for place, one in enumerate(self.factors):
            if one.kind == "learning_rate":
                mean[place] = scale * _CURVATURE * math.log2(one.factor) ** 2
                covariance[place, :-1] = [scale**2 * _covariance(one, two) for two in self.factors]
            else:
                of_a_method = _gain_of_speed if one.speed_only and speed_is_gain else _prior
                mean[place], deviation = _UNKNOWN if one not in speeds else of_a_method(speeds[one])
                mean[place] *= scale
                covariance[place, place] = (deviation * scale) ** 2
        self._precision: Floats = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        self._weighted: Floats = self._precision @ mean
        self._excluded: set[Variant] = set()
        self._random = np.random.default_rng(0)
        self._solved: tuple[Floats, Floats] | None = None

    def add(self, parts: Iterable[Variant], gain: float, deviation: float) -> None:
        """Add the gain of a run.

        Args:
            parts: Its methods; none for a run of the baseline.
            gain: How far it is ahead of the baseline.
            deviation: Standard deviation of the gain of equal runs.
        """
        present = np.zeros(len(self.factors) + 1)
        present[-1] = 1.0
        for part in parts:
            present[self._place[part]] = 1.0
            self.counts[part] += 1
        together = _TOGETHER * self.scale if present.sum() > 2 else 0.0
        variance = deviation**2 + together**2
        self._precision = self._precision + np.outer(present, present) / variance
        self._weighted = self._weighted + present * gain / variance
        self._solved = None

    def exclude(self, factor: Variant) -> None:
        """Propose a method no more.

        Args:
            factor: The method.
        """
        self._excluded.add(factor)

    @property
    def shared(self) -> float:
        """What all runs share, as far as it is known."""
        return float(self._posterior()[0][-1])

    def effect(self, factor: Variant) -> tuple[float, float]:
        """Return the mean and standard deviation of the effect of a method.

        Args:
            factor: The method.
        """
        mean, covariance = self._posterior()
        place = self._place[factor]
        return float(mean[place]), math.sqrt(float(covariance[place, place]))

    def expected(self, parts: Iterable[Variant]) -> float:
        """Return the expected gain of a combination.

        Args:
            parts: Its methods.
        """
        mean, _ = self._posterior()
        return float(sum(mean[self._place[part]] for part in parts))

    def propose(self) -> list[Variant]:
        """Return the parts of the next run: those that are best in a draw from the posterior distribution."""
        mean, covariance = self._posterior()
        drawn = self._random.multivariate_normal(mean, covariance, method="cholesky")
        untried = [one.kind not in TUNED_KINDS and not self.counts[one] for one in self.factors]
        drawn[:-1] += np.where(untried, (_UNTRIED - 1) * (drawn - mean)[:-1], 0.0)
        return self._best(drawn[:-1], _MOST_METHODS)

    def best(self, doubt: float = 0.0, most: int = _MOST_METHODS) -> list[Variant]:
        """Return what is expected to help: the best learning rate and batch size, and the best methods.

        Args:
            doubt: Standard deviations of the effect of a part that are taken from its mean.
            most: Number of methods at most.
        """
        mean, covariance = self._posterior()
        return self._best((mean - doubt * np.sqrt(np.diag(covariance)))[:-1], most)

    def _best(self, values: Floats, most: int) -> list[Variant]:
        """What has the largest positive values, one of each group: what is tuned, and then the methods."""
        tuned: list[Variant] = []
        methods: list[Variant] = []
        for value, factor in sorted(zip(values.tolist(), self.factors, strict=True), key=lambda pair: -pair[0]):
            if value <= 0:
                break
            if factor in self._excluded or (factor.group and factor.group in {one.group for one in tuned + methods}):
                continue
            if factor.kind in TUNED_KINDS:
                tuned.append(factor)
            elif len(methods) < most:
                methods.append(factor)
        return tuned + methods

    def _posterior(self) -> tuple[Floats, Floats]:
        if self._solved is None:
            covariance = np.linalg.inv(self._precision)
            self._solved = covariance @ self._weighted, (covariance + covariance.T) / 2
        return self._solved


def _prior(speed: Ratio) -> tuple[float, float]:
    """Mean and standard deviation of the effect of a method before it was tried."""
    logarithm = math.log(speed.value)
    return _PRIOR_MEAN + _COST_SHARE * logarithm, math.hypot(_PRIOR, _COST_DOUBT * logarithm)


def _gain_of_speed(speed: Ratio) -> tuple[float, float]:
    """The same of what changes nothing but the speed of a step."""
    if not 0 < speed.low <= speed.high < math.inf:
        return _UNKNOWN
    noise = math.log(speed.high / speed.low) / (2 * _NORMAL)
    known = _SPEEDS**2 / (_SPEEDS**2 + noise**2)
    return known * math.log(speed.value), math.hypot(_SPEED_DOUBT, math.sqrt(known) * noise)


def _covariance(one: Variant, two: Variant) -> float:
    """Prior covariance of the effects of a learning rate and another part."""
    if two.kind != "learning_rate":
        return 0.0
    x, y = math.log2(one.factor), math.log2(two.factor)
    rest = min(abs(x), abs(y)) if x * y > 0 else 0.0
    return _SLOPE**2 * x * y + _CURVATURES**2 * (x * y) ** 2 + _REST**2 * rest + (1e-6 if one == two else 0.0)
