"""Compare the records of two trials: the first step, stage and name that differ, and by how much."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer.trials.trial import Record

__all__ = [
    "STEPS_FILE",
    "TENSORS_FILE",
    "TOLERANCE",
    "UPDATE_TOLERANCE",
    "Deviation",
    "Difference",
    "Runs",
    "deviation",
    "first_difference",
    "steps_of",
    "tensors_of",
    "updates",
]

# What a trial records in its folder.
STEPS_FILE = "steps.json"
TENSORS_FILE = "tensors.pt"

# In float64 rounding is about 1e-16 an operation; models that compute parts in float32 are off by 1e-7.
TOLERANCE = 1e-6
# Differences that are smaller relative to all tensors together, and gradients that are, count as rounding: the true
# gradient of a bias of keys is zero, and what is computed of it has no digit that is right.
ROUNDING = 1e-8
# Optimizers such as Adam divide by small numbers, which enlarges the rounding.
UPDATE_TOLERANCE = 1e-4

# The stages of a step in the order in which one causes the next.
STAGES = ("samples", "batch", "outputs", "loss", "gradients", "learning rate", "parameters", "buffers", "optimizer")
# How the name of a part of a stage is introduced, if not by "of".
_STAGE_OF = {
    "loss": "",
    "gradients": "gradient of",
    "parameters": "parameter",
    "buffers": "buffer",
    "optimizer": "optimizer state",
}


@dataclass(frozen=True)
class Difference:
    """The first difference between two runs.

    Args:
        step: Number of the step, from 0.
        stage: The stage of the step.
        name: The first module, tensor or metric that differs, in forward order; empty if the stage has no names.
        amount: By how much, in words; empty if unknown.

    >>> str(Difference(3, "outputs", "encoder.0"))
    'step 3, outputs of encoder.0'
    """

    step: int
    stage: str
    name: str = ""
    amount: str = ""

    def __str__(self) -> str:
        what = f"{_STAGE_OF.get(self.stage, f'{self.stage} of')} {self.name}" if self.name else self.stage
        return f"step {self.step}, {what.strip()}" + (f" ({self.amount})" if self.amount else "")


def steps_of(record: Record) -> dict[str, Any]:
    """Return what a trial recorded of its steps.

    Args:
        record: The record of the trial.

    >>> _ = (tmp_path / STEPS_FILE).write_text('{"steps": []}')
    >>> steps_of(Record("same", "0f", "completed", 3.0, folder=str(tmp_path)))
    {'steps': []}
    """
    return json.loads((record.path / STEPS_FILE).read_text(encoding="utf-8"))


def tensors_of(record: Record) -> dict[str, Any]:
    """Return the tensors that a trial in exact mode recorded.

    Args:
        record: The record of the trial.

    >>> torch.save({"parameters": {}}, tmp_path / TENSORS_FILE)
    >>> tensors_of(Record("same", "0f", "completed", 3.0, folder=str(tmp_path)))
    {'parameters': {}}
    """
    return torch.load(record.path / TENSORS_FILE, weights_only=True)


class Runs(Mapping[str, Record]):
    """The records of trials by name, each of whose steps are read from the disk once.

    Args:
        records: The records.

    >>> _ = (tmp_path / STEPS_FILE).write_text('{"steps": []}')
    >>> runs = Runs({"same": Record("same", "0f", "completed", 3.0, folder=str(tmp_path))})
    >>> runs.steps("same") is runs.steps("same")
    True
    """

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._steps: dict[str, dict[str, Any]] = {}
        self._tensors: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> Record:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def steps(self, name: str) -> dict[str, Any]:
        """Return what a trial recorded of its steps.

        Args:
            name: Name of the trial.
        """
        if name not in self._steps:
            self._steps[name] = steps_of(self._records[name])
        return self._steps[name]

    def tensors(self, name: str) -> dict[str, Any]:
        """Return the tensors that a trial recorded; those of references are kept, with which others are compared.

        Args:
            name: Name of the trial.
        """
        if name in self._tensors:
            return self._tensors[name]
        found = tensors_of(self._records[name])
        if name == "reference" or name.startswith("exact"):
            self._tensors[name] = found
        return found


def first_difference(expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> Difference | None:
    """Return the first difference between two sequences of steps, or None if they are equal bit for bit.

    Args:
        expected: The steps of one trial.
        found: The same steps of the other.

    >>> step = {"step": 0, "samples": [["a", "b"]], "batch": [], "outputs": [], "loss": {}, "gradients": {}}
    >>> step |= {"learning rate": [], "parameters": {"w": 1}, "buffers": {}, "optimizer": {}}
    >>> first_difference([step], [{**step, "parameters": {"w": 2}}])
    Difference(step=0, stage='parameters', name='w', amount='')
    """
    for one, other in zip(expected, found, strict=False):
        for stage in STAGES:
            if one[stage] != other[stage]:
                return Difference(
                    one["step"], stage, _name(stage, one[stage], other[stage]), _amount(stage, one, other)
                )
    if len(expected) != len(found):
        return Difference(
            len(min(expected, found, key=len)), "steps", "", f"{len(expected)} steps and {len(found)} steps"
        )
    return None


def _name(stage: str, one: Any, other: Any) -> str:
    """Return the name of the first part of a stage that differs."""
    if stage == "outputs":
        pairs = zip(one, other, strict=False)
        return next((a[0] or "the model" for a, b in pairs if a != b), "the model")
    if isinstance(one, dict):
        return next((name for name in one if other.get(name) != one[name]), "") or next(iter(other.keys() - one), "")
    return ""


def _amount(stage: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return by how much a stage differs, where its values are recorded."""
    total = "loss/train/total"
    if stage == "samples":
        a, b = ([row for rank in step["samples"] for row in rank] for step in (one, other))
        same = sum((Counter(a) & Counter(b)).values())
        return "the same samples in another order" if same == len(a) == len(b) else f"{same} of {len(a)} are the same"
    if total not in one["loss"] or total not in other["loss"]:
        return ""
    a, b = (float.fromhex(step["loss"][total]) for step in (one, other))
    return f"{'' if stage == 'loss' else 'loss '}{a:.6g} and {b:.6g}" if a != b else ""


