"""Old home of the EfficientNets."""

from __future__ import annotations

from composer.models.efficientnet import EfficientNetB0, composer_efficientnetb0

__all__ = ["EfficientNetB0", "composer_efficientnetb0"]
