"""Judge runs that must be equal bit for bit: find the cause of the first difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from composer.verification.code_facts import uses_clock
from composer.verification.compare import Difference, first_difference
from composer.verification.findings import Finding
from composer.verification.snapshot import differences

__all__ = ["judge_effect", "judge_resumed", "judge_same", "judge_workers"]

Steps = Mapping[str, Any]

# Roles of objects that can cause a difference in a stage, the most likely first.
_ROLES: dict[str, tuple[str, ...]] = {
    "samples": ("data", "callback", "algorithm"),
    "batch": ("algorithm", "callback", "data"),
    "outputs": ("module", "algorithm", "callback"),
    "loss": ("module", "algorithm", "callback"),
    "gradients": ("module", "algorithm", "callback"),
    "learning rate": ("schedule", "callback", "algorithm", "optimizer"),
    "parameters": ("optimizer", "callback", "algorithm", "schedule", "module"),
    "buffers": ("module", "callback", "algorithm"),
    "optimizer": ("optimizer", "callback", "algorithm"),
    "steps": ("data", "callback", "algorithm", "schedule"),
}
_UNSAVED = {
    "module": "unsaved_module_state",
    "callback": "unsaved_callback_state",
    "algorithm": "unsaved_algorithm_state",
    "optimizer": "unsaved_optimizer_state",
    "schedule": "unsaved_schedule_state",
    "data": "unsaved_data_state",
}
_GENERATORS = ("Generator", "Random", "RandomState")


def judge_same(check: str, reference: Steps, again: Steps, facts: Mapping[str, Any]) -> Finding:
    """Judge the same run again.

    Args:
        check: Name of the check.
        reference: The steps of the reference run.
        again: The steps of the other, which also notes what each callback changes.
        facts: What the reference found out.
    """
    equal = f"{len(reference['steps'])} steps are equal bit for bit"
    initial = next((n for n, v in reference["initial"].items() if again["initial"].get(n) != v), None)
    if initial is not None:
        return Finding(
            check, "failed", "the initial weights differ", "unseeded_randomness", initial, f"before step 0, {initial}"
        )
    found = first_difference(reference["steps"], again["steps"])
    if found is None:
        return Finding(check, "passed", equal)
    suspects: Mapping[str, Sequence[str]] = facts.get("suspects", {})
    roles = _ROLES[found.stage]
    named = [name for role in roles for name in suspects if name.startswith(f"{role} ")]
    name = found.name or (named[0] if named else found.stage)
    if found.stage == "outputs" and f"module {found.name}" in suspects:
        named = [f"module {found.name}", *named]
    used = list(suspects.get(named[0], ())) if named else []
    evidence = [f"{named[0]} uses {', '.join(used)}"] if used else []
    cause = _cause_of_noise(found, reference["steps"], again["steps"], used)
    if named and found.stage != "outputs":
        name = named[0]
    return Finding(check, "failed", "two equal runs differ", cause, name, str(found), tuple(evidence))


def _cause_of_noise(found: Difference, one: Sequence[Any], other: Sequence[Any], used: list[str]) -> str:
    """Return the cause of a difference between equal runs."""
    if uses_clock(used):
        return "time_dependent"
    if found.stage == "samples":
        seen = [{row for step in steps for rank in step["samples"] for row in rank} for steps in (one, other)]
        common = len(seen[0] & seen[1]) / max(len(seen[0]), 1)
        return "data_order" if common > 0.2 or "another order" in found.amount else "unseeded_randomness"
    if found.stage == "learning rate":
        return "time_dependent"
    index = next((i for i, step in enumerate(one) if step["step"] == found.step), 0)
    if one[index]["random state"] != other[index]["random state"]:
        return "unseeded_randomness"
    if found.stage in ("outputs", "loss", "gradients") and not {"urandom", "Random", "default_rng"} & set(used):
        return "nondeterministic_operation"
    return "unseeded_randomness"


def judge_resumed(check: str, reference: Steps, resumed: Steps, facts: Mapping[str, Any]) -> Finding:
    """Judge a run that was killed and resumed.

    Args:
        check: Name of the check.
        reference: The steps of the run that was not interrupted.
        resumed: The steps after the resumption.
        facts: What the reference found out.
    """
    start = resumed["steps"][0]["step"] if resumed["steps"] else 0
    rest = [step for step in reference["steps"] if step["step"] >= start]
    found = first_difference(rest, resumed["steps"])
    changed = differences(reference["snapshots"].get("saved", {}), resumed["snapshots"].get("resumed", {}))
    if found is None:
        return Finding(check, "passed", f"{len(rest)} steps after step {start} are equal bit for bit")
    cause, name, evidence = _unsaved(found, changed, reference["snapshots"].get("saved", {}))
    if name.startswith("data ") or cause == "unsaved_data_state":
        name = f"{name} ({', '.join(facts['data_names'])})" if facts["data_names"] else name
    summary = "the resumed run differs from the uninterrupted one"
    return Finding(check, "failed", summary, cause, name, str(found), evidence)


def _unsaved(found: Difference, changed: Sequence[str], saved: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Return the cause, the name of the state that was not restored, and the evidence."""
    for role in _ROLES[found.stage]:
        of_role = [name for name in changed if name.startswith(f"{role} ")]
        if not of_role:
            continue
        if found.name:  # the module itself, before others
            of_role.sort(key=lambda name: not name.startswith(f"module {found.name}: "))
        of_role.sort(key=lambda name: _type_of(name, saved) not in _GENERATORS)
        first = of_role[0]
        attribute = first.partition(": ")[2]
        evidence = tuple(f"after resuming, {name} differs" for name in of_role[:5])
        if _type_of(first, saved) in _GENERATORS:
            return "unsaved_generator", first, evidence
        if role == "module" and attribute.startswith("parameter "):
            return "checkpoint_not_stable", first, evidence
        return _UNSAVED[role], first, evidence
    if changed:
        evidence = tuple(f"after resuming, {name} differs" for name in changed[:5])
        return _UNSAVED[changed[0].partition(" ")[0]], changed[0], evidence
    if found.stage == "samples":
        return "unsaved_data_state", found.name or "no state that differs was found in the data's objects", ()
    return "unknown", found.name or found.stage, ()


