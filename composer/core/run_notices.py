"""Report run events (resumed, stopped early, interrupted, NaN loss) in one line each, on the console and in logs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from composer import dist
from composer._secrets.masking import mask_text

__all__ = ["Notices"]

_log = logging.getLogger("composer")


class Notices:
    """Reports a line once, on rank 0: on the console, through Python's ``logging``, and in the final summary.

    Args:
        show: Shows a line on the console; returns whether there is a console.

    Attributes:
        texts: The lines since the last summary.

    >>> notices = Notices(lambda text: print(text) is None)
    >>> notices.report("resumed from ep3.pt at epoch 3, batch 312")
    resumed from ep3.pt at epoch 3, batch 312
    >>> notices.texts
    ['resumed from ep3.pt at epoch 3, batch 312']
    """

    def __init__(self, show: Callable[[str], bool]) -> None:
        self.texts: list[str] = []
        self._show = show

    def report(self, text: str, *, urgent: bool = False) -> None:
        """Report a line.

        Args:
            text: One line.
            urgent: Whether it is a warning, which goes to stderr in a run without a console if Python's ``logging`` is
                not configured.
        """
        if dist.get_global_rank() != 0:
            return
        text = mask_text(text)
        self.texts.append(text)
        shown = self._show(text)
        # Without handlers, logging prints warnings to stderr, and the line would appear twice.
        if not shown or _log.hasHandlers():
            _log.log(logging.WARNING if urgent else logging.INFO, "%s", text)

    def show(self, text: str) -> None:
        """Show a line on the console of rank 0 alone, if there is one.

        Args:
            text: One line that is no event of the run.
        """
        if dist.get_global_rank() == 0:
            self._show(mask_text(text))
