"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.reports.logged import ReportImage
from composer.reports.page import run_report

__all__ = [
    "ReportImage",
    "run_report",
]
