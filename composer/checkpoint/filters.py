"""Exclude entries of a checkpoint by glob patterns of their paths (``load_ignore_keys``, ``save_ignore_keys``)."""

from __future__ import annotations

import fnmatch
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from composer._text import did_you_mean, first_of
from composer.checkpoint.named_states import by_name
from composer.warnings import ComposerWarning

__all__ = ["IgnoreKeys", "drop", "glob_filter", "patterns_inside", "patterns_reaching"]

IgnoreKeys: TypeAlias = Sequence[str] | Callable[[dict[str, Any]], object] | None
"""Patterns of paths such as ``"state/optimizers*"``, or a function that edits the dict; None excludes nothing."""


def drop(checkpoint: dict[str, Any], ignore: IgnoreKeys) -> None:
    """Remove entries, in place.

    A pattern that matches nothing gives a warning, with a "did you mean" hint.

    Args:
        checkpoint: Nested dicts and lists. The path of a list element has its index; an element that is a pair of
            name and value, such as an algorithm, also matches by name, with ``#2`` for the second of the same name.
        ignore: :mod:`fnmatch` patterns of full paths, with keys joined by "/"; or a function that edits the dict.

    Raises:
        TypeError: ``ignore`` is a single string.

    >>> checkpoint = {"state": {"model": {"a.weight": 1, "b.weight": 2}}, "rng": []}
    >>> drop(checkpoint, ["state/model/a.*", "rng"])
    >>> checkpoint
    {'state': {'model': {'b.weight': 2}}}
    >>> checkpoint = {"state": {"algorithms": [("EMA", {}), ("BlurPool", {})]}}
    >>> drop(checkpoint, ["state/algorithms/EMA"])
    >>> checkpoint
    {'state': {'algorithms': [('BlurPool', {})]}}
    """
    if ignore is None:
        return
    if callable(ignore):
        ignore(checkpoint)
        return
    if isinstance(ignore, str):
        raise TypeError(f"ignore_keys must be a list of patterns or a function; got {ignore!r}. Pass [{ignore!r}].")
    paths = list(_paths(checkpoint))
    found: set[tuple[Any, ...]] = set()
    for pattern in ignore:
        matched = [path for text, path in paths if fnmatch.fnmatchcase(text, pattern)]
        if not matched:
            near = _near(pattern, [text for text, _ in paths])
            message = f"ignore_keys: nothing in the checkpoint matches {pattern!r}.{near}"
            warnings.warn(message, ComposerWarning, stacklevel=3)
        found.update(matched)
    _remove(checkpoint, found)


def glob_filter(exclude_globs: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """Return a function that removes entries of a checkpoint, as :func:`drop` does.

    Args:
        exclude_globs: Patterns of paths.

    >>> checkpoint = {"state": {"layers": [{"weight": 1}, {"weight": 2}]}}
    >>> glob_filter(["state/layers/0"])(checkpoint)
    >>> checkpoint
    {'state': {'layers': [{'weight': 2}]}}
    """
    return functools.partial(drop, ignore=exclude_globs)


def patterns_reaching(ignore: IgnoreKeys, part: str) -> list[str]:
    """Return the patterns that match an entry of a checkpoint, or something in it.

    Args:
        ignore: What to exclude, as for :func:`drop`; an empty list is returned for a function.
        part: A path, such as "state/model".

    >>> patterns_reaching(["state/model/a.*", "state/*", "rng"], "state/model")
    ['state/model/a.*', 'state/*']
    """
    if ignore is None or callable(ignore):
        return []
    return [one for one in ignore if fnmatch.fnmatchcase(part, one) or one.startswith(f"{part}/")]


def patterns_inside(ignore: IgnoreKeys, part: str) -> str:
    """Return the patterns that may have excluded something inside an entry, for an error message; "" if there are none.

    Args:
        ignore: What was excluded, as for :func:`drop`.
        part: Name of the entry.

    >>> patterns_inside(["state/timestamp/*", "rng"], "timestamp")
    "'state/timestamp/*'"
    """
    if callable(ignore):
        return "the function"
    above = f"state/{part}/"
    return ", ".join(repr(one) for one in ignore or () if one.startswith(above) or fnmatch.fnmatchcase(above, one))


def _paths(node: Any, text: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Iterate over all paths, as strings and as tuples of keys and indices."""
    for name, keys, value in _children(node):
        yield f"{text}{name}", (*above, keys[0])
        yield from _paths(value, f"{text}{name}/", (*above, *keys))


def _children(node: Any) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Iterate over names, keys and values below a node; a pair in a list has both its index and its name."""
    if isinstance(node, dict):
        for key, value in cast("dict[Any, Any]", node).items():
            yield str(key), (key,), value
    elif isinstance(node, list):
        values = cast("list[Any]", node)
        for index, value in enumerate(values):
            yield str(index), (index,), value
        if all(isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) for one in values):
            for index, (name, value) in enumerate(by_name(values).items()):
                yield name, (index, 1), value


def _remove(checkpoint: dict[str, Any], paths: set[tuple[Any, ...]]) -> None:
    outermost = [path for path in paths if not any(path[:length] in paths for length in range(1, len(path)))]
    # Delete deeper paths first, and list elements from the end, so that the other indices stay valid.
    for path in sorted(outermost, key=lambda path: (len(path), isinstance(path[-1], int) and path[-1]), reverse=True):
        node: Any = checkpoint
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]


def _near(pattern: str, texts: Sequence[str]) -> str:
    """Return a hint for a pattern that matches nothing: a similar path, or the existing keys at that level."""
    known = set(texts)
    if any(fnmatch.fnmatchcase(text, f"state/{pattern}") for text in texts):
        return f" Did you mean 'state/{pattern}'?"
    parts = pattern.split("/")
    depth = next((at for at in range(len(parts)) if at and "/".join(parts[:at]) not in known), len(parts)) - 1
    above = "".join(f"{part}/" for part in parts[:depth])
    names = [text.removeprefix(above) for text in texts if text.startswith(above)]
    names = [name for name in names if "/" not in name and not name.isdecimal()]
    hint = did_you_mean(parts[depth].rstrip("*"), names)
    if hint:
        return did_you_mean(f"{above}{parts[depth].rstrip('*')}", [f"{above}{name}" for name in names])
    what = above.rstrip("/") or "The checkpoint"
    return f" {what} has {first_of(names)}." if names else f" {what} is empty."
