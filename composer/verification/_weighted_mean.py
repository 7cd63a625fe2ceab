"""Tell whether the loss of a batch is a weighted mean of those of its microbatches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["is_weighted_mean"]


def is_weighted_mean(first: Mapping[str, Any], second: Mapping[str, Any], ratio: float) -> bool:
    """Return whether the loss of a batch is a mean over its microbatches, with weights of any kind.

    With the loss l_i and the gradient g_i of each microbatch, there must be weights w_i > 0 with sum_i w_i = 1,
    L = sum_i w_i l_i and G = sum_i w_i g_i, for the loss L and the gradient G of the batch.

    Args:
        first: The tensors of the first step, with the full batch.
        second: Those with microbatches.
        ratio: The logged loss with microbatches, relative to that of the full batch.
    """
    total, parts = first["increments"], second["increments"]
    passes = len(total)  # of an optimizer that computes the gradients several times, such as SAM: the first one counts
    if not passes or len(parts) % passes or len(parts) // passes < 2:
        return True  # not enough equations to tell
    parts = parts[: len(parts) // passes]
    if total[0].numel() < len(parts):
        return True
    rows = torch.stack([parts[0], *(b - a for a, b in itertools.pairwise(parts))])
    if not bool(rows.isfinite().all()):
        return True  # nor here: what a callback removed later is not finite
    solution = torch.linalg.lstsq(rows.T, total[0][:, None], driver="gelsd").solution[:, 0]
    if float((rows.T @ solution - total[0]).norm()) > 1e-4 * float(total[0].norm()):
        return False
    counts = rows.norm(dim=1) > 1e-9 * rows.norm()
    if bool((solution[counts] < 1e-4).any()):
        return False  # the batch ignores samples that count by themselves
    weights, losses = solution / len(parts), torch.tensor(second["losses"][: len(parts)])
    if not bool(counts.all()) or not bool(losses.isfinite().all()) or passes > 1:
        return True
    if abs(float(losses.mean()) - ratio * first["losses"][0]) > 1e-6 * abs(first["losses"][0]):
        return True  # the trainer weights microbatches by tokens, and these weights are not recorded
    is_mean = abs(float(weights.sum()) - 1) < 1e-3
    return is_mean and abs(float((weights * losses).sum()) - first["losses"][0]) < 1e-3 * abs(first["losses"][0])
