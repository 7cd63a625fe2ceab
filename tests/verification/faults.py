"""All planted faults: ``FAULTS`` by name, and each function that makes a trainer as an attribute of this module."""

from __future__ import annotations

from collections.abc import Callable

from composer import Trainer
from tests.verification import (
    fault,
    faults_data,
    faults_effects,
    faults_loss,
    faults_modules,
    faults_random,
    faults_ranks,
    faults_state,
    faults_streams,
)

__all__ = ["FAULTS", "MODULES"]

MODULES = (
    faults_loss,
    faults_data,
    faults_random,
    faults_modules,
    faults_state,
    faults_effects,
    faults_ranks,
    faults_streams,
)
FAULTS: dict[str, fault.Fault] = fault.TABLE


def __getattr__(name: str) -> Callable[[], Trainer]:
    """Return the function of a fault, so that another process can import it from here."""
    try:
        return FAULTS[name].make
    except KeyError:
        raise AttributeError(f"There is no fault {name!r}.") from None
