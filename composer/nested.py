"""Convert nested dictionaries to flat ones with names such as ``model/depth``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["convert_flat_dict_to_nested_dict", "convert_nested_dict_to_flat_dict"]


def convert_nested_dict_to_flat_dict(nested_dict: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as a flat one, with the names joined by ``/``.

    Args:
        nested_dict: Values by name; mappings among them are flattened, except empty ones.
        prefix: Prefix of each name, such as ``"model/"``.

    >>> convert_nested_dict_to_flat_dict(
    ...     {"lr": 0.1, "model": {"depth": 2, "block": {"width": 8}}, "none": {}}
    ... )
    {'lr': 0.1, 'model/depth': 2, 'model/block/width': 8, 'none': {}}
    """
    flat: dict[str, Any] = {}
    for name, value in nested_dict.items():
        if isinstance(value, Mapping) and value:
            flat.update(convert_nested_dict_to_flat_dict(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def convert_flat_dict_to_nested_dict(flat_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested dictionary of a flat one; the inverse of :func:`convert_nested_dict_to_flat_dict`.

    Args:
        flat_dict: Values by name; ``/`` separates the levels.

    Raises:
        ValueError: A name is used both for a value and for a dictionary.

    >>> convert_flat_dict_to_nested_dict({"lr": 0.1, "model/depth": 2, "model/block/width": 8})
    {'lr': 0.1, 'model': {'depth': 2, 'block': {'width': 8}}}
    """
    nested: dict[str, Any] = {}
    opened: dict[str, dict[str, Any]] = {"": nested}
    for path, value in flat_dict.items():
        parent, _, name = path.rpartition("/")
        inside = _open(parent, opened)
        if name in inside:
            raise ValueError(f"flat_dict has {path!r} both as a value and as the beginning of other names.")
        inside[name] = value
    return nested


def _open(path: str, opened: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the dictionary at a path, created if missing."""
    if path not in opened:
        parent, _, name = path.rpartition("/")
        inside = _open(parent, opened)
        if name in inside:
            raise ValueError(f"flat_dict has {path!r} both as a value and as the beginning of other names.")
        inside[name] = opened[path] = {}
    return opened[path]
