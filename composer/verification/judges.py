"""Judge every check: choose the rule, and collect what the reference run found out by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from composer.trials import Record, Trial
from composer.verification.compare import deviation, steps_of, tensors_of
from composer.verification.findings import Finding
from composer.verification.judge_exact import judge_effect, judge_resumed, judge_same, judge_workers
from composer.verification.judge_split import judge_ranks, judge_split

__all__ = ["facts_findings", "judge"]

# Largest relative deviation of the loss between a low precision and fp32.
_PRECISION = 0.05


def judge(check: str, trial: Trial, records: Mapping[str, Record], facts: Mapping[str, Any]) -> Finding:
    """Return what a check found.

    Args:
        check: Name of the check.
        trial: Its trial.
        records: The records of all trials by name.
        facts: What the reference trial found out.
    """
    label = trial.name
    record = records[trial.name]
    for name in trial.after:
        if not records[name].is_completed:
            return _failed(label, records[name])
    if not record.is_completed:
        return _failed(label, record, "resume_fails" if check.startswith("resume") else "trial_failed")
    reference, steps = steps_of(records["reference"]), steps_of(record)
    if check == "same":
        return judge_same(label, reference, steps, facts)
    if check == "resume":
        return judge_resumed(label, reference, steps)
    if check == "workers":
        return judge_workers(label, reference, steps)
    if check in ("evaluation", "logging"):
        return judge_effect(label, f"{check}_changes_training", reference, steps)
    if check == "callbacks":
        noted = steps_of(records["same"])["changes"] if "same" in records else {}
        known = {**reference["changes"], **noted}
        names = [name for name in facts["callbacks"] if name in known] or facts["callbacks"]
        return judge_effect(label, "callback_changes_training", {**reference, "changes": known}, steps, names)
    if check == "precision":
        return _judge_precision(label, reference, steps)
    exact = records[next(name for name in trial.after if name.startswith("exact"))]
    tensors, others = tensors_of(exact), tensors_of(record)
    if check == "microbatch":
        return judge_split(label, steps_of(exact), steps, tensors, others)
    if check == "compile":
        found = deviation(tensors["gradients"], others["gradients"])
        if found is None:
            return Finding(label, "passed", "the gradients agree in float64")
        where = f"step 0, gradient of {found.name} (relative {found.relative:.2g})"
        return Finding(label, "failed", "the compiled model differs", "compile_differs", found.name, where)
    if check == "resume_ranks":
        start = steps["steps"][0]["step"]
        rest = {**steps_of(exact), "steps": [step for step in steps_of(exact)["steps"] if step["step"] >= start]}
        return judge_ranks(label, rest, steps, _from(tensors, others), others, facts)
    return judge_ranks(label, steps_of(exact), steps, tensors, others, facts)


def _from(tensors: Mapping[str, Any], resumed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of the reference for a run that was resumed: gradients of its first step are not recorded."""
    return {**tensors, "gradients": resumed["gradients"], "outputs": [{}], "initial": resumed["initial"]}


def _failed(label: str, record: Record, cause: str = "trial_failed") -> Finding:
    """Return the finding of a trial that did not complete."""
    details = tuple(record.details.splitlines()[-6:])
    return Finding(label, "failed", f"the run {record.outcome}".replace("_", " "), cause, record.error, "", details)


def _judge_precision(label: str, reference: Mapping[str, Any], steps: Mapping[str, Any]) -> Finding:
    """Compare the losses of a low precision with those of fp32."""
    total = "loss/train/total"
    worst = 0.0
    for one, other in zip(reference["steps"], steps["steps"], strict=False):
        a, b = (float.fromhex(step["loss"][total]) for step in (one, other))
        relative = abs(a - b) / max(abs(b), 1e-12)
        if not relative <= _PRECISION:
            where = f"step {one['step']}, loss {a:.6g} and {b:.6g} in fp32"
            return Finding(label, "failed", "the losses differ", "precision_differs", "the loss", where)
        worst = max(worst, relative)
    return Finding(label, "passed", f"the losses are those of fp32 within {worst:.2g}")


def facts_findings(facts: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the reference run found out about the data and the random numbers.

    Args:
        facts: The facts.
        reference: The steps of the reference run.
    """
    for problem in facts.get("split", []):
        cause = "wrong_sample_count" if problem.startswith("get_num_samples") else "wrong_split"
        yield Finding("data", "failed", "batches are not counted or split correctly", cause, problem)
    modified = facts["data"]["modified"]
    if modified:
        rows = ", ".join(map(str, modified[:5]))
        name = f"{len(modified)} of the first {facts['data']['rows']} samples, such as {rows}"
        yield Finding("data", "failed", "samples have changed in training", "dataset_modified", name)
    elif not facts.get("split"):
        yield Finding("data", "passed", f"{facts['data']['rows']} samples are the same before and after training")
    repeated = _repeated(facts, reference)
    if repeated is not None:
        where = f"steps 0 and 1, random state before {repeated}"
        yield Finding("random numbers", "failed", "they repeat", "repeated_random_numbers", repeated, where)
    for name in facts["statistics_modules"]:
        summary = "left out where batches are split"
        yield Finding("microbatch", "expected", summary, "batch_statistics", name)
    for name in facts["random_modules"]:
        yield Finding("microbatch", "expected", "left out where batches are split", "random_in_model", name or "the model")


def _repeated(facts: Mapping[str, Any], reference: Mapping[str, Any]) -> str | None:
    """Return the first module that has the same random state before it in two steps."""
    one, other = reference["steps"][:2]
    for name in facts["random_modules"]:
        first, second = one["random states"][0].get(name), other["random states"][0].get(name)
        if first is not None and first == second:
            return name or "the model"
    return None
