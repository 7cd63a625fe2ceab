"""What algorithms change in the model during set-up: layers replaced, added or removed, parameters cast or frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer._text import dtype_name
from composer.core.parameter_size import format_count, num_elements

__all__ = ["ModelOutline", "base_class", "describe_changes"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A module, and the attributes that can change while it stays the same object."""

    module: nn.Module
    cls: type[nn.Module]
    forward: Any
    num_hooks: int


@dataclass(frozen=True, slots=True)
class _Weight:
    number: int
    trainable: bool
    dtype: torch.dtype
    is_channels_last: bool


class ModelOutline:
    """The modules and parameters of a model at one point in time, by name.

    Args:
        model: The model.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> before = ModelOutline(model)
    >>> model[1] = nn.GELU()
    >>> describe_changes(before, ModelOutline(model))
    'replaced 1 ReLU by GELU'
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = {
            name: _Layer(module, type(module), vars(module).get("forward"), _num_hooks(module))
            for name, module in model.named_modules()
        }
        self.weights = {name: _weight_of(parameter) for name, parameter in model.named_parameters()}


def describe_changes(before: ModelOutline, after: ModelOutline) -> str:
    """Return a short description of the changes of a model; empty if it did not change.

    Args:
        before: The model before.
        after: The model after.

    >>> outline = ModelOutline(nn.ReLU())
    >>> describe_changes(outline, outline)
    ''
    """
    changed = {name for name in before.layers.keys() & after.layers.keys() if _differs(before, after, name)}
    found: list[str] = []
    # A class may also be replaced in place, as torch does for parametrized modules.
    for verb, link, same in (("replaced", "by", False), ("turned", "into", True)):
        names = [name for name in _outermost(changed, ()) if _is_same(before, after, name) is same]
        pairs = Counter((_name(before, name), _name(after, name)) for name in names)
        texts = [
            f"{number} {old} {link} {new}" if old != new else f"{number} {old}" for (old, new), number in pairs.items()
        ]
        found += [f"{verb} {', '.join(texts)}"] if texts else []
    for verb, there, other in (("removed", before, after), ("added", after, before)):
        names = _outermost(there.layers.keys() - other.layers.keys(), changed)
        found += _count_changes(verb, Counter(_name(there, name) for name in names))
    kept = [(name, before.layers[name], after.layers[name]) for name in before.layers if name in after.layers]
    kept = [(name, old, new) for name, old, new in kept if name not in changed and old.module is new.module]
    forward = Counter(_name(after, name) for name, old, new in kept if old.forward is not new.forward)
    found += _count_changes("changed the forward of", forward)
    found += _count_changes(
        "put hooks on", Counter(_name(after, name) for name, old, new in kept if new.num_hooks > old.num_hooks)
    )
    return ", ".join([*found, *_weight_changes(before, after)])


def base_class(module: nn.Module) -> type[nn.Module]:
    """Return the original class of a module, below the class that FSDP puts in its place.

    Args:
        module: The module.

    >>> base_class(nn.ReLU()).__name__
    'ReLU'
    """
    return _below_fsdp(type(module))


def _below_fsdp(cls: type[nn.Module]) -> type[nn.Module]:
    if cls.__bases__ and cls.__bases__[0].__name__ == "FSDPModule" and len(cls.__bases__) > 1:
        return cls.__bases__[1]
    return cls


def _name(outline: ModelOutline, name: str) -> str:
    return _below_fsdp(outline.layers[name].cls).__name__


def _differs(before: ModelOutline, after: ModelOutline, name: str) -> bool:
    return not _is_same(before, after, name) or before.layers[name].cls is not after.layers[name].cls


def _is_same(before: ModelOutline, after: ModelOutline, name: str) -> bool:
    return before.layers[name].module is after.layers[name].module


def _outermost(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the names that are not inside another one, sorted."""
    names = set(names)
    covering = names | set(others)

    def is_inside(name: str) -> bool:
        parts = name.split(".") if name else []
        return any(".".join(parts[:end]) in covering for end in range(len(parts)))

    return sorted(name for name in names if not is_inside(name))


def _count_changes(verb: str, numbers: Counter[str]) -> list[str]:
    return [f"{verb} {', '.join(f'{number} {cls}' for cls, number in numbers.items())}"] if numbers else []


def _weight_changes(before: ModelOutline, after: ModelOutline) -> list[str]:
    """Return the change of the number of parameters, and the changes of those that still exist."""
    kept = [(old, after.weights[name]) for name, old in before.weights.items() if name in after.weights]
    found: list[str] = []
    casts = Counter({dtype: 0 for _, dtype in ((old, new.dtype) for old, new in kept if old.dtype != new.dtype)})
    for old, new in kept:
        casts[new.dtype] += new.number if old.dtype != new.dtype else 0
    found += [
        f"cast {format_count(number)} parameters to {dtype_name(dtype)}" for dtype, number in casts.items() if number
    ]
    formatted = sum(new.is_channels_last and not old.is_channels_last for old, new in kept)
    found += [f"stored {formatted} weight{'s' * (formatted != 1)} as channels_last"] if formatted else []
    for verb, trainable in (("froze", False), ("unfroze", True)):
        number = sum(new.number for old, new in kept if old.trainable is not trainable and new.trainable is trainable)
        found += [f"{verb} {format_count(number)} parameters"] if number else []
    more = sum(weight.number for weight in after.weights.values()) - sum(w.number for w in before.weights.values())
    return [*found, f"{'+' if more > 0 else '-'}{format_count(abs(more))} parameters"] if more else found


def _weight_of(parameter: Tensor) -> _Weight:
    number = num_elements(parameter) or 0
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    # With one channel or one pixel, both formats apply.
    is_channels_last = (
        type(parameter) is nn.Parameter
        and parameter.ndim in formats
        and not parameter.is_contiguous()
        and parameter.is_contiguous(memory_format=formats[parameter.ndim])
    )
    return _Weight(number, parameter.requires_grad, parameter.dtype, is_channels_last)


def _num_hooks(module: nn.Module) -> int:
    return len(module._forward_hooks) + len(module._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]
