"""Leaving parts of a checkpoint out by their paths."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from composer._text import did_you_mean
from composer.warnings import ComposerWarning

__all__ = ["IgnoreKeys", "drop", "reaching"]

IgnoreKeys: TypeAlias = Sequence[str] | Callable[[dict[str, Any]], object] | None
"""Patterns of paths such as ``"state/optimizers*"``, or a function that edits the dict; None leaves nothing out."""


def drop(checkpoint: dict[str, Any], ignore: IgnoreKeys) -> None:
    """Remove entries, in place.

    Args:
        checkpoint: Nested dicts with text as keys.
        ignore: Patterns as of :mod:`fnmatch` of whole paths, in which "/" joins the keys; or a function that is
            given the dict to edit.

    >>> checkpoint = {"state": {"model": {"a.weight": 1, "b.weight": 2}}, "rng": []}
    >>> drop(checkpoint, ["state/model/a.*", "rng"])
    >>> checkpoint
    {'state': {'model': {'b.weight': 2}}}
    """
    if ignore is None:
        return
    if callable(ignore):
        ignore(checkpoint)
        return
    if isinstance(ignore, str):
        raise TypeError(f"ignore_keys must be a list of patterns or a function; got {ignore!r}. Give [{ignore!r}].")
    for pattern in ignore:
        found = [path for path in _paths(checkpoint) if fnmatch.fnmatchcase("/".join(path), pattern)]
        if not found:
            near = did_you_mean(pattern, ["/".join(path) for path in _paths(checkpoint)])
            message = f"ignore_keys: nothing in the checkpoint matches {pattern!r}.{near}"
            warnings.warn(message, ComposerWarning, stacklevel=3)
        for path in found:
            _remove(checkpoint, path)


def reaching(ignore: IgnoreKeys, part: str) -> list[str]:
    """Return the patterns that name a part of a checkpoint, or something in it.

    Args:
        ignore: What is to be left out, as for :func:`drop`; of a function nothing is known.
        part: A path, such as "state/model".

    >>> reaching(["state/model/a.*", "state/*", "rng"], "state/model")
    ['state/model/a.*', 'state/*']
    """
    if ignore is None or callable(ignore):
        return []
    return [one for one in ignore if fnmatch.fnmatchcase(part, one) or one.startswith(f"{part}/")]


def _paths(node: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in node.items():
        path = (*above, str(key))
        yield path
        if isinstance(value, dict):
            yield from _paths(cast("dict[str, Any]", value), path)


def _remove(node: dict[str, Any], path: tuple[str, ...]) -> None:
    *above, last = path
    for key in above:
        if key not in node:  # gone with what holds it
            return
        node = node[key]
    node.pop(last, None)
