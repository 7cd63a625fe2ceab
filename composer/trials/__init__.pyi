"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.trials.assignments import Assignment
from composer.trials.display import TrialDisplay
from composer.trials.fork_server import ForkServer
from composer.trials.probe import Probe
from composer.trials.study import Study
from composer.trials.target import Target
from composer.trials.trial import Record, Trial

__all__ = [
    "Assignment",
    "ForkServer",
    "Probe",
    "Record",
    "Study",
    "Target",
    "Trial",
    "TrialDisplay",
]
