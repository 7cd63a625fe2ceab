"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.verification.causes import CAUSES, Cause
from composer.verification.findings import Finding, Report
from composer.verification.verify import CHECKS, verify

__all__ = [
    "CAUSES",
    "CHECKS",
    "Cause",
    "Finding",
    "Report",
    "verify",
]
