"""One line for what happens to a run: resumed, stopped early, interrupted, a NaN loss; on the console and in logs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from composer import dist
from composer._masking import mask_text

__all__ = ["Notices"]

_log = logging.getLogger("composer")


class Notices:
    """Says each thing once, on rank 0: in the console, by Python's ``logging``, and in the summary at the end.

    Args:
        show: Shows a line on the console and returns whether there is one.

    Attributes:
        texts: What was said since the last summary.

    >>> notices = Notices(lambda text: print(text) is None)
    >>> notices.tell("resumed from ep3.pt at epoch 3, batch 312")
    resumed from ep3.pt at epoch 3, batch 312
    >>> notices.texts
    ['resumed from ep3.pt at epoch 3, batch 312']
    """

    def __init__(self, show: Callable[[str], bool]) -> None:
        self.texts: list[str] = []
        self._show = show

    def tell(self, text: str, *, urgent: bool = False) -> None:
        """Say something.

        Args:
            text: One line.
            urgent: Whether it is a warning, which a run without a console prints to stderr where Python's ``logging``
                is not set up.
        """
        if dist.get_global_rank() != 0:
            return
        text = mask_text(text)
        self.texts.append(text)
        shown = self._show(text)
        # Without handlers, logging prints warnings itself, which would be twice on the same screen.
        if not shown or _log.hasHandlers():
            _log.log(logging.WARNING if urgent else logging.INFO, "%s", text)
