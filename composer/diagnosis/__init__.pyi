"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.diagnosis.doctor import doctor
from composer.diagnosis.remedies import REMEDIES
from composer.diagnosis.report import Report
from composer.diagnosis.verdict import Verdict

__all__ = [
    "REMEDIES",
    "Report",
    "Verdict",
    "doctor",
]
