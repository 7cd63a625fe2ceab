"""Judge runs that must be equal bit for bit: find the cause of the first difference."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from composer.trials.trial import Record
from composer.verification._judge_reload import judge_reloaded, judge_saving
from composer.verification._judge_split import SHARD_STREAM
from composer.verification.code_facts import uses_clock
from composer.verification.compare import Difference, first_difference, steps_of
from composer.verification.findings import Finding
from composer.verification.objects import shortened
from composer.verification.snapshot import differences, display, is_global

__all__ = ["HASHES_MAY_CAUSE", "judge_effect", "judge_hashes", "judge_resumed", "judge_same", "judge_workers"]

Steps = Mapping[str, Any]
Tensors = Mapping[str, Any]

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
# Largest relative difference that another order of additions makes in float32.
_ROUNDING = 1e-5
_GENERATORS = ("Generator", "Random", "RandomState")
# What a callback changes on purpose: the weights of a teacher, statistics, or a schedule. Gradients and the parameters
# that are trained are changed by monitors as well, by mistake.
_ON_PURPOSE = frozenset({"frozen parameters", "buffers", "learning rate"})
# The remedy for requires_grad, which no checkpoint saves.
_FREEZE = "Set requires_grad in each batch_start as a function of state.timestamp.batch, so that resumed runs do too."
HASHES_MAY_CAUSE = frozenset({"data_order", "unseeded_randomness", "time_dependent"})
"""Causes that :func:`judge_same` names where another order of a set may be the cause: the difference looks the same."""
# What differs, by the check of :func:`judge_effect`.
_EFFECTS = {
    "evaluation": "training with and without evaluation differs",
    "logging": "training with and without loggers, the progress bar and monitors differs",
    "callbacks": "training with and without the callbacks differs",
    "without": "training with and without a method that is neutral as it is differs",
    "neutral": "training with the method at its neutral setting and without it differs",
}


def judge_same(
    check: str, reference: Steps, again: Steps, tensors: tuple[Tensors, Tensors], facts: Mapping[str, Any]
) -> Finding:
    """Judge the same run again.

    Args:
        check: Name of the check.
        reference: The steps of the reference run.
        again: The steps of the other, which also notes what each callback changes.
        tensors: The tensors of both, as far as they are kept.
        facts: What the reference found out.
    """
    initial = next((n for n, v in reference["initial"].items() if again["initial"].get(n) != v), None)
    if initial is not None:
        where, cause = f"before step 0, parameter {initial}", "unseeded_randomness"
        evidence: tuple[str, ...] = ()
        if sorted(reference["initial"].values()) == sorted(again["initial"].values()):
            cause, evidence = "order_by_hash", ("both runs have the same weights, in another order",)
        return Finding(check, "failed", "the initial weights differ", cause, initial, where, evidence)
    found = first_difference(reference["steps"], again["steps"])
    if found is None:
        return Finding(check, "passed", f"{len(reference['steps'])} steps are equal bit for bit")
    if reference["groups"] != again["groups"] and sorted(reference["groups"]) == sorted(again["groups"]):
        first = next(i for i, one in enumerate(reference["groups"]) if one != again["groups"][i])
        one, other = (", ".join(shortened(each["groups"][first], 2)) for each in (reference, again))
        evidence = (f"group {first} has {one} in one run, and {other} in the other",)
        name = "the parameter groups of the optimizer"
        return Finding(check, "failed", "two equal runs differ", "order_by_hash", name, str(found), evidence)
    if found.step == again["saved"]:
        return judge_saving(check, found, again["changes"], facts["own_states"])
    suspects: Mapping[str, Sequence[str]] = facts["suspects"]
    named = [name for role in _ROLES[found.stage] for name in suspects if name.startswith(f"{role} ")]
    if found.stage == "outputs":
        named.sort(key=lambda name: name != f"module {found.name}")
    used = list(suspects[named[0]]) if named else []
    told = [f"the code of {named[0]} uses {', '.join(used)}"] if used else []
    amount = _first_amount(found, *tensors)
    if amount is not None:
        told.append(f"the relative difference of the outputs of {found.name} is {amount:.2g}")
    cause = _cause_of_noise(found, reference["steps"], again["steps"], used, amount)
    if found.stage in ("outputs", "gradients", "loss") and found.name and not (found.stage == "gradients" and named):
        name = found.name
    else:
        name = named[0].partition(" ")[2] if named else found.stage
    if found.stage == "samples" and facts["data_names"]:
        name = ", ".join(facts["data_names"])
    return Finding(check, "failed", "two equal runs differ", cause, name, str(found), tuple(told))


def judge_hashes(finding: Finding, one: Record, other: Record) -> Finding:
    """Return a finding of :func:`judge_same`, of another cause if runs with the same hashes of strings are equal.

    Args:
        finding: The finding, about runs that had different hashes.
        one: The record of a run in a process of its own.
        other: That of the same run again, with the same hashes.
    """
    failed = next((record.error for record in (one, other) if not record.is_completed), None)
    if failed is not None:
        return dataclasses.replace(finding, evidence=(*finding.evidence, f"with PYTHONHASHSEED=0, it fails: {failed}"))
    steps, again = steps_of(one), steps_of(other)
    if steps["initial"] != again["initial"] or first_difference(steps["steps"], again["steps"]) is not None:
        return finding
    evidence = "two runs with PYTHONHASHSEED=0, which have the same hashes of strings, are equal"
    return dataclasses.replace(finding, cause="order_by_hash", evidence=(evidence,))


def _first_amount(found: Difference, one: Tensors, other: Tensors) -> float | None:
    """Return by how much the outputs of the first module that differs do so, relative to their norm, if kept."""
    if found.stage != "outputs" or found.step != 0 or "first" not in one or "first" not in other:
        return None
    name = "" if found.name == "the model" else found.name
    pairs = zip(*(each["first"]["outputs"][0].get(name, []) for each in (one, other)), strict=False)
    amounts = [float((a - b).norm() / a.norm()) for a, b in pairs if a.shape == b.shape and a.is_floating_point()]
    return max(amounts, default=None)


def _cause_of_noise(
    found: Difference, one: Sequence[Any], other: Sequence[Any], used: Sequence[str], amount: float | None
) -> str:
    """Return the cause of a difference between equal runs.

    Args:
        found: The first difference.
        one: The steps of one run.
        other: The steps of the other.
        used: Names that the code of the likely object uses, of clocks, generators and the like.
        amount: By how much the first outputs differ, relative to their norm; None if unknown.
    """
    if amount is not None and amount < _ROUNDING:
        return "nondeterministic_operation"
    if uses_clock(used) or found.stage == "learning rate":
        return "time_dependent"
    if found.stage == "samples":
        seen = [{row for step in steps for rank in step["samples"] for row in rank} for steps in (one, other)]
        common = len(seen[0] & seen[1]) / max(len(seen[0]), 1)
        return "data_order" if common > 0.2 or "another order" in found.amount else "unseeded_randomness"
    index = next((i for i, step in enumerate(one) if step["step"] == found.step), 0)
    if one[index]["random state"] != other[index]["random state"]:
        return "unseeded_randomness"
    sampled = {"urandom", "SystemRandom", "Random", "default_rng", "RandomState", "Generator"} & set(used)
    if found.stage in ("outputs", "loss", "gradients") and not sampled:
        return "nondeterministic_operation"
    return "unseeded_randomness"


def judge_resumed(check: str, reference: Steps, killed: Steps, resumed: Steps, facts: Mapping[str, Any]) -> Finding:
    """Judge a run that was killed and resumed.

    Args:
        check: Name of the check.
        reference: The steps of the run that was not interrupted.
        killed: The steps of the run that saved, and was killed.
        resumed: The steps after the resumption.
        facts: What the reference found out.
    """
    start = resumed["steps"][0]["step"] if resumed["steps"] else 0
    rest = [step for step in reference["steps"] if step["step"] >= start]
    found = first_difference(rest, resumed["steps"])
    saved = killed["snapshots"].get("saved", {})
    changed = differences(saved, resumed["snapshots"].get("resumed", {}))
    if found is None:
        summary = f"killed after step {len(reference['steps'])}, resumed at step {start}: equal bit for bit"
        return Finding(check, "passed", summary)
    indices = _at(found, rest)["indices"]
    is_restored = not changed and indices is not None and indices == _at(found, resumed["steps"])["indices"]
    cause, name, evidence = _unsaved(found, changed, saved, facts)
    if cause == "unknown" and resumed["reloaded"]:
        reloaded = judge_reloaded(check, killed, resumed, facts["classes"])
        cause, name, evidence = reloaded.cause, reloaded.name, reloaded.evidence
    summary = "the resumed run differs from the uninterrupted one"
    return Finding(
        check, "failed", summary, cause, name, str(found), evidence, advice=_advice(cause, name, is_restored)
    )


def _at(found: Difference, steps: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the step of a difference."""
    return next(step for step in steps if step["step"] == found.step)


