"""Judge every check: choose the rule, and collect what the reference run found out by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer.trials import Record, Trial
from composer.verification._judge_compiled import judge_compiled
from composer.verification._judge_exact import judge_effect, judge_resumed, judge_same, judge_workers
from composer.verification._judge_reload import judge_reloaded
from composer.verification._judge_split import judge_random, judge_ranks, judge_split
from composer.verification.compare import deviation, first_difference, steps_of, tensors_of
from composer.verification.findings import Finding
from composer.verification.snapshot import display

__all__ = ["explain", "judge", "reference_findings"]

# Part of the error for data that each rank reads by itself.
_SAME_RANKS = "Resume with the same number of ranks"
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
    label, record = "reload" if check == "reload" else trial.name, records[trial.name]
    for name in trial.after:
        if not records[name].is_completed and name.startswith("exact"):
            summary = f"the program fails in float64, in which runs are compared: {records[name].error}"
            return Finding(label, "skipped", summary)
        if not records[name].is_completed:
            return _failed(label, records[name])
    if check == "resume_ranks" and _SAME_RANKS in record.error:
        return Finding(label, "skipped", f"the data resumes on the same number of ranks only: {record.error}")
    if check == "reload" and not record.is_completed:
        return Finding(label, "skipped", "the run does not resume, see the check resume")
    if not record.is_completed:
        return _failed(label, record, "resume_fails" if check.startswith("resume") else "trial_failed")
    found = _judge(check, trial, records, facts)
    same = records.get("same")
    if found.status != "passed" and check not in ("same", "data") and same is not None and same.is_completed:
        again = first_difference(steps_of(records["reference"])["steps"], steps_of(same)["steps"])
        if again is not None:
            return Finding(label, "skipped", f"not judged, since two equal runs already differ at {again}")
    return found


def _judge(check: str, trial: Trial, records: Mapping[str, Record], facts: Mapping[str, Any]) -> Finding:
    """Return what a check found, of trials that completed."""
    label, record = "reload" if check == "reload" else trial.name, records[trial.name]
    reference, steps = steps_of(records["reference"]), steps_of(record)
    if check == "same":
        return judge_same(label, reference, steps, (tensors_of(records["reference"]), tensors_of(record)), facts)
    if check == "data":
        return _judge_data(facts["data"], facts)
    if check == "resume":
        return judge_resumed(label, reference, steps_of(records["same"]), steps, facts)
    if check == "reload":
        return judge_reloaded(label, steps_of(records["same"]), steps, facts["classes"])
    if check == "workers":
        return judge_workers(label, reference, steps, facts)
    if check in ("evaluation", "logging"):
        names = _changed_by_evaluation(steps, facts) if check == "evaluation" else _changed_by_logging(steps, facts)
        return judge_effect(label, f"{check}_changes_training", reference, steps, names)
    if check == "callbacks":
        known = facts["changes"]
        names = [name for name in facts["callbacks"] if name in known] or facts["callbacks"]
        return judge_effect(label, "callback_changes_training", {**reference, "changes": known}, steps, names)
    if check == "methods":
        other = steps_of(records[trial.after[-1]])
        return judge_effect(label, "method_not_neutral", other, steps, [label.partition("-")[2]])
    if check == "precision":
        return _judge_precision(label, records["reference"], record)
    if check == "random":
        return judge_random(label, steps, facts)
    exact = records[next(name for name in trial.after if name.startswith("exact"))]
    tensors, others = tensors_of(exact), tensors_of(record)
    facts = {**facts, "changes": {**steps["changes"], **facts["changes"]}}
    if check == "microbatch":
        return judge_split(label, steps_of(exact), steps, tensors, others, facts)
    if check == "compile":
        return judge_compiled(label, tensors, others)
    expected = steps_of(exact)
    if check == "resume_ranks":
        start = steps["steps"][0]["step"]
        expected = {**expected, "steps": [step for step in expected["steps"] if step["step"] >= start]}
        tensors = {**tensors, "first": tensors["later"]}
    return judge_ranks(label, expected, steps, tensors, others, facts)


def _changed_by_evaluation(steps: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return what evaluation changes, with the classes of modules."""
    found: list[str] = []
    for name in steps["changes"].get("evaluation", []):
        module = name.partition(": ")[0].removeprefix("module ")
        of = f" ({facts['classes'][module]})" if name.startswith("module ") and module in facts["classes"] else ""
        found.append(f"{display(name) or 'the random state'}{of}")
    return found


