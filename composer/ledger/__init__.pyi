"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.ledger.category import Category
from composer.ledger.clock import LedgerClock, timed_as
from composer.ledger.goodput import Goodput
from composer.ledger.ledger import Ledger
from composer.ledger.segment import Position, Segment

__all__ = [
    "Category",
    "Goodput",
    "Ledger",
    "LedgerClock",
    "Position",
    "Segment",
    "timed_as",
]
