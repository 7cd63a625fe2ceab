"""Which optimizers take a closure that evaluates loss and gradients within their step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, Literal, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from composer._class_cache import cached_by_class

__all__ = ["may_use_closure", "needs_closure", "step_with_closure", "takes_closure"]

Place: TypeAlias = Literal["name", "first"]

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@cached_by_class
def needs_closure(cls: type[Optimizer]) -> bool:
    """Return whether optimizers of a class require a closure, as LBFGS does.

    Args:
        cls: The optimizer class.

    >>> import torch
    >>> needs_closure(torch.optim.LBFGS), needs_closure(torch.optim.SGD)
    (True, False)
    """
    return any(one.default is one.empty and (one.name == "closure" or one.kind in _BY_POSITION) for one in _own(cls))


@cached_by_class
def may_use_closure(cls: type[Optimizer]) -> bool:
    """Return whether optimizers of a class may call a closure more than once: LBFGS, and third-party classes.

    Args:
        cls: The optimizer class.

    >>> import torch
    >>> may_use_closure(torch.optim.Adam)
    False
    """
    # Some classes of torch name the package itself as their module.
    is_known = f"{cls.__module__}.".startswith(("torch.optim.", "composer.optim."))
    return needs_closure(cls) or (not is_known and _place_of_class(cls) is not None)


def takes_closure(optimizer: Optimizer) -> bool:
    """Return whether the step of an optimizer takes a closure; that of its class may have been replaced.

    Args:
        optimizer: The optimizer.

    >>> import torch
    >>> takes_closure(torch.optim.SGD([torch.ones(1)], lr=0.1))
    True
    """
    return _place_of(optimizer) is not None


def step_with_closure(optimizer: Optimizer, closure: Callable[[], Tensor]) -> Any:
    """Call the step of an optimizer with a closure: by its name ``closure``, or else as the argument that it requires.

    Args:
        optimizer: The optimizer, for which :func:`takes_closure` is true.
        closure: The closure.

    >>> import torch
    >>> class Noisy(torch.optim.SGD):
    ...     def step(self, scale=1.0, *, closure=None):
    ...         return scale * super().step(closure)
    >>> step_with_closure(Noisy([torch.nn.Parameter(torch.ones(1))], lr=0.1), lambda: torch.tensor(2.0))
    tensor(2.)
    """
    step: Any = optimizer.step
    return step(closure=closure) if _place_of(optimizer) == "name" else step(closure)


def _place_of(optimizer: Optimizer) -> Place | None:
    """Return how a closure is passed to the step of an optimizer."""
    replaced = optimizer.__dict__.get("step")
    # A schedule of torch replaces a step by a function that has the signature of the former one, self included.
    if replaced is None or getattr(replaced, "__wrapped__", None) is type(optimizer).step:
        return _place_of_class(type(optimizer))
    try:
        parameters = list(inspect.signature(replaced).parameters.values())
    except (TypeError, ValueError):  # some callables tell nothing
        return "first"
    return _place(parameters[1:] if hasattr(replaced, "_wrapped_by_lr_sched") else parameters)


@cached_by_class
def _place_of_class(cls: type[Optimizer]) -> Place | None:
    """Return how a closure is passed to the step of a class."""
    return _place(_own(cls))


def _own(cls: type[Optimizer]) -> list[Parameter]:
    """Return the parameters of the step of a class, without self."""
    return list(inspect.signature(cls.step).parameters.values())[1:]


def _place(parameters: Sequence[Parameter]) -> Place | None:
    """Return how a closure is passed to a function with some parameters; None if it takes none."""
    named = next((one for one in parameters if one.name == "closure"), None)
    if named is not None:
        return "first" if named.kind is Parameter.POSITIONAL_ONLY else "name"
    if any(one.default is one.empty and one.kind in _BY_POSITION for one in parameters):
        return "first"
    kinds = {one.kind for one in parameters}
    if Parameter.VAR_KEYWORD in kinds:
        return "name"
    return "first" if Parameter.VAR_POSITIONAL in kinds else None
