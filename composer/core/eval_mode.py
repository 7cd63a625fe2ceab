"""Context manager that puts a model into eval mode and restores the mode of each module."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from torch import nn

__all__ = ["model_eval_mode"]


@contextlib.contextmanager
def model_eval_mode(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode, and restore the mode of each module on exit.

    Args:
        model: The model.

    >>> model = torch.nn.Dropout()
    >>> with model_eval_mode(model):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
