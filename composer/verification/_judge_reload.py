"""Judge a checkpoint that was loaded and saved again: the second must be equal to the first bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer.verification.compare import Difference
from composer.verification.findings import Finding

__all__ = ["judge_reloaded", "judge_saving"]

Steps = Mapping[str, Any]


def judge_reloaded(check: str, killed: Steps, resumed: Steps, classes: Mapping[str, str]) -> Finding:
    """Judge the checkpoint that a resumed run saves before it trains.

    Args:
        check: Name of the check.
        killed: The steps of the run that saved the first checkpoint.
        resumed: The steps of the run that loaded it, and saved it again.
        classes: The class of each module by name.

    >>> steps = {"steps": [{"step": 4, "random state": "0f"}], "reloaded": ["callbacks/Counter/seen"]}
    >>> judge_reloaded("reload", steps, steps, {}).name
    'Counter: seen'
    """
    step = resumed["steps"][0]["step"]
    found: Sequence[str] = resumed["reloaded"]
    if not found:
        before = next(each for each in killed["steps"] if each["step"] == step)
        if before["random state"] != resumed["steps"][0]["random state"]:
            where = f"before step {step}, random state"
            return Finding(check, "failed", "the random state is another one", "checkpoint_not_stable", "rng", where)
        return Finding(check, "passed", "the second checkpoint and the random state are equal bit for bit")
    entry, _, rest = found[0].partition("/")
    name, evidence = _of_entry(entry, rest, classes)
    others = [f"{path} differs too" for path in found[1:5]]
    summary = "a checkpoint that is loaded and saved again differs"
    where = f"state/{found[0]} of the second checkpoint"
    return Finding(check, "failed", summary, "checkpoint_not_stable", name, where, (evidence, *others))


def judge_saving(
    check: str, found: Difference, changes: Mapping[str, Sequence[str]], own_states: Sequence[str]
) -> Finding:
    """Judge a run that saves, and differs from one that does not from the step after the checkpoint.

    Args:
        check: Name of the check.
        found: The first difference.
        changes: What each callback changes.
        own_states: The classes of the program that compute a state for checkpoints.

    >>> judge_saving(
    ...     "same", Difference(4, "batch"), {"CheckpointSaver": ["random state"]}, ["Noise"]
    ... ).evidence
    ('saving changes the random state',)
    """
    changed = changes.get("CheckpointSaver", ())
    evidence = (f"saving changes the {', '.join(changed)}",) if changed else ()
    name = ", ".join(own_states) or found.name or found.stage
    summary = "the run differs from one that does not save, from the step after the checkpoint"
    return Finding(check, "failed", summary, "saving_changes_training", name, str(found), evidence)


def _of_entry(entry: str, rest: str, classes: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of what a difference belongs to, and which methods do not agree.

    Args:
        entry: The entry of the checkpoint, such as "callbacks".
        rest: The path of the value in it.
        classes: The class of each module by name.
    """
    if entry == "model":
        module = rest.rpartition(".")[0]
        label = f"{module} ({classes[module]})" if module in classes else rest
        if rest.rpartition(".")[2].startswith("_extra_state"):
            return label, f"set_extra_state and get_extra_state of {label} do not agree"
        return rest, f"state_dict and load_state_dict of {label} do not agree on {rest}"
    owner, _, value = rest.partition("/")
    if entry in ("callbacks", "algorithms", "optimizers", "schedulers"):
        name = f"{owner}: {value}".removesuffix(": ")
        return name, f"load_state_dict of {owner} does not restore what its state_dict returned"
    return f"{entry}/{rest}".removesuffix("/"), "load_state_dict does not restore what was saved"
