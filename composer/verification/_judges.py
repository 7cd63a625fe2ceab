"""Judge every check: choose the rule, and collect what the reference run found out by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer.trials import Record, Trial
from composer.verification._judge_compiled import judge_compiled
from composer.verification._judge_exact import judge_effect, judge_resumed, judge_same, judge_workers
from composer.verification._judge_precision import judge_precision
from composer.verification._judge_reload import judge_reloaded
from composer.verification._judge_split import judge_random, judge_ranks, judge_split
from composer.verification.compare import Runs, first_difference
from composer.verification.findings import Finding
from composer.verification.objects import shortened
from composer.verification.snapshot import display

__all__ = ["explain", "judge", "reference_findings"]

# Part of the error for data that each rank reads by itself.
_SAME_RANKS = "Resume with the same number of ranks"
# What became of a run that did not complete, and the remedy if it is not that of the cause.
_OUTCOMES = {
    "failed": ("the run fails", ""),
    "killed": ("the run is killed", "Look for the reason in the log of the system, such as too little memory."),
    "out_of_memory": (
        "the run is out of memory",
        "Verify a smaller model or smaller batches, or with parallel=1.",
    ),
    "timed_out": (
        "the run does not end within the time limit",
        "Increase time_limit (--time-limit), or make the program start faster.",
    ),
}
# Checks whose runs split the batch, and causes that wrong data explains.
_SPLITTING = frozenset({"microbatch", "ddp", "fsdp", "tp", "resume_ranks"})
_OF_DATA = frozenset(
    {"worker_randomness", "rank_randomness", "random_in_data", "order_of_workers"}
    | {"dataset_modified", "lost_samples", "repeated_samples"}
)
# What runs in evaluation mode in exact mode, by cause.
_LEFT_OUT = {
    "batch_statistics": "batch normalization runs",
    "random_in_model": "modules that sample random numbers run",
}


def judge(check: str, trial: Trial, records: Runs, facts: Mapping[str, Any]) -> Finding:
    """Return what a check found.

    Args:
        check: Name of the check.
        trial: Its trial.
        records: The records of all trials.
        facts: What the reference trial found out.
    """
    label, record = "reload" if check == "reload" else trial.name, records[trial.name]
    for name in trial.after:
        if not records[name].is_completed and name.startswith("exact"):
            summary = f"the program fails in float64, in which runs are compared; {records[name].error}"
            return Finding(label, "undecided", summary)
        if not records[name].is_completed:
            return _failed(label, records[name])
    if check == "resume_ranks" and _SAME_RANKS in record.error:
        return Finding(label, "skipped", "the data resumes on the same number of ranks only")
    if check == "reload" and not record.is_completed:
        return Finding(label, "skipped", "the run does not resume, see the check resume")
    if not record.is_completed:
        return _failed(label, record, "resume_fails" if check.startswith("resume") else "trial_failed")
    found = _judge(check, trial, records, facts)
    same = records.get("same")
    if found.status != "passed" and check not in ("same", "data") and same is not None and same.is_completed:
        again = first_difference(records.steps("reference")["steps"], records.steps("same")["steps"])
        if again is not None:
            return Finding(label, "undecided", f"two equal runs differ already, at {again}")
    return found


def _judge(check: str, trial: Trial, records: Runs, facts: Mapping[str, Any]) -> Finding:
    """Return what a check found, of trials that completed."""
    label = "reload" if check == "reload" else trial.name
    reference, steps = records.steps("reference"), records.steps(trial.name)
    if check == "same":
        tensors = records.tensors("reference"), records.tensors(label)
        return judge_same(label, reference, steps, tensors, facts)
    if check == "data":
        return _judge_data(facts["data"], facts)
    if check == "resume":
        return judge_resumed(label, reference, records.steps("same"), steps, facts)
    if check == "reload":
        return judge_reloaded(label, records.steps("same"), steps, facts["classes"])
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
        without = records.steps(trial.after[-1])
        return judge_effect(label, "method_not_neutral", without, steps, [label.partition("-")[2]])
    if check == "precision":
        tensors = records.tensors("reference"), records.tensors(label)
        return judge_precision(label, reference, steps, tensors, facts)
    if check == "random":
        return judge_random(label, steps, facts)
    exact = next(name for name in trial.after if name.startswith("exact"))
    tensors, others = records.tensors(exact), records.tensors(label)
    facts = {**facts, "changes": _united(facts["changes"], steps["changes"])}
    if check == "microbatch":
        return judge_split(label, records.steps(exact), steps, tensors, others, facts)
    if check == "compile":
        return judge_compiled(label, tensors, others)
    expected = records.steps(exact)
    if check == "resume_ranks":
        start = steps["steps"][0]["step"]
        expected = {**expected, "steps": [step for step in expected["steps"] if step["step"] >= start]}
        tensors = {**tensors, "first": tensors["later"]}
    return judge_ranks(label, expected, steps, tensors, others, facts)


def _united(one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return what each object changes in one run or the other."""
    return {name: sorted({*one.get(name, ()), *other.get(name, ())}) for name in (*one, *other)}


