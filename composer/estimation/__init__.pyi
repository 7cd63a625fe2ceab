"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.estimation.devices import Device, find_device
from composer.estimation.estimate import estimate
from composer.estimation.grid import Grid, estimate_grid
from composer.estimation.memory import Memory
from composer.estimation.remedies import Remedy
from composer.estimation.report import Report

__all__ = [
    "Device",
    "Grid",
    "Memory",
    "Remedy",
    "Report",
    "estimate",
    "estimate_grid",
    "find_device",
]
