"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.reports.comparison import RunComparison, compare_runs
from composer.reports.logged import ReportImage
from composer.reports.page import run_report
from composer.reports.run_groups import RunGroup

__all__ = [
    "ReportImage",
    "RunComparison",
    "RunGroup",
    "compare_runs",
    "run_report",
]
