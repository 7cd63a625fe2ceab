"""Judge runs that split the batch, among microbatches or ranks: they must agree up to the rounding of float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer.verification.compare import TOLERANCE, Deviation, deviation
from composer.verification.findings import Finding

__all__ = ["judge_ranks", "judge_split"]

Steps = Mapping[str, Any]
Tensors = Mapping[str, Any]

_TOTAL = "loss/train/total"


def judge_split(check: str, exact: Steps, other: Steps, tensors: Tensors, others: Tensors) -> Finding:
    """Judge a run in exact mode that splits the batches in another way.

    The rule: the loss and every gradient of the first step deviate by no more than a relative 1e-6, in float64, and the
    change of every parameter after the last step by no more than 1e-4.

    Args:
        check: Name of the check.
        exact: The steps of the reference run in exact mode.
        other: The steps of the other.
        tensors: The tensors that the reference recorded.
        others: Those of the other.
    """
    first = tensors["first"], others["first"]
    mixing = _first_mixing_module(*first)
    loss = _loss_ratio(exact, other)
    gradients = deviation(first[0]["gradients"], first[1]["gradients"])
    if mixing is not None:
        summary = f"the outputs of {mixing} for a sample depend on the rest of the batch"
        return Finding(check, "expected", summary, "samples_interact", mixing, f"step 0, outputs of {mixing}")
    if gradients is None and abs(loss - 1) <= TOLERANCE:
        end = deviation(_updates(tensors), _updates(others), tolerance=100 * TOLERANCE)
        if end is None:
            return Finding(check, "passed", f"loss, gradients and updates agree within {TOLERANCE:g} in float64")
        where = f"step 1 or later, parameter {end.name} (relative {end.relative:.2g})"
        return Finding(check, "failed", "the parameters differ after some steps", "unknown", end.name, where)
    if gradients is None:
        where, evidence = (
            f"step 0, loss ({loss:.6g} times as large)",
            "the gradients agree; only the logged loss differs",
        )
        return Finding(check, "failed", "the loss differs", "loss_scale", "loss", where, (evidence,), loss)
    return _of_gradients(check, loss, gradients)


def _of_gradients(check: str, loss: float, gradients: Deviation) -> Finding:
    """Judge gradients that deviate."""
    where = f"step 0, gradient of {gradients.name} (relative {gradients.relative:.2g})"
    factor = gradients.factor
    evidence = [f"the outputs of all modules agree; the loss is {loss:.6g} times as large"]
    if factor is not None:
        evidence.append(f"every gradient is {factor:.6g} times as large")
        cause = "loss_scale"
    elif abs(loss - 1) > TOLERANCE:
        cause = "ragged_mean"
    else:
        cause = "loss_scale"
        evidence.append("the loss agrees, but some gradients do not: a hook or method changes them")
    return Finding(check, "failed", "the gradients differ", cause, gradients.name, where, tuple(evidence), factor)


def _loss_ratio(exact: Steps, other: Steps) -> float:
    """Return the loss of the first step relative to that of the reference."""
    a, b = (float.fromhex(steps["steps"][0]["loss"][_TOTAL]) for steps in (exact, other))
    return b / a if a else (1.0 if b == 0 else float("inf"))


def _updates(tensors: Tensors) -> dict[str, Tensor]:
    """Return how much training changed each parameter."""
    return {name: value - tensors["first"]["before"][name] for name, value in tensors["parameters"].items()}


def _first_mixing_module(tensors: Tensors, others: Tensors) -> str | None:
    """Return the first module whose outputs, sample for sample, differ; None if there is none that can be compared."""
    order = _positions(tensors["samples"], others["samples"])
    if order is None:
        return None
    rows = len(order)
    expected = tensors["outputs"][0]
    for name, calls in expected.items():
        parts = [part for rank in others["outputs"] for part in rank.get(name, [])]
        if len(calls) != 1 or not parts or any(part.ndim == 0 for part in parts) or calls[0].shape[:1] != (rows,):
            continue  # without a row for each sample, or called several times
        if any(part.shape[1:] != calls[0].shape[1:] for part in parts) or sum(len(part) for part in parts) != rows:
            continue  # padded to another length
        found = torch.cat(parts)[order]
        if deviation({name: calls[0]}, {name: found}) is not None:
            return name or "the model"
    return None


def _positions(samples: Sequence[Sequence[str]], others: Sequence[Sequence[str]]) -> list[int] | None:
    """Return where each sample of the reference is among those of the other, or None if they are not the same."""
    first = [row for rank in samples for row in rank]
    second = [row for rank in others for row in rank]
    if Counter(first) != Counter(second):
        return None
    places: dict[str, list[int]] = {}
    for place, row in enumerate(second):
        places.setdefault(row, []).append(place)
    return [places[row].pop(0) for row in first]


def judge_ranks(
    check: str, exact: Steps, other: Steps, tensors: Tensors, others: Tensors, facts: Mapping[str, Any]
) -> Finding:
    """Judge a run in exact mode on several ranks.

    Args:
        check: Name of the check.
        exact: The steps of the reference run in exact mode.
        other: The steps of the run on several ranks.
        tensors: The tensors that the reference recorded.
        others: Those of the other.
        facts: What the reference found out.
    """
    known = {row for step in exact["steps"] for rank in step["samples"] for row in rank}
    for one, step in zip(exact["steps"], other["steps"], strict=False):
        different = _judge_samples(check, one, step, known, facts)
        if different is not None:
            return different
        same = _same_random_state(step, facts)
        if same is not None:
            return Finding(
                check, "failed", "the ranks sample the same random numbers", "same_random_numbers_on_ranks", same,
                f"step {step['step']}, random state before {same}",
            )  # fmt: skip
        if step["ranks differ"]:
            name = step["ranks differ"][0]
            return Finding(
                check, "failed", "the ranks have different parameters", "ranks_diverge", name,
                f"step {step['step']}, parameters of {name}",
            )  # fmt: skip
    return judge_split(check, exact, other, tensors, others)


def _judge_samples(
    check: str, one: Mapping[str, Any], step: Mapping[str, Any], known: set[str], facts: Mapping[str, Any]
) -> Finding | None:
    """Judge which samples the ranks train on in a step; return None if these are the ones of the reference.

    Args:
        check: Name of the check.
        one: The step of the reference.
        step: The step of the run on several ranks.
        known: All samples that the reference trains on.
        facts: What is known of the run.
    """
    expected = Counter(row for rank in one["samples"] for row in rank)
    found = Counter(row for rank in step["samples"] for row in rank)
    if found == expected:
        return None
    name, where = ", ".join(facts["data_names"]) or "the data", f"step {step['step']}, samples"
    new = [row for row in found if row not in known]
    if facts["data"]["random"]:
        return Finding(check, "expected", "random augmentation differs on each rank", "random_in_data", name, where)
    common = set(step["samples"][0]).intersection(*step["samples"][1:])
    repeated = sum(times - 1 for times in found.values()) - sum(times - 1 for times in expected.values())
    if facts["data"]["own random numbers"] or facts["data"]["changed by a fetch"]:
        cause = "rank_randomness"
    else:
        cause = "repeated_samples" if common or repeated > 0 else "lost_samples"
    evidence = (f"{len(common)} samples are on every rank", f"{len(new)} samples are none of those of one process")
    return Finding(check, "failed", "the ranks together train on other samples", cause, name, where, evidence)


def _same_random_state(step: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return the first module that samples random numbers with the same random state on all ranks."""
    ranks: Sequence[Mapping[str, str]] = step["random states"]
    for name in facts["random_modules"]:
        states = {rank.get(name) for rank in ranks}
        if len(ranks) > 1 and len(states) == 1 and None not in states:
            return name or "the model"
    return None
