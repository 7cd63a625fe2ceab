"""The loop in pseudocode, for the page that explains it, taken from where the code keeps it: the docstring of Event."""

from __future__ import annotations

import inspect
import re
import textwrap

from composer.core.event import Event

__all__ = ["event_loop", "with_event_loop"]

_MARK = re.compile(r"^<!-- loop: (\w+) -->$", flags=re.MULTILINE)
_BLOCK = re.compile(r"^\.\. code-block:: text\n\n((?: {4}.*\n|\n)+)", flags=re.MULTILINE)


def event_loop() -> dict[str, str]:
    """Return the parts of the loop, such as ``fit`` and ``evaluate``, by their names.

    >>> event_loop()["predict"].splitlines()[:2]
    ['predict:', '    PREDICT_START']
    """
    found = _BLOCK.search(inspect.cleandoc(Event.__doc__ or "") + "\n")
    assert found is not None, "the docstring of Event has no block of pseudocode"
    parts = re.split(r"\n\n", textwrap.dedent(found[1]).strip())
    return {part.partition(":")[0]: part for part in parts}


def with_event_loop(markdown: str) -> str:
    """Return a page with a part of the loop in the place of each ``<!-- loop: part -->``.

    Args:
        markdown: The page.

    Raises:
        KeyError: There is no such part.
    """
    parts = event_loop()
    return _MARK.sub(lambda found: f"```text\n{parts[found[1]]}\n```", markdown)
