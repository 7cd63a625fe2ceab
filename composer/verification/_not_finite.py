"""Judge runs whose microbatches have a loss or gradients that are not finite, though those of the full batch are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from composer._text import plural
from composer.verification.findings import Finding

__all__ = ["judge_finite"]


def judge_finite(
    check: str,
    step: int,
    losses: tuple[float, float],
    tensors: Mapping[str, Any],
    others: Mapping[str, Any],
    classes: Mapping[str, str],
) -> Finding | None:
    """Judge whether the first step has finite losses and gradients; return None if it has in both runs.

    Args:
        check: Name of the check.
        step: Number of the step.
        losses: The logged losses of the reference, and of the run that splits the batch.
        tensors: The tensors of the step that the reference recorded.
        others: Those of the other.
        classes: The class of each module by name.

    >>> empty = {"gradients": {}}
    >>> judge_finite("ddp", 0, (1.0, 1.0), empty, empty, {}) is None
    True
    >>> judge_finite("ddp", 0, (float("nan"), 1.0), empty, empty, {}).status
    'undecided'
    """
    if not math.isfinite(losses[0]) or _first(tensors["gradients"]):
        return Finding(check, "undecided", "the full batch has a loss or gradients that are not finite in float64")
    gradient = _first(others["gradients"])
    if math.isfinite(losses[1]) and not gradient:
        return None
    evidence = [] if math.isfinite(losses[1]) else [f"the logged loss is {losses[1]}, and {losses[0]:.4g} unsplit"]
    evidence += _microbatches(others)
    module = _module(tensors["outputs"][0], others["outputs"])
    if module is not None:
        shown = module or "the model"
        where, name = f"outputs of {shown}", f"{shown} ({classes[module]})" if module in classes else shown
    elif not math.isfinite(losses[1]):
        where, name = "loss", "the loss"
    else:
        where, name = f"gradient of {gradient}", f"the gradient of {gradient}"
    summary = "values are not finite if the batch is split"
    cause = "not_finite_in_microbatch"
    return Finding(check, "failed", summary, cause, name, f"step {step}, {where}", tuple(evidence))


def _microbatches(tensors: Mapping[str, Any]) -> list[str]:
    """Return how many microbatches of the first rank have a loss that is not finite, if any, and how large they are."""
    losses: Sequence[float] = tensors["losses"]
    wrong = sum(not math.isfinite(loss) for loss in losses)
    if not wrong:
        return []
    samples = len(tensors["samples"][0])
    size = f" of {plural(samples // len(losses), 'sample')}" if samples % len(losses) == 0 else ""
    return [f"the loss is not finite in {wrong} of {len(losses)} microbatches{size}"]


def _first(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor that is not finite; empty if there is none."""
    return next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), "")


def _module(outputs: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the first module with outputs that are not finite, though those for the full batch are; None if none."""
    for name, calls in outputs.items():
        parts = [part for rank in ranks for part in rank.get(name, [])]
        if all(bool(call.isfinite().all()) for call in calls) and not all(bool(p.isfinite().all()) for p in parts):
            return name
    return None
