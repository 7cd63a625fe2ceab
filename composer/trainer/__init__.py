"""The trainer."""

from __future__ import annotations

from composer.trainer.trainer import Trainer

__all__ = ["Trainer"]
