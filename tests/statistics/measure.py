"""Measure the statistics themselves: ``python -m tests.statistics.measure`` prints the tables of their docstrings."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable

import numpy as np

from composer.statistics.bootstrap import mean_interval
from composer.statistics.sequential import LookAction, SequentialTest

Draw = Callable[[np.random.Generator, int], np.ndarray]


def _lognormal(spread: float, generator: np.random.Generator, number: int) -> np.ndarray:
    """Log ratios of two times of which each has this spread; the true mean is log 1.2."""
    before = 1.2 * np.exp(spread * generator.normal(size=number))
    return np.log(before / np.exp(spread * generator.normal(size=number)))


# Noise -> how values are drawn, and their true mean.
NOISES: dict[str, tuple[Draw, float]] = {
    "lognormal 2 %": (functools.partial(_lognormal, 0.02), math.log(1.2)),
    "lognormal 10 %": (functools.partial(_lognormal, 0.1), math.log(1.2)),
    "lognormal 30 %": (functools.partial(_lognormal, 0.3), math.log(1.2)),
    "Student t(3)": (lambda generator, number: generator.standard_t(3, size=number), 0.0),
    "one in 10 disturbed": (
        lambda generator, number: generator.normal(size=number) * np.where(generator.random(number) < 0.1, 8, 1),
        0.0,
    ),
    "exponential": (lambda generator, number: generator.exponential(size=number), 1.0),
}


def covered(noise: str, number: int, samples: int, resamples: int) -> float:
    """The share of intervals that hold the true mean."""
    draw, truth = NOISES[noise]
    generator = np.random.default_rng([number, list(NOISES).index(noise)])
    held = 0
    for sample in range(samples):
        found = mean_interval(draw(generator, number).tolist(), resamples, seed=sample)
        held += found.low <= truth <= found.high
    return held / samples


def raced(test: SequentialTest, gain: float, spread: float, experiments: int, seed: int = 0) -> tuple[float, float]:
    """The share of experiments that accept, and how many pairs they take in the mean."""
    generator = np.random.default_rng(seed)
    accepted = pairs = 0
    for _ in range(experiments):
        logs = math.log1p(gain) + spread * generator.normal(size=test.looks[-1])
        looks = (test.look(logs[:number].tolist()) for number in test.looks)
        last = next(look for look in looks if look.action != LookAction.CONTINUE)
        accepted += last.action == LookAction.ACCEPT
        pairs += last.num_pairs
    return accepted / experiments, pairs / experiments


def stopped(test: SequentialTest, gain: float, spread: float, experiments: int) -> tuple[float, float]:
    """The share of intervals that hold the true ratio where the test stops, and the mean ratio of those it accepts."""
    generator = np.random.default_rng(5)
    held, accepted = 0, []
    for experiment in range(experiments):
        logs = (math.log1p(gain) + spread * generator.normal(size=test.looks[-1])).tolist()
        looks = (test.look(logs[:number]) for number in test.looks)
        last = next(look for look in looks if look.action != LookAction.CONTINUE)
        found = mean_interval(logs[: last.num_pairs], 500, seed=experiment)
        held += found.low <= math.log1p(gain) <= found.high
        if last.action == LookAction.ACCEPT:
            accepted.append(found.value)
    return held / experiments, math.exp(np.mean(accepted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["coverage", "sequential", "placebos", "stopped"])
    parser.add_argument("--samples", type=int, default=4000)
    given = parser.parse_args()
    if given.table == "coverage":
        for noise in NOISES:
            shares = [covered(noise, number, given.samples, resamples=2000) for number in (6, 8, 12)]
            print(f"{noise:20}", *(f"{share:.1%}" for share in shares), flush=True)
        return
    if given.table == "stopped":
        for gain in (0.0, 0.1, 0.3):
            held, ratio = stopped(SequentialTest(), gain, 0.15, given.samples)
            print(f"gain {gain:.0%} spread 15%: {held:.1%} of the intervals hold, accepted ratios {ratio:.3f}")
        return
    for spending in ("pocock", "obrien-fleming"):
        for futility in (0.0, 0.1):
            test = SequentialTest(spending=spending, futility=futility)
            cases = [(0.0, 0.1)]
            if given.table == "sequential":
                cases = [(gain, spread) for gain in (0.1, 0.3) for spread in (0.05, 0.15)]
            for gain, spread in cases:
                share, pairs = raced(test, gain, spread, given.samples)
                print(f"{spending:15} {futility} gain {gain:.0%} spread {spread:.0%}: {share:.1%}, {pairs:.1f} pairs")


if __name__ == "__main__":
    main()
