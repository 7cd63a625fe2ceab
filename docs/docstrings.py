"""Lets the pages show docstrings as they are written: roles such as :func: become code, examples become code blocks."""

from __future__ import annotations

from typing import Any

import griffe

from docs.text import as_markdown, without_sections

__all__ = ["Docstrings"]


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, when its object has been read; pages show the sections of methods themselves."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = obj.docstring.value
            if obj.is_class and obj.path.startswith("composer.algorithms."):
                text = without_sections(text)
            obj.docstring.value = as_markdown(text)
