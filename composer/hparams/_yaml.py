"""YAML as people write it: ``1e-4`` is a number, and a key that stands twice is a mistake."""

from __future__ import annotations

import functools
import re
from typing import Any

from composer._lazy import import_extra

__all__ = ["dump", "load"]


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


@functools.cache
def _loader() -> Any:
    yaml = import_extra("yaml", "hparams", "A configuration")

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            for key in keys:
                if keys.count(key) > 1:
                    raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", node.start_mark)
            return super().construct_mapping(node, deep)

    # YAML 1.1, which the package follows, wants a dot in a number with an exponent.
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    return Loader
