"""The command that repeats an exploration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from composer._secrets.masking import mask_values
from composer.trials import Target

__all__ = ["OPTIONS", "command_of"]

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
    """
    told = {name: mask_values(value) for name, value in given.items() if value is not None}
    if target.kind not in ("script", "module"):
        listed = ", ".join(f"{name}={_plain(value)!r}" for name, value in told.items())
        return f"composer.explore({target.command}, {listed})"
    words: list[str] = []
    for name, value in told.items():
        option = OPTIONS.get(name, name.replace("_", "-"))
        if name in OPTIONS:
            words += [f"--{option}={one}" for one in value]
        else:
            plain = _plain(value)
            words.append(f"--{option}={(','.join(plain) or 'none') if isinstance(plain, list) else plain}")
    return f"composer explore {shlex.join(words)} {target.command}"


def _plain(value: Any) -> Any:
    """A number as people write it, and any sequence as a list."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value if isinstance(value, str | int) else list(value)
