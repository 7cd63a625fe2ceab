"""YAML as people write it: ``1e-4`` is a number, and a key that stands twice is a mistake."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from composer._lazy import import_extra

__all__ = ["dump", "load"]

_MERGE: Final = "tag:yaml.org,2002:merge"
# A configuration has some hundred values, ten levels deep.
_LARGEST: Final = 100_000
_DEEPEST: Final = 100


def load(text: str) -> Any:
    """Return the value of a text.

    >>> load("lr: 1e-4")
    {'lr': 0.0001}
    """
    yaml = import_extra("yaml", "hparams", "A configuration")
    return yaml.load(text, Loader=_loader())


def dump(value: Any) -> str:
    """Return a value as text, mappings in their order.

    >>> print(dump({"b": 1, "a": [2]}))
    b: 1
    a:
    - 2
    <BLANKLINE>
    """
    yaml = import_extra("yaml", "hparams", "A configuration")
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _check(node: Any, sizes: dict[int, int], yaml: Any) -> int:
    """Refuse keys that stand twice, and aliases that make something huge; return how many nodes a node stands for.

    Args:
        node: A node; each is looked at once, however many aliases lead to it.
        sizes: Those that are known; 0 for what is under way.
        yaml: The package.
    """
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise yaml.composer.ComposerError(None, None, "an alias leads to what it stands in", node.start_mark)
        return sizes[id(node)]
    sizes[id(node)], size = 0, 1
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE]
        if len(set(keys)) < len(keys):
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} stands twice", node.start_mark)
        size += sum(_check(one, sizes, yaml) for pair in node.value for one in pair)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_check(one, sizes, yaml) for one in node.value)
    if size > _LARGEST:
        raise yaml.composer.ComposerError(
            None, None, f"it has more than {_LARGEST:,} values once its aliases are resolved", node.start_mark
        )
    sizes[id(node)] = size
    return size


@functools.cache
def _loader() -> Any:
    yaml = import_extra("yaml", "hparams", "A configuration")

    class Loader(yaml.SafeLoader):
        """Makes plain values only, and refuses what stands twice, is too deep, or is too large."""

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
                _check(root, {}, yaml)
            return root

    # YAML 1.1, which the package follows, wants a dot in a number with an exponent.
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    return Loader
