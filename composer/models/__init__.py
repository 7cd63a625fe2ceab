"""Models ready to be trained."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ComposerClassifier": "composer.models.classifier",
        "ComposerModel": "composer.core.model",
    },
)
