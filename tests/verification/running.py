"""Run ``verify`` on trainers of test modules, with one server for all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from composer.trials import ForkServer, Target
from composer.verification.findings import Report
from composer.verification.verify import CHECKS, _Verification

__all__ = ["CHECK_OF", "PRELOADED", "run_checks"]

# Modules that trials import.
PRELOADED = ("composer.verification._recorder", "tests.verification.faults", "tests.verification.sound")

# The checks in which a fault of the gallery shows, by the name that the gallery has for them.
CHECK_OF: dict[str, tuple[str, ...]] = {
    "repeat": ("same",),
    "microbatches": ("microbatch",),
    "data": ("data",),
    "resume": ("resume",),
    "checkpoint": ("resume", "reload"),
    "saving": ("same",),
    "callbacks": ("same", "callbacks"),  # the former notes what each callback changes
    "loggers": ("logging",),
    "evaluation": ("evaluation",),
    "methods": ("methods",),
    "workers": ("workers",),
    "compile": ("compile",),
    "precision": ("precision",),
    "ranks": ("ddp", "random"),
}


def run_checks(name: str, server: ForkServer, checks: Sequence[str] | None = None, *, fresh: bool = False) -> Report:
    """Return the report of a trainer.

    Args:
        name: Import path ``package.module:function`` of the function that makes it.
        server: Forks the trials.
        checks: The checks to run; None for all.
        fresh: Whether trials that need a Python of their own get one, which takes seconds; otherwise all are forks.
    """
    target = Target("function", name)
    with tempfile.TemporaryDirectory() as folder:
        verification = _Verification(
            target, Path(folder), 6, list(CHECKS) if checks is None else checks, 1, 120.0, False, server
        )  # fmt: skip
        verification.all_forked = not fresh
        return verification.report()
