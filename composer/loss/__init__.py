"""Losses."""

from __future__ import annotations

from composer.loss.loss import binary_cross_entropy_with_logits, loss_registry, soft_cross_entropy

__all__ = ["binary_cross_entropy_with_logits", "loss_registry", "soft_cross_entropy"]
