"""The :class:`Logger` of a run, under the name that scripts import it by."""

from __future__ import annotations

from composer.core.logger import Logger
from composer.loggers._format import format_log_data_value

__all__ = ["Logger", "format_log_data_value"]
