"""Judge a compiled model, and name the module that differs when it is compiled alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from composer.trials import Record
from composer.verification.compare import UPDATE_TOLERANCE, deviation, steps_of, updates
from composer.verification.findings import Finding

__all__ = ["judge_compiled", "located"]


def judge_compiled(check: str, tensors: Mapping[str, Any], others: Mapping[str, Any]) -> Finding:
    """Judge a run with the compiled model.

    Args:
        check: Name of the check.
        tensors: The tensors that the reference in exact mode recorded.
        others: Those of the compiled model.
    """
    found = deviation(tensors["first"]["gradients"], others["first"]["gradients"])
    if found is None:
        found = deviation(updates(tensors), updates(others), UPDATE_TOLERANCE)
        if found is not None:
            where = f"step 1 or later, parameter {found}"
            return Finding(check, "failed", "the compiled model differs", "compile_differs", found.name, where)
        return Finding(check, "passed", "gradients agree within 1e-6, and updates within 1e-4, in float64")
    where = f"step 0, gradient of {found}"
    return Finding(check, "failed", "the compiled model differs", "compile_differs", found.name, where)


def located(finding: Finding, record: Record, classes: Mapping[str, str]) -> Finding:
    """Return a finding of :func:`judge_compiled` with the first module whose outputs differ, if it is known.

    Args:
        finding: The finding.
        record: The record of the trial that compiles each module alone.
        classes: The class of each module by name.
    """
    if not record.is_completed:
        return dataclasses.replace(finding, evidence=(f"the search for the module failed: {record.error}",))
    compiled = steps_of(record)["compiled"]
    name, relative = compiled["found"], compiled["relative"]
    if name is None:
        evidence = "compiled alone, the modules have the outputs of the plain ones: see the backward pass and the loss"
        failed = (f"{module} cannot be compiled alone: {error}" for module, error in compiled["failed"].items())
        return dataclasses.replace(finding, evidence=(evidence, *itertools.islice(failed, 5)))
    label = f"{name or 'the model'} ({classes.get(name, 'the model')})"
    evidence = f"compiled alone, {name or 'the model'} has other outputs (relative difference {relative:.2g})"
    return dataclasses.replace(finding, name=label, evidence=(evidence,))
