"""Inert nodes that stand for the calls, names and persistent IDs of a parsed pickle, and a walk over them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

__all__ = ["HOLDERS", "Call", "Named", "Persistent", "nodes_of"]

_MOST_DEPTH = 128
_MOST_NODES = 1 << 28


class Named:
    """A class or function that a pickle names; it is not imported.

    Args:
        name: Module and name, joined by a dot.

    >>> Named("os.system").name
    'os.system'
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Call:
    """An object that a pickle constructs by a call; the call is not made.

    Args:
        function: The callee, usually a :class:`Named`.
        args: The arguments.

    >>> Call(Named("os.system"), ("ls",)).name
    'os.system'
    """

    __slots__ = ("args", "function", "items", "states")

    def __init__(self, function: Any, args: Any) -> None:
        self.function = function
        self.args = args
        self.items: list[Any] = []
        """Items added to it afterwards; keys and values alternate."""
        self.states: list[Any] = []
        """States set on it afterwards, as by ``__setstate__``."""

    @property
    def name(self) -> str:
        """The name of the callee, or an empty string if it has none."""
        return self.function.name if isinstance(self.function, Named) else ""


class Persistent:
    """A persistent ID: an object outside the pickle, in torch files a storage.

    Args:
        key: The persistent ID.

    >>> Persistent(("storage", "0")).key
    ('storage', '0')
    """

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


def nodes_of(root: Any, most: int = _MOST_NODES) -> list[Any]:
    """Return the containers and nodes below an object, itself included, each once, in postorder.

    Args:
        root: The object.
        most: The largest number of nodes, leaves included, if shared references are expanded.

    Raises:
        ValueError: The object contains itself, is too deeply nested, or has too many nodes.

    >>> shared = [1]
    >>> nodes_of((shared, shared))
    [[1], ([1], [1])]
    """
    known: dict[int, tuple[int, int]] = {}
    found: list[Any] = []
    # The stack of a depth-first search: node, its remaining children, and its depth and size so far.
    open_: list[list[Any]] = [[None, iter((root,)), 0, 0]]
    while open_:
        frame = open_[-1]
        for child in frame[1]:
            if type(child) not in HOLDERS:
                frame[3] += 1
                continue
            depth, size = known.get(id(child), (-1, 0))
            if depth < 0:
                if id(child) in known or len(open_) > _MOST_DEPTH:
                    raise ValueError(f"it is nested more than {_MOST_DEPTH} deep, or contains itself")
                children = _children(child)
                if HOLDERS.isdisjoint(map(type, children)) and len(children) < most:  # no need to open it
                    known[id(child)] = (0, len(children) + 1)
                    found.append(child)
                    frame[2], frame[3] = max(frame[2], 1), frame[3] + len(children) + 1
                    continue
                known[id(child)] = (-1, 0)
                open_.append([child, iter(children), 0, 1])
                break
            frame[2], frame[3] = max(frame[2], depth + 1), frame[3] + size
        else:
            node, _, depth, size = open_.pop()
            if depth + len(open_) > _MOST_DEPTH + 1 or size > most:
                raise ValueError(f"it is nested more than {_MOST_DEPTH} deep, or refers too often to the same objects")
            if open_:
                known[id(node)] = (depth, size)
                found.append(node)
                above = open_[-1]
                above[2], above[3] = max(above[2], depth + 1), above[3] + size
    return found


HOLDERS = frozenset({list, tuple, dict, set, frozenset, Call, Persistent})
"""The types whose objects can contain others."""


def _children(node: Any) -> Collection[Any]:
    if type(node) is dict:
        mapping = cast("dict[Any, Any]", node)
        return (*mapping.keys(), *mapping.values())
    if type(node) is Call:
        return (node.args, *node.items, *node.states) if isinstance(node.function, Named) else (
            node.function, node.args, *node.items, *node.states
        )  # fmt: skip
    return (node.key,) if type(node) is Persistent else node
