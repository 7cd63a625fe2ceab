"""Metrics based on torchmetrics, which is imported when the first metric is used."""

from __future__ import annotations

from composer._lazy import attach
from composer.dist.ranks import check_environment

check_environment()  # because importing torchmetrics reads LOCAL_RANK

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BinaryF1Score": "composer.metrics.language",
        "CrossEntropy": "composer.metrics.classification",
        "Dice": "composer.metrics.segmentation",
        "LanguageCrossEntropy": "composer.metrics.language",
        "LanguagePerplexity": "composer.metrics.language",
        "LossMetric": "composer.metrics.loss_metric",
        "MAP": "composer.metrics.map",
        "MIoU": "composer.metrics.segmentation",
        "MaskedAccuracy": "composer.metrics.language",
        "MicroAccuracy": "composer.metrics.classification",
    },
)
