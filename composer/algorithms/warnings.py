"""Old home of the warnings that methods give."""

from __future__ import annotations

from composer.warnings import NoEffectWarning, NotIntendedUseWarning

__all__ = ["NoEffectWarning", "NotIntendedUseWarning"]
