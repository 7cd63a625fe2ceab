"""Small helpers, under the name that scripts import."""

from __future__ import annotations

from composer.core.interval import (
    create_interval_scheduler,
)
from composer.trees import (
    ensure_tuple,
)

__all__ = [
    "create_interval_scheduler",
    "ensure_tuple",
]