@dataclass(frozen=True)
class Deviation:
    """How far the tensors of one trial are from those of another.

    Args:
        name: The first tensor beyond the tolerance.
        relative: The largest norm of a difference, relative to the norm of the expected tensor.
        factor: The number by which all tensors are multiplied, if that explains the difference; else None, also if it
            is 1 but for the tolerance.

    >>> print(deviation({"w": torch.ones(2)}, {"w": 2 * torch.ones(2)}))
    w (relative difference 1)
    """

    name: str
    relative: float
    factor: float | None

    def __str__(self) -> str:
        return f"{self.name} (relative difference {self.relative:.2g})"


def deviation(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor], tolerance: float = TOLERANCE
) -> Deviation | None:
    """Return how named tensors deviate, or None if none is beyond the tolerance.

    The deviation of a tensor is ``|b - a| / max(|a|, 1e-8 * s)``, with the norm s of all expected tensors together, and
    a difference of no more than ``1e-8 * s`` counts as rounding: so do tensors that are zero but for rounding.

    Args:
        expected: The tensors of one trial.
        found: Those of the other.
        tolerance: The largest deviation that counts as rounding.

    >>> deviation({"w": torch.ones(2)}, {"w": torch.ones(2) + 1e-9}) is None
    True
    """
    scale = sum(float(tensor.double().norm()) ** 2 for tensor in expected.values()) ** 0.5
    first, largest = "", 0.0
    ratios: list[float] = []
    for name, a in expected.items():
        b = found.get(name)
        if b is None or b.shape != a.shape:
            return Deviation(name, float("inf"), None)
        a, b = a.double(), b.double()
        difference = float((b - a).norm())
        relative = difference / max(float(a.norm()), ROUNDING * scale, 1e-300)
        if difference <= ROUNDING * scale:
            relative = min(relative, tolerance)
        if not relative <= tolerance:  # also if it is NaN
            first = first or name
        largest = max(largest, relative) if relative == relative else float("inf")
        if float(a.norm()) > 1e-6 * scale:
            ratio = float((a * b).sum() / (a * a).sum())
            ratios.append(ratio if float((b - ratio * a).norm()) <= tolerance * float(b.norm()) else float("nan"))
    if not first:
        return None
    same = bool(ratios) and all(abs(ratio - ratios[0]) <= 1e-4 * abs(ratios[0]) for ratio in ratios)
    scaled = same and ratios[0] != 0 and abs(ratios[0] - 1) > tolerance
    return Deviation(first, largest, ratios[0] if scaled else None)


def updates(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return how much training changed each parameter since the first recorded step.

    Elements whose first gradient is zero but for rounding, relative to the largest of all parameters, are left out:
    optimizers such as Adam and Lion make steps of full size of them, in the direction of the rounding.

    Args:
        tensors: The tensors that a trial in exact mode recorded.

    >>> first = {"gradients": {"w": torch.ones(2)}, "before": {"w": torch.zeros(2)}}
    >>> updates({"first": first, "parameters": {"w": torch.ones(2)}})
    {'w': tensor([1., 1.])}
    """
    first: Mapping[str, Any] = tensors["first"]
    gradients: Mapping[str, Tensor] = first["gradients"]
    largest = max((float(gradient.abs().max()) for gradient in gradients.values() if gradient.numel()), default=0.0)
    found: dict[str, Tensor] = {}
    for name, value in tensors["parameters"].items():
        gradient = gradients.get(name)
        counts = 1.0 if gradient is None else gradient.abs() > ROUNDING * largest
        found[name] = (value - first["before"][name]) * counts
    return found
