"""Turn a model builder function, such as ``composer_resnet``, into the ``__init__`` of a class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from composer.models.classifier import ComposerClassifier

__all__ = ["init_from_builder"]


# Any, since type checkers compare an assigned __init__ with that of the base class, unlike a defined one.
def init_from_builder(builder: Callable[..., ComposerClassifier]) -> Any:
    """Return an ``__init__`` with the signature of a builder, which makes the instance equal to the builder's result.

    Args:
        builder: The function that builds the model.

    >>> import torch
    >>> def build(width: int = 4) -> ComposerClassifier:
    ...     return ComposerClassifier(torch.nn.Linear(width, 3), num_classes=3)
    >>> class Built(ComposerClassifier):
    ...     __init__ = init_from_builder(build)
    >>> inspect.signature(Built)
    <Signature (width: 'int' = 4) -> 'None'>
    >>> Built(width=5).module
    Linear(in_features=5, out_features=3, bias=True)
    """

    @functools.wraps(builder, assigned=("__doc__", "__annotations__"))
    def __init__(self: ComposerClassifier, *args: Any, **kwargs: Any) -> None:  # noqa: N807 -- used as a method
        built = builder(*args, **kwargs)
        ComposerClassifier.__init__(
            self, built.module, built.num_classes, built.train_metrics, built.val_metrics, built._loss_fn
        )

    signature = inspect.signature(builder)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [self_parameter, *signature.parameters.values()]
    __init__.__signature__ = signature.replace(parameters=parameters, return_annotation="None")  # type: ignore[attr-defined]
    return __init__
