"""Replacing modules, under the name that scripts import; see :mod:`composer.surgery`."""

from __future__ import annotations

from composer.surgery import (
    ReplacementFunction,
    count_module_instances,
    replace_module_classes,
    update_params_in_optimizer,
)

__all__ = [
    "ReplacementFunction",
    "count_module_instances",
    "replace_module_classes",
    "update_params_in_optimizer",
]
