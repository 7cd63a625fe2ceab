"""Judge whether a loss compares samples, by a run that exchanges samples between microbatches of the same size."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer.trials import Record
from composer.verification._by_sample import ignored_samples
from composer.verification._judge_split import COMPARES, DEPENDS_ON_EARLIER, loss_ratio
from composer.verification.compare import TOLERANCE, UPDATE_TOLERANCE, deviation, steps_of, tensors_of, updates
from composer.verification.findings import Finding

__all__ = ["is_of_comparing_loss", "judge_exchanged"]

_MEANS = (
    "Let each term of the loss be a mean over the samples that it gets (reduction='mean'), or not depend on their "
    "number at all, as a penalty of weights, and do not scale by the number of samples, microbatches or ranks: the "
    "trainer does."
)


def is_of_comparing_loss(finding: Finding) -> bool:
    """Return whether a finding takes a loss to compare samples or microbatches, which an exchange of samples tests.

    Args:
        finding: The finding.

    >>> is_of_comparing_loss(
    ...     Finding("ddp", "expected", "outputs for a sample depend on the rest of the batch")
    ... )
    False
    """
    return finding.status == "expected" and finding.summary in (COMPARES, DEPENDS_ON_EARLIER)


def judge_exchanged(finding: Finding, exact: Record, half: Record, exchanged: Record, whole: Record) -> Finding:
    """Return a finding of :func:`is_of_comparing_loss`, as it is if the exchange of samples matters; else a failure.

    If the loss of a batch is the sum of what each sample gives, and of what no sample changes, the losses and gradients
    of two microbatches together are the same whichever samples each has. How much a sample gives may depend on the size
    of the microbatch, as the factor of a sum next to a mean does: that is a mistake in the scale. It does not depend on
    whether the microbatch is the first or the second, as state that each microbatch changes lets it.

    Args:
        finding: The finding.
        exact: The run with the full batch.
        half: The run with two microbatches of the same size.
        exchanged: The run with two microbatches that have samples of each other.
        whole: The run with the two microbatches in the other order.
    """
    failed = next((record for record in (exact, half, exchanged, whole) if not record.is_completed), None)
    if failed is not None:
        untested = f"whether an exchange of samples between microbatches matters is unknown: {failed.error}"
        return dataclasses.replace(finding, evidence=(*finding.evidence, untested))
    tensors, others = tensors_of(half), tensors_of(exchanged)
    ratio = loss_ratio(steps_of(half), steps_of(exchanged))
    differs = deviation(tensors["first"]["gradients"], others["first"]["gradients"])
    if differs is None and abs(ratio - 1) <= TOLERANCE:
        differs = deviation(updates(tensors), updates(others), tolerance=UPDATE_TOLERANCE)
        if differs is None and finding.summary == DEPENDS_ON_EARLIER and _order_matters(tensors, tensors_of(whole)):
            order = "a microbatch has another loss or other gradients if it comes after the other one"
            return dataclasses.replace(finding, evidence=(*finding.evidence, order))
        if differs is None:
            return _failed(finding, tensors_of(exact)["first"], tensors["first"])
    matters = "an exchange of samples between microbatches of the same size changes the loss or the gradients"
    return dataclasses.replace(finding, evidence=(*finding.evidence, matters))


def _order_matters(half: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Return whether microbatches in the other order have other losses, or add other gradients, in the first step."""
    one, other = _by_microbatch(half["first"]), _by_microbatch(whole["first"])[::-1]
    return any(deviation(a, b) is not None for a, b in zip(one, other, strict=True))


def _by_microbatch(first: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """Return the loss of each microbatch, and what it adds to the gradient."""
    sums: Sequence[Tensor] = first["increments"]
    added = [after - before for before, after in itertools.pairwise([torch.zeros_like(sums[0]), *sums])] if sums else []
    losses = [torch.tensor(loss, dtype=torch.float64) for loss in first["losses"]]
    return [{"loss": loss, "gradient": gradient} for loss, gradient in zip(losses, added, strict=True)]


def _failed(finding: Finding, exact: Mapping[str, Any], half: Mapping[str, Any]) -> Finding:
    """Return the failure of a loss that gives the same for samples in whichever microbatches of one size."""
    same = "an exchange of samples between microbatches of the same size changes nothing: the loss compares none"
    evidence = (*finding.evidence, same)
    ignored = ignored_samples(exact, half)
    if ignored is not None and ignored[0] != ignored[1]:
        counts = f"the loss ignores {ignored[1]} of {ignored[2]} samples in two microbatches, and {ignored[0]} in one"
        summary, cause, advice = "the loss leaves out other samples", "ignored_samples", ""
        evidence = (*evidence, counts)
    else:
        summary = "what the loss makes of a sample depends on the number of samples"
        cause, advice = "loss_scale", _MEANS
    return Finding(finding.check, "failed", summary, cause, "the loss", finding.where, evidence, advice=advice)
