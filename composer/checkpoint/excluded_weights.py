"""Weights that are left out on purpose: when a checkpoint is saved, or when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from composer.checkpoint.filters import IgnoreKeys, drop

__all__ = ["RECORD", "LeftOut", "leave_out", "record_left_out"]

RECORD = "left_out"
"""The key of a checkpoint with the shapes of the weights that were left out when it was saved."""


@dataclass(frozen=True)
class LeftOut:
    """Weights that are not loaded, by name.

    Attributes:
        when_saved: Shapes of those that were left out when the checkpoint was saved.
        when_loaded: Shapes of those that are left out now.
        is_all: Whether no weights remain.

    >>> LeftOut({}, {"weight": (2, 1)}, is_all=False).names
    {'weight'}
    """

    when_saved: Mapping[str, tuple[int, ...]]
    when_loaded: Mapping[str, tuple[int, ...]]
    is_all: bool

    @property
    def names(self) -> set[str]:
        """All of them."""
        return {*self.when_saved, *self.when_loaded}

    def without_state(self, model: nn.Module) -> set[str]:
        """Return the parameters whose optimizer state is left out with them.

        A state of another shape than the parameter cannot be used. If some weights are left out of a checkpoint, these
        start anew, so their state is left out too. If all of them are, they come from elsewhere, and the state is kept.

        Args:
            model: The model to load into.

        >>> LeftOut({}, {"weight": (1, 1)}, is_all=False).without_state(nn.Linear(1, 1))
        {'weight'}
        >>> LeftOut({}, {"weight": (1, 1)}, is_all=True).without_state(nn.Linear(1, 1))
        set()
        """
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)}
        absent = {**self.when_saved, **self.when_loaded}
        found = {name for name, shape in absent.items() if shapes.get(name) != shape}
        return found if self.is_all else {*found, *self.when_loaded}


def record_left_out(content: dict[str, Any], ignore: IgnoreKeys) -> None:
    """Leave out parts of a checkpoint that is about to be saved, and record the weights among them, in place.

    Without the record, a checkpoint without some weights could not be told from one of another model.

    Args:
        content: The checkpoint.
        ignore: What to leave out, see :func:`.drop`.

    >>> content = {"state": {"model": {"weight": torch.ones(2, 1), "bias": torch.ones(2)}}}
    >>> record_left_out(content, ["state/model/weight"])
    >>> content
    {'state': {'model': {'bias': tensor([1., 1.])}}, 'left_out': {'weight': [2, 1]}}
    """
    if ignore is None:
        return
    before = _shapes(content)
    drop(content, ignore)
    after = _weights(content)
    if found := {name: list(shape) for name, shape in before.items() if name not in after}:
        content[RECORD] = found


def leave_out(content: dict[str, Any], ignore: IgnoreKeys) -> LeftOut:
    """Leave out parts of a checkpoint that is about to be loaded, in place, and return the weights that it then lacks.

    Args:
        content: The checkpoint.
        ignore: What to leave out, see :func:`.drop`.

    >>> content = {"state": {"model": {"bias": torch.ones(2)}}, "left_out": {"weight": [2, 1]}}
    >>> leave_out(content, ["state/model/bias"])
    LeftOut(when_saved={'weight': (2, 1)}, when_loaded={'bias': (2,)}, is_all=True)
    """
    recorded = {name: tuple(shape) for name, shape in content.pop(RECORD, {}).items()}
    before = {} if ignore is None else _shapes(content)
    drop(content, ignore)
    after = _weights(content)
    return LeftOut(recorded, {name: shape for name, shape in before.items() if name not in after}, not after)


def _weights(content: dict[str, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", content.get("state", {}).get("model", {}))


def _shapes(content: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(value, "shape", ())) for name, value in _weights(content).items()}