def _changed_by_logging(steps: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return the loggers of the program, and the callbacks that change more with loggers than without."""
    more = [name for name, changed in steps["changes"].items() if set(changed) - set(facts["changes"].get(name, ()))]
    return list(dict.fromkeys([*facts["loggers"], *more]))


def _judge_data(data: Mapping[str, Any], facts: Mapping[str, Any]) -> Finding:
    """Judge the order of the samples, and whether training or a fetch modifies the data."""
    names = ", ".join(facts["data_names"])
    for problem in data["order"]:
        cause = "repeated_samples" if "more than once" in problem else "lost_samples"
        return Finding("data", "failed", problem, cause, problem.split()[0])
    if data["changed by a fetch"]:
        held = ", ".join(data["changed by a fetch"])
        evidence = (f"fetching a sample changes {held} of the data set",)
        return Finding(
            "data", "failed", "samples change when they are fetched", "dataset_modified", names, "", evidence
        )
    if data["modified"]:
        rows = ", ".join(map(str, data["modified"][:5]))
        summary = f"{len(data['modified'])} of {data['rows']} samples have changed in training, such as {rows}"
        evidence = tuple(f"{name} has in-place operations" for name in facts["in_place"])
        return Finding("data", "failed", summary, "dataset_modified", names or "the data", "", evidence)
    return Finding("data", "passed", f"{data['rows']} samples are the same before and after training")


def explain(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in which what one check finds out about the loss explains the others.

    Args:
        findings: The findings of all checks.
    """
    mixing = next((f for f in findings if f.cause == "samples_interact" and f.name == "the loss"), None)
    resumed = next((f for f in findings if f.status == "failed" and f.check == "resume"), None)
    explained: list[Finding] = []
    for finding in findings:
        if mixing is not None and finding.cause == "ragged_mean":
            finding = dataclasses.replace(finding, status=mixing.status, summary=mixing.summary, cause=mixing.cause)
        if resumed is not None and finding.check == "resume_ranks" and finding.cause != resumed.cause:
            summary = f"not judged, since the run resumes wrongly on one rank too ({resumed.cause})"
            finding = Finding(finding.check, "skipped", summary)
        explained.append(finding)
    return explained


def _failed(label: str, record: Record, cause: str = "trial_failed") -> Finding:
    """Return the finding of a trial that did not complete."""
    details = tuple(record.details.splitlines()[-6:])
    return Finding(label, "failed", f"the run {record.outcome}".replace("_", " "), cause, record.error, "", details)


def _judge_precision(label: str, record: Record, other: Record) -> Finding:
    """Compare the losses, and the outputs of the first step, of a low precision with those of fp32."""
    total = "loss/train/total"
    worst = 0.0
    for one, step in zip(steps_of(record)["steps"], steps_of(other)["steps"], strict=False):
        a, b = (float.fromhex(each["loss"][total]) for each in (one, step))
        relative = abs(a - b) / max(abs(b), 1e-12)
        if not relative <= _PRECISION:
            name = _first_imprecise(tensors_of(record), tensors_of(other)) or "the loss"
            where = f"step {one['step']}, loss {a:.6g} and {b:.6g} in fp32"
            return Finding(label, "failed", "the losses differ", "precision_differs", name, where)
        worst = max(worst, relative)
    return Finding(label, "passed", f"the losses are those of fp32 within {worst:.2g}")


def _first_imprecise(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> str | None:
    """Return the first module whose outputs in the first step differ by more than rounding."""
    expected, found = others["first"]["outputs"][0], tensors["first"]["outputs"][0]
    for name, calls in expected.items():
        pairs = zip(calls, found.get(name, []), strict=False)
        if any(deviation({name: a}, {name: b}, _PRECISION) is not None for a, b in pairs):
            return name or "the model"
    return None


def reference_findings(facts: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the reference run found out about batches and random numbers.

    Args:
        facts: The facts.
        reference: The steps of the reference run.
    """
    for problem in facts.get("split", []):
        cause = "wrong_sample_count" if problem.startswith("get_num_samples") else "wrong_split"
        yield Finding("batches", "failed", "batches are not counted or split correctly", cause, problem)
    repeated = _repeated(facts, reference)
    if repeated is not None:
        where = f"steps 0 and 1, random state after {repeated}"
        label = f"{repeated} ({facts['classes'].get(repeated, 'the model')})"
        yield Finding("random numbers", "failed", "they repeat", "repeated_random_numbers", label, where)
    for name in facts["statistics_modules"]:
        yield Finding("microbatch", "expected", "left out where batches are split", "batch_statistics", name)
    for name in facts["random_modules"]:
        name = name or "the model"
        yield Finding("microbatch", "expected", "left out where batches are split", "random_in_model", name)


def _repeated(facts: Mapping[str, Any], reference: Mapping[str, Any]) -> str | None:
    """Return the first module that has the same random state before it in two steps."""
    one, other = (step["random states"][0] for step in reference["steps"][:2])
    for name in facts["random_modules"]:
        if any(other.get(name, {}).get(key) == value for key, value in one.get(name, {}).items()):
            return name or "the model"
    return None
