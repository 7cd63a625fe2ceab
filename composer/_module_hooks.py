"""Hooks of a module's forward and backward pass: torch has no public way to list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["module_hooks"]

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def module_hooks(module: nn.Module) -> list[list[Callable[..., Any]]]:
    """Return the hooks of a module, for each kind: before and after its forward pass, and its backward pass.

    Args:
        module: The module; those of its children are left out.

    >>> layer = nn.Linear(1, 1)
    >>> handle = layer.register_forward_hook(print)
    >>> module_hooks(layer)
    [[], [<built-in function print>], [], []]
    """
    return [list(getattr(module, kind).values()) for kind in _KINDS]
