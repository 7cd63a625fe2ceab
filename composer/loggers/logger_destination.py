"""The base class of all destinations, under the name that scripts import it by."""

from __future__ import annotations

from composer.core.logger import LoggerDestination

__all__ = ["LoggerDestination"]
