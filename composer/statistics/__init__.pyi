"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.statistics.bootstrap import Estimate, mean_interval
from composer.statistics.comparison import Comparison, compare, log_ratios
from composer.statistics.crossing import Crossing, first_crossing
from composer.statistics.groups import MeanDifference, mean_difference
from composer.statistics.holm import Decision, decide, holm_adjusted
from composer.statistics.paired import Ratio, paired_ratio
from composer.statistics.power import Prospect, pair_spread, pairs_needed, power_of, prospect, smallest_gain
from composer.statistics.sequential import Look, LookAction, SequentialTest
from composer.statistics.sign_flip import SignFlipTest, sign_flip_test

__all__ = [
    "Comparison",
    "Crossing",
    "Decision",
    "Estimate",
    "Look",
    "LookAction",
    "MeanDifference",
    "Prospect",
    "Ratio",
    "SequentialTest",
    "SignFlipTest",
    "compare",
    "decide",
    "first_crossing",
    "holm_adjusted",
    "log_ratios",
    "mean_difference",
    "mean_interval",
    "pair_spread",
    "paired_ratio",
    "pairs_needed",
    "power_of",
    "prospect",
    "sign_flip_test",
    "smallest_gain",
]
