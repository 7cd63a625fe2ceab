"""Metrics, built on torchmetrics, which is imported when the first of them is used."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CrossEntropy": "composer.metrics.classification",
        "MicroAccuracy": "composer.metrics.classification",
    },
)
