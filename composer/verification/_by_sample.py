"""Compare what two runs that split the batch differently recorded of the outputs of modules, sample for sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer.verification.compare import TOLERANCE, deviation

__all__ = ["agreeing_modules", "first_mixing_module", "ignored_samples", "output_gradients_agree"]


def first_mixing_module(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> str | None:
    """Return the first module whose outputs, sample for sample, differ; "" is the model itself, and None none of them.

    Args:
        tensors: The tensors of the first step of the reference.
        others: Those of the other.
    """
    return next((name for name, agrees in _compared(tensors, others) if not agrees), None)


def agreeing_modules(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> set[str]:
    """Return the modules whose outputs can be compared sample for sample, and do not differ.

    Args:
        tensors: The tensors of the first step of the reference.
        others: Those of the other.
    """
    return {name for name, agrees in _compared(tensors, others) if agrees}


def _compared(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each module whose outputs can be compared sample for sample, and whether they agree."""
    order = _positions(tensors["samples"], others["samples"])
    if order is None:
        return
    for name, calls in tensors["outputs"][0].items():
        found = _in_order(calls, [part for rank in others["outputs"] for part in rank.get(name, [])], order)
        if found is not None:
            yield name, deviation({"outputs": calls[0]}, {"outputs": found}) is None


def output_gradients_agree(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> bool | None:
    """Return whether the loss has the same gradients at the outputs of the model; None if they cannot be compared.

    Args:
        tensors: The tensors of the first step of the reference.
        others: Those of the other.
    """
    compared = _output_gradients(tensors, others)
    if compared is None:
        return None
    expected, found = compared
    deviates = deviation({"outputs": expected}, {"outputs": found})
    if deviates is None:
        return True
    # The strategy averages over the ranks, so that each has the gradient of its loss times their number.
    ranks = len(others["output gradients"])
    return deviates.factor is not None and abs(deviates.factor / ranks - 1) <= TOLERANCE


def ignored_samples(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return at how many samples the loss has no gradient in two runs, and the number of all; None if unknown.

    Args:
        tensors: The tensors of the first step of the reference.
        others: Those of the other.
    """
    compared = _output_gradients(tensors, others)
    if compared is None:
        return None
    expected, found = compared
    one, other = (int((rows.reshape(len(rows), -1) == 0).all(1).sum()) for rows in (expected, found))
    return one, other, len(found)


def _output_gradients(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return the gradients at the outputs of two runs, sample for sample; None if they cannot be compared."""
    order = _positions(tensors["samples"], others["samples"])
    calls = tensors["output gradients"][0]
    parts = [part for rank in others["output gradients"] for part in rank]
    found = None if order is None else _in_order(calls, parts, order)
    return None if found is None else (calls[0], found)


def _in_order(calls: Sequence[Tensor], parts: Sequence[Tensor], order: Sequence[int]) -> Tensor | None:
    """Return the rows of parts in the order of those of the only call of the reference; None without such rows."""
    rows = len(order)
    if len(calls) != 1 or not parts or any(part.ndim == 0 for part in parts) or calls[0].shape[:1] != (rows,):
        return None  # without a row for each sample, or called several times
    if any(part.shape[1:] != calls[0].shape[1:] for part in parts) or sum(len(part) for part in parts) != rows:
        return None  # padded to another length
    return torch.cat(list(parts))[list(order)]


def _positions(samples: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]]) -> list[int] | None:
    """Return where each sample of the reference is among those of the other, or None if they are not the same."""
    first = [row for rank in samples for row in rank]
    second = [row for rank in others for row in rank]
    if Counter(first) != Counter(second):
        return None
    places: dict[Any, list[int]] = {}
    for place, row in enumerate(second):
        places.setdefault(row, []).append(place)
    return [places[row].pop(0) for row in first]
