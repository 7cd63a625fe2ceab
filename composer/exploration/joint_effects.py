"""Effects of methods, estimated together: a run of a combination tells something of each of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from composer.exploration.variant import Variant

__all__ = ["JointEffects"]

Floats = npt.NDArray[np.float64]

# Standard deviation of the effect of a method, beyond what the cost of its steps says, before it was tried.
_PRIOR = 0.2
# Most methods that do not help cost a little.
_PRIOR_MEAN = -0.02
# Standard deviation of what the parts of a combination gain or lose by being together.
_TOGETHER = 0.1
# Methods of a combination at most.
_MOST_PARTS = 6


class JointEffects:
    """Bayesian linear regression of the gains of runs on the methods that they have.

        gain of a run = sum of the effects of its methods + noise
        effect ~ N(log(speed of a step) - 0.02, 0.2^2)

    New combinations are chosen by Thompson sampling: effects are drawn from the posterior distribution, and the
    methods whose drawn effect is positive are tried together.

    Args:
        factors: The methods.
        speeds: How many times as fast a step is with each method, where it was measured.
        scale: What gains are measured in, as a multiple of the logarithm of a factor of speed.

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

    def __init__(self, factors: Sequence[Variant], speeds: Mapping[Variant, float], scale: float = 1.0) -> None:
        self.factors = list(factors)
        self.counts = dict.fromkeys(self.factors, 0)
        self._place = {factor: place for place, factor in enumerate(self.factors)}
        self.scale = scale
        mean = np.array([_PRIOR_MEAN + math.log(speeds.get(one, 1.0)) for one in self.factors]) * scale
        self._precision: Floats = np.eye(len(self.factors)) / (_PRIOR * scale) ** 2
        self._weighted: Floats = self._precision @ mean
        self._random = np.random.default_rng(0)
        self._solved: tuple[Floats, Floats] | None = None

    def add(self, parts: Iterable[Variant], gain: float, deviation: float) -> None:
        """Add the gain of a run.

        Args:
            parts: Its methods.
            gain: How far it is ahead of the baseline.
            deviation: Standard deviation of the gain of equal runs.
        """
        present = np.zeros(len(self.factors))
        for part in parts:
            present[self._place[part]] = 1.0
            self.counts[part] += 1
        together = _TOGETHER * self.scale if present.sum() > 1 else 0.0
        variance = deviation**2 + together**2
        self._precision = self._precision + np.outer(present, present) / variance
        self._weighted = self._weighted + present * gain / variance
        self._solved = None

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
        """Return the methods of the next run: those that are best in a draw from the posterior distribution."""
        mean, covariance = self._posterior()
        drawn = self._random.multivariate_normal(mean, covariance, method="cholesky")
        return self.best(drawn.tolist())

    def best(self, effects: Sequence[float] | None = None, least: float = 0.0) -> list[Variant]:
        """Return the methods whose effect is largest, one of each group.

        Args:
            effects: The effect of each method; None for the expected ones.
            least: What an effect must be at least.
        """
        values = self._posterior()[0].tolist() if effects is None else effects
        found: list[Variant] = []
        for value, factor in sorted(zip(values, self.factors, strict=True), key=lambda pair: -pair[0]):
            if value <= least or len(found) == _MOST_PARTS:
                break
            if not factor.group or all(one.group != factor.group for one in found):
                found.append(factor)
        return found

    def _posterior(self) -> tuple[Floats, Floats]:
        if self._solved is None:
            covariance = np.linalg.inv(self._precision)
            self._solved = covariance @ self._weighted, (covariance + covariance.T) / 2
        return self._solved