def _advice(cause: str, name: str, is_restored: bool) -> str:
    """Return a remedy in place of that of the cause, where the name tells more.

    Args:
        cause: The cause.
        name: The state that was not restored.
        is_restored: Whether the samples have the same indices, and nothing is known that is not restored.
    """
    if name.endswith(".requires_grad"):
        return _FREEZE
    if name.startswith("the cache of ") and cause.startswith("unsaved_"):
        return "Do not cache what is random, or depends on more than its arguments (functools.cache, lru_cache)."
    if name.startswith("the global variable ") and cause not in ("unsaved_generator", "dataset_modified"):
        return (
            "Keep it where a checkpoint finds it: as a buffer of a module, in state of the optimizer, or in what "
            "state_dict of an Algorithm returns."
        )
    if cause == "unsaved_data_state" and is_restored:
        return (
            "The position is restored: the same indices are read. Search the data set, its transforms and collate_fn "
            "for caches, generators and changes of what they hold, and compute a sample from its index alone."
        )
    if cause == "unsaved_data_state" and "." in name:
        return f"Return {name} from state_dict of an Algorithm that sets it, and set it in load_state_dict."
    return ""


def _unsaved(
    found: Difference, changed: Sequence[str], saved: Mapping[str, Any], facts: Mapping[str, Any]
) -> tuple[str, str, tuple[str, ...]]:
    """Return the cause, the name of the state that was not restored, and the evidence.

    Args:
        found: The first difference.
        changed: The attributes that differ after the resumption.
        saved: The snapshot at the checkpoint.
        facts: What the reference found out.
    """
    evidence = tuple(f"after resuming, {display(name)} differs" for name in changed[:5])
    for name in changed:
        if name.startswith("module ") and name.partition(": ")[2].startswith(("parameter ", "tie of ")):
            return "checkpoint_not_stable", display(name), evidence
    data = facts["data"]
    if found.stage == "samples" and (data["changed by a fetch"] or (data["modified"] and not changed)):
        return "dataset_modified", ", ".join(facts["data_names"]) or "the data", evidence
    shared = [name for name in changed if is_global(name) and _type_of(name, saved) not in _GENERATORS]
    own = [name for name in changed if name not in shared]
    # Programs have global variables and caches that do not matter; so these come last.
    for names, role in itertools.product((own, shared), (*_ROLES[found.stage], *_UNSAVED)):
        of_role = [name for name in names if name.startswith(f"{role} ")]
        if not of_role:
            continue
        # A generator before others, and the module that differs and those around it before other modules.
        of_role.sort(key=lambda name: (_type_of(name, saved) not in _GENERATORS, -_closeness(name, found.name)))
        first = of_role[0]
        cause = "unsaved_generator" if _type_of(first, saved) in _GENERATORS else _UNSAVED[role]
        return cause, display(first), evidence
    if found.stage == "samples":
        return "unsaved_data_state", ", ".join(facts["data_names"]) or "the data", ()
    return "unknown", found.name or found.stage, ()


