"""Statistics of paired and repeated runs: intervals, tests, power, and time to a target.

The modules, in reading order:

- ``crossing``: when the curve of a metric first reaches a target.
- ``comparison``: times to a target of pairs of runs, with censored times of runs that did not reach it.
- ``groups``: a metric of two groups of runs with different seeds.
- ``holm``: p-values adjusted for several methods, and the decision whether one pays.
- ``sequential``: a test that may stop after 6, 8, 10, ... pairs.
- ``power``: which gains a number of pairs can tell from noise.
- ``bootstrap``, ``sign_flip``: the interval and the permutation test behind them.
- ``paired``: the gain in speed from blocks of steps that are timed in turn.

Functions that use quantiles need SciPy: ``pip install 'composer-torch[explore]'``.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Comparison": "composer.statistics.comparison",
        "Crossing": "composer.statistics.crossing",
        "Decision": "composer.statistics.holm",
        "Estimate": "composer.statistics.bootstrap",
        "Look": "composer.statistics.sequential",
        "LookAction": "composer.statistics.sequential",
        "MeanDifference": "composer.statistics.groups",
        "Prospect": "composer.statistics.power",
        "Ratio": "composer.statistics.paired",
        "SequentialTest": "composer.statistics.sequential",
        "SignFlipTest": "composer.statistics.sign_flip",
        "compare": "composer.statistics.comparison",
        "decide": "composer.statistics.holm",
        "first_crossing": "composer.statistics.crossing",
        "holm_adjusted": "composer.statistics.holm",
        "log_ratios": "composer.statistics.comparison",
        "mean_difference": "composer.statistics.groups",
        "mean_interval": "composer.statistics.bootstrap",
        "pair_spread": "composer.statistics.power",
        "paired_ratio": "composer.statistics.paired",
        "pairs_needed": "composer.statistics.power",
        "power_of": "composer.statistics.power",
        "prospect": "composer.statistics.power",
        "sign_flip_test": "composer.statistics.sign_flip",
        "smallest_gain": "composer.statistics.power",
    },
)
