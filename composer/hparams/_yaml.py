"""Load and dump YAML configurations safely: ``1e-4`` is a number, duplicate keys and huge files are errors."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from composer._lazy import import_extra

__all__ = ["WrittenInt", "dump", "load"]

_INT: Final = "tag:yaml.org,2002:int"
_MERGE: Final = "tag:yaml.org,2002:merge"
# Limits; a typical configuration has about a hundred values, ten levels deep.
_LARGEST: Final = 100_000
_DEEPEST: Final = 100
_MOST_DIGITS: Final = 1000


def load(text: str) -> Any:
    """Parse YAML.

    >>> load("lr: 1e-4")
    {'lr': 0.0001}
    """
    yaml = import_extra("yaml", "hparams", "A configuration")
    return yaml.load(text, Loader=_loader())


def dump(value: Any) -> str:
    """Serialize a value as YAML, keeping the order of mappings.

    >>> print(dump({"b": 1, "a": [2]}))
    b: 1
    a:
    - 2
    <BLANKLINE>
    """
    yaml = import_extra("yaml", "hparams", "A configuration")
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


class WrittenInt(int):
    """An integer whose YAML text differs from its Python representation: ``0123``, ``1:30``, ``0x1f``, ``1_000``.

    Attributes:
        text: The YAML text.
    """

    text: str


def _check(node: Any, sizes: dict[int, int], yaml: Any, loader: Any) -> int:
    """Raise on duplicate keys and on aliases that expand to something huge; return the expanded number of nodes.

    Args:
        node: A node; each is visited once, regardless of the number of its aliases.
        sizes: The known sizes; 0 for nodes in progress.
        yaml: The package.
        loader: The loader, which constructs the values of keys.
    """
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise yaml.composer.ComposerError(None, None, "an alias refers to a node that contains it", node.start_mark)
        return sizes[id(node)]
    sizes[id(node)], size = 0, 1
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, yaml, loader)
        size += sum(_check(one, sizes, yaml, loader) for pair in node.value for one in pair)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_check(one, sizes, yaml, loader) for one in node.value)
    if size > _LARGEST:
        raise yaml.composer.ComposerError(
            None, None, f"it has more than {_LARGEST:,} values after its aliases are expanded", node.start_mark
        )
    sizes[id(node)] = size
    return size


def _check_keys(node: Any, yaml: Any, loader: Any) -> None:
    """Raise on equal keys, even if written differently, and on numbers with too many digits."""
    found: set[Any] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if isinstance(value, yaml.ScalarNode) and value.tag == _INT and len(value.value) > _MOST_DIGITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key.value!r} has a number of more than {_MOST_DIGITS} digits", value.start_mark
            )
        if key.tag == _MERGE:
            continue
        if len(key.value) > _MOST_DIGITS and key.tag == _INT:
            raise yaml.constructor.ConstructorError(
                None, None, f"a key has more than {_MOST_DIGITS} digits", key.start_mark
            )
        if (made := loader.construct_object(key)) in found:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", node.start_mark)
        found.add(made)


@functools.cache
def _loader() -> Any:
    yaml = import_extra("yaml", "hparams", "A configuration")

    class Loader(yaml.SafeLoader):
        """Constructs plain values only, and raises on duplicate keys, deep nesting and too many values."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > _DEEPEST:
                raise yaml.composer.ComposerError(
                    None, None, f"it is nested more than {_DEEPEST} levels deep", self.peek_event().start_mark
                )
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

        def get_single_node(self) -> Any:
            root = super().get_single_node()
            if root is not None:
                _check(root, {}, yaml, self)
            return root

    def written(loader: Any, node: Any) -> int:
        value: int = loader.construct_yaml_int(node)
        if str(value) == node.value:
            return value
        made = WrittenInt(value)
        made.text = node.value
        return made

    Loader.add_constructor(_INT, written)
    # YAML 1.1, which the package follows, requires a dot in a number with an exponent.
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    return Loader
