"""Old home of the EfficientNets."""

from __future__ import annotations

from composer.models.efficientnet import composer_efficientnetb0

__all__ = ["composer_efficientnetb0"]
