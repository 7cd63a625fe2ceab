"""Lets the pages show docstrings as they are written: roles such as :func: become code, examples become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`[~.!]*([\w.]+)`")
_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*|\n(?P=indent) +\S.*)*", flags=re.MULTILINE)


def as_markdown(text: str) -> str:
    """The docstring with roles as plain code and each example in a fenced block."""
    text = _ROLE.sub(r"`\1`", text)
    return _EXAMPLE.sub(lambda found: "{0}```pycon\n{1}\n{0}```".format(found["indent"], found[0]), text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, when its object has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
