"""Devices, under the name that scripts import; see :mod:`composer.devices`."""

from __future__ import annotations

from composer.devices import get_device
from composer.environment import is_hpu_installed, is_xla_installed

__all__ = ["get_device", "is_hpu_installed", "is_xla_installed"]
