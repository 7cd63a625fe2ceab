"""Weights that ignore keys exclude from a checkpoint, on save or on load, so that they may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from composer.checkpoint.filters import IgnoreKeys, drop

__all__ = ["EXCLUDED_KEY", "ExcludedWeights", "exclude", "exclude_and_record"]

EXCLUDED_KEY = "left_out"
"""The key of a checkpoint with the shapes of the weights that were excluded when it was saved."""


@dataclass(frozen=True)
class ExcludedWeights:
    """Weights that are not loaded, by name.

    Attributes:
        when_saved: Shapes of the weights that were excluded when the checkpoint was saved.
        when_loaded: Shapes of the weights that are excluded now.
        is_all: Whether no weights remain.

    >>> ExcludedWeights({}, {"weight": (2, 1)}, is_all=False).names
    {'weight'}
    """

    when_saved: Mapping[str, tuple[int, ...]]
    when_loaded: Mapping[str, tuple[int, ...]]
    is_all: bool

    @property
    def names(self) -> set[str]:
        """The names of all excluded weights."""
        return {*self.when_saved, *self.when_loaded}

    def without_state(self, model: nn.Module) -> set[str]:
        """Return the parameters whose optimizer state is excluded with them.

        State of another shape than the parameter cannot be used. If some weights are excluded, they start from
        scratch, so their state is excluded too. If all are, they come from another source, and the state is kept.

        Args:
            model: The model to load into.

        >>> ExcludedWeights({}, {"weight": (1, 1)}, is_all=False).without_state(nn.Linear(1, 1))
        {'weight'}
        >>> ExcludedWeights({}, {"weight": (1, 1)}, is_all=True).without_state(nn.Linear(1, 1))
        set()
        """
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)}
        absent = {**self.when_saved, **self.when_loaded}
        found = {name for name, shape in absent.items() if shapes.get(name) != shape}
        return found if self.is_all else {*found, *self.when_loaded}


def exclude_and_record(content: dict[str, Any], ignore: IgnoreKeys) -> None:
    """Exclude entries of a checkpoint before it is saved, and record the excluded weights, in place.

    Without the record, a checkpoint without some weights would look like one of another model.

    Args:
        content: The checkpoint.
        ignore: What to leave out, see :func:`.drop`.

    >>> content = {"state": {"model": {"weight": torch.ones(2, 1), "bias": torch.ones(2)}}}
    >>> exclude_and_record(content, ["state/model/weight"])
    >>> content
    {'state': {'model': {'bias': tensor([1., 1.])}}, 'left_out': {'weight': [2, 1]}}
    """
    if ignore is None:
        return
    before = _shapes(content)
    drop(content, ignore)
    after = _weights(content)
    if found := {name: list(shape) for name, shape in before.items() if name not in after}:
        content[EXCLUDED_KEY] = found


def exclude(content: dict[str, Any], ignore: IgnoreKeys) -> ExcludedWeights:
    """Exclude entries of a checkpoint before it is loaded, in place, and return the weights that it then lacks.

    Args:
        content: The checkpoint.
        ignore: What to leave out, see :func:`.drop`.

    >>> content = {"state": {"model": {"bias": torch.ones(2)}}, "left_out": {"weight": [2, 1]}}
    >>> exclude(content, ["state/model/bias"])
    ExcludedWeights(when_saved={'weight': (2, 1)}, when_loaded={'bias': (2,)}, is_all=True)
    """
    recorded = {name: tuple(shape) for name, shape in content.pop(EXCLUDED_KEY, {}).items()}
    before = {} if ignore is None else _shapes(content)
    drop(content, ignore)
    after = _weights(content)
    return ExcludedWeights(recorded, {name: shape for name, shape in before.items() if name not in after}, not after)


def _weights(content: dict[str, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", content.get("state", {}).get("model", {}))


def _shapes(content: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(value, "shape", ())) for name, value in _weights(content).items()}