def _changed_by_evaluation(steps: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return what evaluation changes, with the classes of modules."""
    found: list[str] = []
    for name in steps["changes"].get("evaluation", []):
        module = name.partition(": ")[0].removeprefix("module ")
        of = f" ({facts['classes'][module]})" if name.startswith("module ") and module in facts["classes"] else ""
        found.append(f"{display(name) or 'the random state'}{of}")
    return shortened(found)


def _changed_by_logging(steps: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return the loggers of the program, and the callbacks that change more with loggers than without."""
    more = [name for name, changed in steps["changes"].items() if set(changed) - set(facts["changes"].get(name, ()))]
    return list(dict.fromkeys([*facts["loggers"], *more]))


def _judge_data(data: Mapping[str, Any], facts: Mapping[str, Any]) -> Finding:
    """Judge the order of the samples, and whether training or a fetch modifies the data."""
    names = ", ".join(facts["data_names"])
    for cause, name, problem in data["order"]:
        if cause != "drawn_with_repeats":
            advice = f"Yield every index once in an epoch from __iter__ of {name}, or use DataLoader(shuffle=True)."
            return Finding("data", "failed", problem, cause, name, advice=advice)
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
    for cause, name, problem in data["order"]:
        return Finding("data", "expected", problem, cause, name)
    if not data["rows"]:
        return Finding("data", "skipped", "the data has no samples by index")
    return Finding("data", "passed", f"{data['rows']} samples are the same before and after training")


def explain(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in which what one check finds out about the loss, the batches or resuming explains the others.

    Args:
        findings: The findings of all checks.
    """
    mixing = next((f for f in findings if f.cause == "samples_interact" and f.name == "the loss"), None)
    mixing = next((f for f in findings if f.cause == "state_per_microbatch"), mixing)
    resumed = next((f for f in findings if f.status == "failed" and f.check == "resume"), None)
    wrong = next((f for f in findings if f.cause in ("wrong_split", "wrong_sample_count")), None)
    data = next((f for f in findings if f.status == "failed" and f.check == "data"), None)
    explained: list[Finding] = []
    for finding in findings:
        told = finding.status in ("failed", "expected")
        if data is not None and told and finding.check != "data" and finding.cause in _OF_DATA:
            finding = Finding(finding.check, "skipped", f"the check data tells why it differs: {data.cause}")
        if wrong is not None and told and finding.check.partition("-")[0] in _SPLITTING:
            finding = Finding(finding.check, "skipped", f"the batches are wrong: {wrong.cause}")
        if mixing is not None and finding.cause == "ragged_mean":
            finding = dataclasses.replace(
                finding, status=mixing.status, summary=mixing.summary, cause=mixing.cause, name=mixing.name, advice=""
            )
        if resumed is not None and finding.check == "resume_ranks" and finding.cause != resumed.cause:
            summary = f"the run resumes wrongly on one rank too: {resumed.cause}"
            finding = Finding(finding.check, "skipped", summary)
        explained.append(finding)
    return explained


def _failed(label: str, record: Record, cause: str = "trial_failed") -> Finding:
    """Return the finding of a trial that did not complete."""
    summary, advice = _OUTCOMES[record.outcome]
    details = "\n".join(record.details.splitlines()[-6:])
    return Finding(label, "failed", summary, cause, record.error, evidence=(details,) if details else (), advice=advice)


def reference_findings(facts: Mapping[str, Any], reference: Mapping[str, Any], *, split: bool) -> Iterator[Finding]:
    """Yield what the reference run found out about batches and random numbers.

    Args:
        facts: The facts.
        reference: The steps of the reference run.
        split: Whether other runs split the batch.
    """
    for name, problem in facts["split"]:
        cause = "wrong_sample_count" if name.startswith("get_num_samples") else "wrong_split"
        verb = "counted" if cause == "wrong_sample_count" else "split"
        yield Finding("batches", "failed", f"a batch is {verb} wrong", cause, name, "step 0, batch", (problem,))
    repeated = _repeated(facts, reference)
    if repeated is not None:
        where = f"steps 0 and 1, random state after {repeated}"
        label = f"{repeated} ({facts['classes'].get(repeated, 'the model')})"
        summary = "two steps sample the same"
        yield Finding("random numbers", "failed", summary, "repeated_random_numbers", label, where)
    if not split:
        return
    for kind, cause in (("statistics_modules", "batch_statistics"), ("random_modules", "random_in_model")):
        summary = f"{_LEFT_OUT[cause]} in evaluation mode where runs split the batch"
        for name in facts[kind]:
            yield Finding("microbatch", "expected", summary, cause, name or "the model")


def _repeated(facts: Mapping[str, Any], reference: Mapping[str, Any]) -> str | None:
    """Return the first module that has the same random state before it in two steps."""
    one, other = (step["random states"][0] for step in reference["steps"][:2])
    for name in facts["random_modules"]:
        if any(other.get(name, {}).get(key) == value for key, value in one.get(name, {}).items()):
            return name or "the model"
    return None
