"""Destinations of what is logged: the terminal, memory, files and experiment trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer._lazy import attach

if TYPE_CHECKING:
    from composer.core.logger import Logger as Logger
    from composer.core.logger import LoggerDestination as LoggerDestination
    from composer.loggers.console_logger import ConsoleLogger as ConsoleLogger
    from composer.loggers.in_memory_logger import InMemoryLogger as InMemoryLogger
    from composer.loggers.progress_bar_logger import ProgressBarLogger as ProgressBarLogger

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ConsoleLogger": "composer.loggers.console_logger",
        "InMemoryLogger": "composer.loggers.in_memory_logger",
        "Logger": "composer.core.logger",
        "LoggerDestination": "composer.core.logger",
        "ProgressBarLogger": "composer.loggers.progress_bar_logger",
    },
)
