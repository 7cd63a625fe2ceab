"""Judge the precision of a run: its losses and gradients must be those of fp32, but for rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from composer.verification.compare import deviation
from composer.verification.findings import Finding
from composer.verification.objects import shortened

__all__ = ["judge_precision"]

# Largest relative deviation of the loss, and of the gradient of a parameter, between a low precision and fp32.
_LOSS, _GRADIENT = 0.05, 0.3
# Deviation of the norm alone, where the random numbers of a step may differ with the precision.
_NORM = 0.5
# Parameters with smaller gradients, relative to that of all, are not compared.
_COUNTS = 0.01
_BACKWARD = (
    "Search backward of custom autograd functions, and hooks, for what depends on the dtype; compute in float32 there."
)


def judge_precision(
    check: str,
    reference: Mapping[str, Any],
    full: Mapping[str, Any],
    tensors: tuple[Mapping[str, Any], Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> Finding:
    """Compare the losses, and the outputs and gradients of the first step, of a low precision with those of fp32.

    Args:
        check: Name of the check.
        reference: The steps of the run in its precision.
        full: Those of the run in fp32.
        tensors: The tensors of both, as far as they are kept.
        facts: What is known of the run.
    """
    worst = 0.0
    for one, step in zip(reference["steps"], full["steps"], strict=False):
        a, b = (float.fromhex(each["loss"]["loss/train/total"]) for each in (one, step))
        relative = abs(a - b) / max(abs(b), 1e-12)
        if not relative <= _LOSS:
            name = _first_imprecise(*tensors) or "the loss"
            where = f"step {one['step']}, loss {a:.6g}, and {b:.6g} in fp32"
            summary = f"the loss differs from fp32 by {100 * relative:.2g} %"
            return Finding(check, "failed", summary, "precision_differs", name, where)
        worst = max(worst, relative)
    samples = bool(facts["random_modules"] or facts["random_algorithms"] or facts["data"]["random"])
    wrong = _wrong_gradients(*tensors, samples=samples)
    if not wrong:
        return Finding(check, "passed", f"the losses agree with fp32 within {100 * worst:.2g} %, and the gradients too")
    name, (amount, _) = next(reversed(wrong.items()))  # the last in forward order is the first in backward
    times = {f"{factor:.2g}" for _, factor in wrong.values()}
    summary = f"gradients are {times.pop()} times those of fp32" if len(times) == 1 else "gradients differ from fp32"
    names = ", ".join(shortened(list(wrong), 3))
    evidence = (f"the losses agree within {100 * worst:.2g} %; the gradients of {names} do not",)
    label = ", ".join(shortened(_between(name, tensors[1], facts))) or f"the gradient of {name}"
    where = f"step 0, gradient of {name} (relative difference {amount:.2g})"
    return Finding(check, "failed", summary, "precision_differs", label, where, evidence, advice=_BACKWARD)


def _wrong_gradients(
    tensors: Mapping[str, Any], others: Mapping[str, Any], *, samples: bool
) -> dict[str, tuple[float, float]]:
    """Return by how much the gradients of parameters deviate, and by what factor, of those that do so in forward order.

    Args:
        tensors: The tensors of the run in its precision.
        others: Those of fp32.
        samples: Whether the run samples random numbers.
    """
    expected: Mapping[str, Tensor] = others["first"]["gradients"] if "first" in others else {}
    found: Mapping[str, Tensor] = tensors["first"]["gradients"] if "first" in tensors else {}
    total = sum(float(gradient.double().norm()) ** 2 for gradient in expected.values()) ** 0.5
    wrong: dict[str, tuple[float, float]] = {}
    for name, b in expected.items():
        norm = float(b.double().norm())
        if name not in found or not norm > _COUNTS * total:
            continue
        a = found[name].double()
        ratio = float(a.norm()) / norm
        amount = abs(ratio - 1) if samples else float((a - b.double()).norm()) / norm
        if not amount <= (_NORM if samples else _GRADIENT):
            wrong[name] = amount, ratio
    return wrong


def _between(name: str, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return which modules run between that of a parameter and the next one with parameters, whose gradients agree."""
    order = list(tensors["first"]["outputs"][0])
    module = name.rpartition(".")[0]
    with_parameters = {parameter.rpartition(".")[0] for parameter in tensors["first"]["gradients"]}
    found: list[str] = []
    for later in order[order.index(module) + 1 :] if module in order else []:
        if later in with_parameters:
            break
        if not any(other.startswith(f"{later}.") for other in order) and later:
            found.append(f"{later} ({facts['classes'].get(later, 'the model')})")
    return found


def _first_imprecise(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> str | None:
    """Return the first module whose outputs in the first step differ by more than rounding."""
    if "first" not in tensors or "first" not in others:
        return None
    expected, found = others["first"]["outputs"][0], tensors["first"]["outputs"][0]
    for name, calls in expected.items():
        pairs = zip(calls, found.get(name, []), strict=False)
        if any(deviation({name: a}, {name: b}, _LOSS) is not None for a, b in pairs):
            return name or "the model"
    return None
