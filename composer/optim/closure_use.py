"""Which optimizers take a closure that evaluates loss and gradients within their step."""

from __future__ import annotations

import inspect

from torch.optim import Optimizer

from composer._class_cache import cached_by_class

__all__ = ["may_use_closure", "needs_closure"]


@cached_by_class
def needs_closure(cls: type[Optimizer]) -> bool:
    """Return whether optimizers of a class require a closure, as LBFGS does.

    Args:
        cls: The optimizer class.

    >>> import torch
    >>> needs_closure(torch.optim.LBFGS), needs_closure(torch.optim.SGD)
    (True, False)
    """
    parameter = inspect.signature(cls.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


@cached_by_class
def may_use_closure(cls: type[Optimizer]) -> bool:
    """Return whether optimizers of a class may call a closure more than once: LBFGS, and third-party classes.

    Args:
        cls: The optimizer class.

    >>> import torch
    >>> may_use_closure(torch.optim.Adam)
    False
    """
    takes_argument = len(inspect.signature(cls.step).parameters) > 1  # in addition to self
    # Some classes of torch name the package itself as their module.
    is_known = f"{cls.__module__}.".startswith(("torch.optim.", "composer.optim."))
    return needs_closure(cls) or (takes_argument and not is_known)
