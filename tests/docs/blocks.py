"""The one way in which the code of the pages is run: block after block, in one namespace."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"

# Code of other libraries, shown beside ours, has one of these as its title, and is not run.
FOREIGN = {"Lightning", "Transformers", "Accelerate"}

_BLOCK = re.compile(r'^```python(?: title="(?P<title>[^"\n]+)")?\n(?P<code>.*?)^```$', flags=re.M | re.S)


class Block(NamedTuple):
    """A block of Python.

    Attributes:
        page: Where it stands, below ``docs``.
        line: In which line its code begins, from 1.
        code: The code.
        title: What stands above it on the page, if anything.
    """

    page: str
    line: int
    code: str
    title: str | None = None

    @property
    def module(self) -> str | None:
        """The module that it is the file of, if its title is a path."""
        is_file = self.title is not None and "/" in self.title and self.title.endswith(".py")
        return self.title.removesuffix(".py").replace("/", ".") if is_file else None

    def run(self, names: dict[str, Any]) -> None:
        """Run it; what it defines is in ``names`` afterwards. Tracebacks show the line of the page.

        The file of a module is run as that module, which later blocks can import; who calls this takes it out of
        ``sys.modules`` again.
        """
        if self.module is not None:
            sys.modules[self.module] = made = ModuleType(self.module)
            names = made.__dict__
        exec(compile("\n" * (self.line - 1) + self.code, str(DOCS / self.page), "exec", dont_inherit=True), names)


def blocks(page: str) -> list[Block]:
    """The blocks of a page in order, but for those of other libraries."""
    return list(_find(page, (DOCS / page).read_text()))


def _find(page: str, text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        if found["title"] not in FOREIGN:
            yield Block(page, text.count("\n", 0, found.start("code")) + 1, found["code"], found["title"])


def pages_with_code() -> set[str]:
    """All pages written by hand that have code to run."""
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    return {page for page in pages if blocks(page)}
