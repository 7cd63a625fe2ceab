"""Classes of what builders return."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from composer.models.classifier import ComposerClassifier

__all__ = ["built_by"]


# Any, since type checkers compare what is assigned to __init__ with that of the base, as they don't for a definition.
def built_by(builder: Callable[..., ComposerClassifier]) -> Any:
    """Return the ``__init__`` of a class whose instances are what a builder returns, with the builder's arguments.

    Args:
        builder: The builder.

    >>> import torch
    >>> def build(width: int = 4) -> ComposerClassifier:
    ...     return ComposerClassifier(torch.nn.Linear(width, 3), num_classes=3)
    >>> class Built(ComposerClassifier):
    ...     __init__ = built_by(build)
    >>> inspect.signature(Built)
    <Signature (width: 'int' = 4) -> 'None'>
    >>> Built(width=5).module
    Linear(in_features=5, out_features=3, bias=True)
    """

    @functools.wraps(builder, assigned=("__doc__", "__annotations__"))
    def __init__(self: ComposerClassifier, *args: Any, **kwargs: Any) -> None:  # noqa: N807 -- it becomes one
        built = builder(*args, **kwargs)
        ComposerClassifier.__init__(
            self, built.module, built.num_classes, built.train_metrics, built.val_metrics, built._loss_fn
        )

    of_builder = inspect.signature(builder)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [itself, *of_builder.parameters.values()]
    __init__.__signature__ = of_builder.replace(parameters=parameters, return_annotation="None")  # type: ignore[attr-defined]
    return __init__
