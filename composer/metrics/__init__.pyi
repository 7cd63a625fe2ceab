"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.metrics.classification import CrossEntropy, MicroAccuracy
from composer.metrics.language import BinaryF1Score, LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy
from composer.metrics.loss_metric import LossMetric
from composer.metrics.map import MAP
from composer.metrics.segmentation import Dice, MIoU

__all__ = [
    "MAP",
    "BinaryF1Score",
    "CrossEntropy",
    "Dice",
    "LanguageCrossEntropy",
    "LanguagePerplexity",
    "LossMetric",
    "MIoU",
    "MaskedAccuracy",
    "MicroAccuracy",
]
