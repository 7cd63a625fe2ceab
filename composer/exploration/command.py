"""The command that repeats an exploration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from composer._secrets.masking import mask_values
from composer.exploration.variant import Variant
from composer.trials import Target

__all__ = ["OPTIONS", "command_of", "default_folder"]

# Options of the command that are repeated for each value, by the arguments.
OPTIONS = {"extra": "try", "confirm": "confirm", "changes": "set"}


def command_of(target: Target, given: Mapping[str, Any]) -> str:
    """Return the command that repeats an exploration, or the call for a function, with secrets masked.

    Args:
        target: The program.
        given: The arguments of :func:`.explore` by name; None for those with their default.

    >>> command_of(Target("script", "train.py"), {"target": "Accuracy>=0.9", "methods": ["EMA", "SAM"]})
    "composer explore '--target=Accuracy>=0.9' --methods=EMA,SAM train.py"
    >>> command_of(Target("function", "recipes:digits"), {"target": "Accuracy>=0.9", "pairs": None})
    "composer.explore(recipes:digits, target='Accuracy>=0.9')"

    The command line cannot write a variant with a name of its own:

    >>> found = [Variant("fast", ("algorithms+=EMA()", "max_duration=5ep"))]
    >>> print(command_of(Target("script", "train.py"), {"target": "Accuracy>=0.9", "extra": found}))
    composer.explore(['train.py'], target='Accuracy>=0.9', extra=[Variant(name='fast', changes=('algorithms+=EMA()', ...
    """
    told = {name: mask_values(_listed(value)) for name, value in given.items() if value is not None}
    is_program = target.kind in ("script", "module")
    # An option cannot write a variant, which has a name of its own and may have several changes.
    if not is_program or any(isinstance(one, Variant) for one in given.get("extra") or ()):
        listed = ", ".join(f"{name}={_written(value)}" for name, value in told.items())
        return f"composer.explore({shlex.split(target.command) if is_program else target.command}, {listed})"
    words: list[str] = []
    for name, value in told.items():
        option = OPTIONS.get(name, name.replace("_", "-"))
        if name in OPTIONS:
            words += [f"--{option}={one}" for one in value]
        else:
            plain = _plain(value)
            words.append(f"--{option}={(','.join(plain) or 'none') if isinstance(plain, list) else plain}")
    return f"composer explore {shlex.join(words)} {target.command}"


def default_folder(target: Target) -> str:
    """Return the folder for records in which the same command finds them again, if it names none.

    Args:
        target: The program.

    >>> default_folder(Target("script", "examples/train.py"))
    'explore-train'
    """
    name = target.name.rpartition(".")[2] if target.kind == "module" else Path(target.name).stem
    return f"explore-{name}"


def _listed(value: Any) -> Any:
    """A sequence as a list, with variants as their arguments, of which secrets can be masked."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    known = {one.name: one.default for one in fields(Variant)}
    return [
        {name: item for name, item in vars(one).items() if item != known[name]} if isinstance(one, Variant) else one
        for one in cast("Sequence[Any]", value)
    ]


def _written(value: Any) -> str:
    """A value as Python code."""
    plain = _plain(value)
    if not isinstance(plain, list):
        return repr(plain)
    return f"[{', '.join(_item(one) for one in cast('list[Any]', plain))}]"


def _item(value: Any) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    given = cast("Mapping[str, Any]", value).items()
    # Masking makes a list of a tuple.
    return f"Variant({', '.join(f'{name}={tuple(one) if isinstance(one, list) else one!r}' for name, one in given)})"


def _plain(value: Any) -> Any:
    """A number as people write it, and any sequence as a list."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value if isinstance(value, str | int) else list(value)
