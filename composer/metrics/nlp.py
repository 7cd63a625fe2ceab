"""Metrics of language models, under the name that scripts import; see :mod:`composer.metrics.language`."""

from __future__ import annotations

from composer.metrics.language import BinaryF1Score, LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy

__all__ = ["BinaryF1Score", "LanguageCrossEntropy", "LanguagePerplexity", "MaskedAccuracy"]