def _closeness(name: str, module: str) -> int:
    """Return how closely the module of an attribute is around a module: most for itself, 0 if it is not around it.

    Args:
        name: The attribute, such as ``"module net.2: calls"``.
        module: The module that differs.
    """
    owner = name.partition(": ")[0].removeprefix("module ")
    if not name.startswith("module ") or not (owner in ("", module) or module.startswith(f"{owner}.")):
        return 0
    return 1 + len(owner)


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
    noted: Mapping[str, Sequence[str]] = {**reference["changes"], **other["changes"]}
    evidence = tuple(f"{name} changes the {' and the '.join(noted[name])}" for name in names if name in noted)
    changed = {each for name in names for each in noted.get(name, ())}
    if cause == "callback_changes_training" and changed and changed <= _ON_PURPOSE:
        return Finding(check, "expected", _EFFECTS[check], cause, ", ".join(names), str(found), evidence)
    return Finding(check, "failed", _EFFECTS[check.partition("-")[0]], cause, ", ".join(names), str(found), evidence)


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
    if cause == "worker_randomness" and any(one[row] not in (0, times) for row, times in more.items()):
        summary = "with workers, samples are trained on more than once in an epoch"
        return Finding(check, "failed", summary, "repeated_samples", name, str(found), advice=SHARD_STREAM)
    if facts["iterable"] and found.stage == "samples":
        return Finding(
            check, "expected", "iterable data has another order with workers", "order_of_workers", name, str(found)
        )
    return Finding(check, "failed", "training with another number of workers differs", cause, name, str(found))


def _rows(steps: Steps) -> Counter[str]:
    """Return how often each sample is trained on in the first epoch."""
    ends = (i for i, step in enumerate(steps["steps"]) if i and step["batch in epoch"] == 0)
    first = steps["steps"][: next(ends, None)]
    return Counter(row for step in first for rank in step["samples"] for row in rank)
