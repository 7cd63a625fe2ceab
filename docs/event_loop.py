"""The training loop in pseudocode, from the docstring of ``Event``, for the page about the loop."""

from __future__ import annotations

import inspect
import re
import textwrap

from composer.core.event import Event
from docs.diagrams import with_diagrams

__all__ = ["event_loop", "with_event_loop"]

_MARK = re.compile(r"^<!-- loop: (\w+) -->$", flags=re.MULTILINE)
_BLOCK = re.compile(r"^\.\. code-block:: text\n\n((?: {4}.*\n|\n)+)", flags=re.MULTILINE)


def event_loop() -> dict[str, str]:
    """Return the sections of the loop, such as ``fit`` and ``evaluate``, by name.

    >>> event_loop()["predict"].splitlines()[:2]
    ['predict:', '    PREDICT_START']
    """
    found = _BLOCK.search(inspect.cleandoc(Event.__doc__ or "") + "\n")
    assert found is not None, "the docstring of Event has no block of pseudocode"
    parts = re.split(r"\n\n", textwrap.dedent(found[1]).strip())
    return {part.partition(":")[0]: part for part in parts}


def with_event_loop(markdown: str) -> str:
    """Return a page with a section of the loop in place of each ``<!-- loop: name -->``, and with its diagrams.

    Args:
        markdown: The page.

    Raises:
        KeyError: There is no such section or diagram.
    """
    sections = event_loop()
    listed = _MARK.sub(lambda found: f"```text\n{sections[found[1]]}\n```", markdown)
    return with_diagrams(listed, sections["fit"])
