"""Save and load the states of multiple objects (optimizers, callbacks, ...) by class name, repeated names numbered."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from composer.core.serializable import Serializable
from composer.optim.compiled_schedule import CompiledSchedule
from composer.warnings import ComposerWarning

__all__ = ["as_named", "by_name", "class_of", "load_each", "name_of"]

_NUMBERED = re.compile(r"(.*)#([1-9]\d*)", re.DOTALL)


def name_of(one: Any) -> str:
    """Return the name under which the state of an object is saved: its class, or ``"LambdaLR"`` for our schedules.

    Args:
        one: The object.

    >>> name_of(torch.optim.SGD([torch.zeros(1)]))
    'SGD'
    """
    return "LambdaLR" if isinstance(one, CompiledSchedule) else type(one).__qualname__


def by_name(states: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return states by class name; the second state of a class is ``"Name#2"``, and so on.

    Args:
        states: Pairs of class name and state, in the order of the objects.

    >>> by_name([("SGD", {"a": 1}), ("Adam", {}), ("SGD", {"a": 2})])
    {'SGD': {'a': 1}, 'Adam': {}, 'SGD#2': {'a': 2}}
    """
    counts: dict[str, int] = {}
    found: dict[str, Any] = {}
    for name, state in states:
        counts[name] = number = counts.get(name, 0) + 1
        found[name if number == 1 else f"{name}#{number}"] = state
    return found


def as_named(saved: Any) -> dict[str, Any]:
    """Return saved states as :func:`by_name` does.

    Args:
        saved: Such a mapping, or pairs of class name and state, as in earlier checkpoints and for algorithms.

    >>> as_named([("SGD", {})]), as_named({"SGD": {}})
    ({'SGD': {}}, {'SGD': {}})
    """
    return cast("dict[str, Any]", saved) if isinstance(saved, dict) else by_name(cast("list[tuple[str, Any]]", saved))


def class_of(name: str) -> str:
    """Return the class name in a key of :func:`by_name`.

    Args:
        name: The key.

    >>> class_of("SGD#2"), class_of("SGD")
    ('SGD', 'SGD')
    """
    return _split(name)[0]


def load_each(label: str, present: Sequence[Any], saved: Mapping[str, Any], *, warn: bool = True) -> None:
    """Load the saved state of each class into the object of that class, in order if there are multiple.

    Args:
        label: What the objects are, for messages.
        present: The objects.
        saved: Their states, as :func:`by_name` returns them.
        warn: Whether to warn about a state without an object.

    >>> scheduler = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)]))
    >>> load_each("schedulers", [scheduler], {"ConstantLR": {"last_epoch": 3}})
    >>> scheduler.last_epoch
    3
    """
    left, entries = dict(enumerate(present)), dict(saved)
    # First the objects that recognize their state, in any order.
    for known in (True, False):
        for name, value in list(entries.items()):
            class_name, number = _split(name)
            candidates = _candidates(present, class_name, value)
            found = [at for at in candidates if at in left and (not known or _matches(left[at], value))]
            if not known and number <= len(candidates) and candidates[number - 1] in found:
                found = [candidates[number - 1]]  # even if the state of the first of its class was excluded
            if found:
                left.pop(found[0]).load_state_dict(value)
                del entries[name]
    for name in entries if warn else ():
        message = f"The checkpoint has the state of {name}, which is not among the {label}; it is ignored."
        warnings.warn(message, ComposerWarning, stacklevel=2)


def _candidates(present: Sequence[Any], class_name: str, value: Any) -> list[int]:
    """Return the indices of the objects that the state may belong to."""
    of_class = [at for at, one in enumerate(present) if type(one).__qualname__ == class_name]
    ours = [at for at, one in enumerate(present) if name_of(one) == class_name and at not in of_class]
    # Our schedules record their hyperparameter. Other states are of LambdaLR itself, or of MosaicML Composer.
    is_ours = isinstance(value, dict) and "hyperparameter" in value
    return (ours or of_class) if is_ours else (of_class or ours)


def _split(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (name, 1) if found is None else (found[1], int(found[2]))


def _matches(one: Any, value: Any) -> bool:
    can_match = isinstance(one, (Serializable, CompiledSchedule))
    return can_match and isinstance(value, dict) and one.__is_own_state__(cast("dict[str, Any]", value))
