"""Old home of the optimizers with decoupled weight decay."""

from __future__ import annotations

from composer.optim.decoupled_adam import DecoupledAdamW
from composer.optim.decoupled_sgd import DecoupledSGDW

__all__ = ["DecoupledAdamW", "DecoupledSGDW"]
