"""States of several objects in a checkpoint: a mapping by class name, with a number for each repeated name."""

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
    """Return the name under which the state of an object is saved: its class, and ``"LambdaLR"`` for our schedules.

    Args:
        one: The object.

    >>> name_of(torch.optim.SGD([torch.zeros(1)]))
    'SGD'
    """
    return "LambdaLR" if isinstance(one, CompiledSchedule) else type(one).__qualname__


def by_name(states: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return states by the class names of their objects; the second of a name is ``"Name#2"``, and so on.

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
        saved: Such a mapping, or pairs of class name and state, as earlier checkpoints and those of algorithms have it.

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


def load_each(kind: str, present: Sequence[Any], saved: Mapping[str, Any], *, warn: bool = True) -> None:
    """Load into each object the state that was saved of the object of its class, the second of the second and so on.

    Args:
        kind: What the objects are called.
        present: The objects.
        saved: Their states, as :func:`by_name` returns them.
        warn: Whether to warn of a state that no object takes.

    >>> scheduler = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)]))
    >>> load_each("schedulers", [scheduler], {"ConstantLR": {"last_epoch": 3}})
    >>> scheduler.last_epoch
    3
    """
    left, entries = dict(enumerate(present)), dict(saved)
    # First those that know their state, whatever the order in which they are given now.
    for known in (True, False):
        for name, value in list(entries.items()):
            class_name, number = _split(name)
            places = _places(present, class_name, value)
            found = [at for at in places if at in left and (not known or _is_own(left[at], value))]
            if not known and number <= len(places) and places[number - 1] in found:
                found = [places[number - 1]]  # though the state of the first of its class was left out
            if found:
                left.pop(found[0]).load_state_dict(value)
                del entries[name]
    for name in entries if warn else ():
        message = f"The checkpoint has the state of {name}, which is not among the {kind}; it is left out."
        warnings.warn(message, ComposerWarning, stacklevel=2)


def _places(present: Sequence[Any], class_name: str, value: Any) -> list[int]:
    """Where the objects are whose state this may be."""
    of_class = [at for at, one in enumerate(present) if type(one).__qualname__ == class_name]
    ours = [at for at, one in enumerate(present) if name_of(one) == class_name and at not in of_class]
    # Schedules of ours say what they change. States that do not are of LambdaLR itself, or of MosaicML Composer.
    is_ours = isinstance(value, dict) and "hyperparameter" in value
    return (ours or of_class) if is_ours else (of_class or ours)


def _split(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (name, 1) if found is None else (found[1], int(found[2]))


def _is_own(one: Any, value: Any) -> bool:
    tells = isinstance(one, (Serializable, CompiledSchedule))
    return tells and isinstance(value, dict) and one.__is_own_state__(cast("dict[str, Any]", value))
