"""Old home of the base class of models."""

from __future__ import annotations

from composer.core.model import ComposerModel

__all__ = ["ComposerModel"]
