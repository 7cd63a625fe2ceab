"""The report of the environment, under the name that scripts import; see :mod:`composer.environment`."""

from __future__ import annotations

from composer.environment import (
    configure_excepthook,
    disable_env_report,
    enable_env_report,
    get_composer_env_dict,
    print_env,
)

__all__ = [
    "configure_excepthook",
    "disable_env_report",
    "enable_env_report",
    "get_composer_env_dict",
    "print_env",
]