def _type_of(name: str, saved: Mapping[str, Any]) -> str:
    """Return the type of an attribute in a snapshot."""
    owner, _, attribute = name.partition(": ")
    return saved.get(owner, {}).get(attribute, "").partition(":")[0]


def judge_effect(check: str, cause: str, reference: Steps, other: Steps, names: Sequence[str] = ()) -> Finding:
    """Judge a run with something switched on or off that must not matter.

    Args:
        check: Name of the check.
        cause: The cause if it matters.
        reference: The steps of the reference run.
        other: The steps of the other.
        names: What is known to change the training.
    """
    found = first_difference(reference["steps"], other["steps"])
    if found is None:
        return Finding(check, "passed", f"{len(other['steps'])} steps are equal bit for bit")
    evidence = tuple(f"{name} changes {', '.join(changed)}" for name, changed in _changes(reference, other, names))
    return Finding(check, "failed", "the training differs", cause, ", ".join(names), str(found), evidence)


def _changes(reference: Steps, other: Steps, names: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    noted: Mapping[str, Sequence[str]] = {**reference["changes"], **other["changes"]}
    return [(name, noted[name]) for name in names if name in noted]


def judge_workers(check: str, reference: Steps, other: Steps, facts: Mapping[str, Any]) -> Finding:
    """Judge a run with another number of data workers.

    Args:
        check: Name of the check.
        reference: The steps of the reference run.
        other: The steps of the other.
        facts: What the reference found out.
    """
    found = first_difference(reference["steps"], other["steps"])
    if found is None:
        return Finding(check, "passed", f"{len(other['steps'])} steps are equal bit for bit")
    name = ", ".join(facts["data_names"]) or found.name or found.stage
    if facts["data"]["random"] and found.stage in ("samples", "batch"):
        summary = "random augmentation differs with the number of workers"
        return Finding(check, "expected", summary, "random_in_data", name, str(found))
    cause = "worker_randomness" if found.stage in ("samples", "batch", "steps") else "unknown"
    one, more = _rows(reference), _rows(other)
    if cause == "worker_randomness" and any(times > one[row] > 0 for row, times in more.items()):
        cause = "repeated_samples"  # each worker yields all of an iterable data set
    return Finding(check, "failed", "the training differs", cause, name, str(found))


def _rows(steps: Steps) -> Counter[str]:
    """Return how often each sample is trained on in the first epoch."""
    first = steps["steps"][: max(len(steps["steps"]) // 2, 1)]
    return Counter(row for step in first for rank in step["samples"] for row in rank)
