"""Docstrings as Markdown: their parts, and the tables and blocks that pages are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "SECTIONS",
    "api",
    "as_markdown",
    "first_paragraph",
    "grouped_arguments",
    "papers",
    "prose",
    "section",
    "summary",
    "table",
    "without_sections",
]

SECTIONS = ("When to use it", "When not to", "How to choose", "Cost")
"""The sections that the docstring of each method has, beside those that are read for the reference."""

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`[~.!]*([\w.]+)`")
_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*|\n(?P=indent) +\S.*)*", flags=re.MULTILINE)
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:[ ]+.*\n?|\n(?=[ ]))+)\n*", flags=re.MULTILINE)
# Where the part of a docstring ends that is prose: at a section, an example or the paper.
_END = re.compile(
    r"^(?:" + "|".join([*SECTIONS, "Args", "Attributes", "Raises", "Returns", "Yields"]) + r"):\n|^>>> |^ *Papers?: ",
    flags=re.MULTILINE,
)
_ADDRESS = re.compile(r"https?://[^\s),;>]*[^\s),;>.]")


def as_markdown(text: str) -> str:
    """Return a docstring with roles as plain code and each example in a fenced block.

    >>> as_markdown(":func:`.mixup_batch` mixes.")
    '`mixup_batch` mixes.'
    """
    text = _ROLE.sub(r"`\1`", text)
    return _EXAMPLE.sub(lambda found: "{0}```pycon\n{1}\n{0}```".format(found["indent"], found[0]), text)


def _clean(documented: object) -> str:
    return inspect.cleandoc(getattr(documented, "__doc__", None) or "") + "\n"


def summary(documented: object) -> str:
    """Return the first sentence of a docstring, in one line."""
    return first_paragraph(_clean(documented))


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a docstring as Markdown, in one line."""
    return " ".join(as_markdown(text.split("\n\n", maxsplit=1)[0]).split())


def prose(documented: object) -> str:
    """Return what a docstring says before its sections, examples and papers."""
    text = _clean(documented)
    end = _END.search(text)
    text = text[: end.start()] if end else text
    # A formula, which docstrings set off by four spaces or more, is a block of code already.
    return as_markdown(text).strip()


def section(documented: object, name: str) -> str:
    """Return what a section of a docstring says, or nothing."""
    found = {match[1]: match[2] for match in _SECTION.finditer(_clean(documented))}
    return as_markdown(inspect.cleandoc(found.get(name, "")))


def without_sections(text: str) -> str:
    """Return a docstring without the sections that a page shows on their own.

    >>> without_sections("Mixes.\\n\\nCost:\\n    A pass.\\n\\nArgs:\\n    alpha: A number.\\n")
    'Mixes.\\n\\nArgs:\\n    alpha: A number.\\n'
    """
    return _SECTION.sub("", text)


def grouped_arguments(text: str, groups: Mapping[str, str]) -> str:
    """Return a docstring with its arguments under several headings.

    Args:
        text: The docstring, with one section of arguments.
        groups: The first argument of each group, and the heading of the group.

    >>> print(
    ...     grouped_arguments(
    ...         "Trains.\\n\\nArgs:\\n    a: One.\\n    b: Two.\\n", {"a": "Data", "b": "Time"}
    ...     )
    ... )
    Trains.
    <BLANKLINE>
    Args: Data
        a: One.
    <BLANKLINE>
    Args: Time
        b: Two.
    <BLANKLINE>
    """
    before, _, after = text.partition("Args:\n")
    lines: list[str] = []
    for line in after.splitlines():
        name = re.match(r" {4}(\w+):", line)
        if name is not None and name[1] in groups:
            lines += ["", f"Args: {groups[name[1]]}"]
        lines.append(line)
    return before + "\n".join(lines).removeprefix("\n") + "\n"


def papers(*documented: object) -> list[str]:
    """Return the addresses that docstrings cite, each once."""
    return list(dict.fromkeys(_ADDRESS.findall("\n".join(map(_clean, documented)))))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table.

    >>> print(table(["a", "b"], [[1, "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = [list(heads), ["---"] * len(heads), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    text = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return text.replace("| --- " * len(heads) + "|", "|---" * len(heads) + "|", 1)


def api(path: str, level: int = 3) -> str:
    """Return the block that the reference of an object is put in place of."""
    return f"::: {path}\n    options:\n      heading_level: {level}"
