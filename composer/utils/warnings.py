"""Warnings, under the name that scripts import; see :mod:`composer.warnings`."""

from __future__ import annotations

from composer.warnings import VersionedDeprecationWarning

__all__ = ["VersionedDeprecationWarning"]
