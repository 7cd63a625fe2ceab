"""Old home of the models of one task each."""

from __future__ import annotations

from composer.models.classifier import ComposerClassifier

__all__ = ["ComposerClassifier"]
