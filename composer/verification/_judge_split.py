"""Judge runs that split the batch, among microbatches or ranks: they must agree up to the rounding of float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from composer._text import plural
from composer.verification._by_sample import agreeing_modules, first_mixing_module, output_gradients_agree
from composer.verification._not_finite import judge_finite
from composer.verification._weighted_mean import is_weighted_mean
from composer.verification.code_facts import samples
from composer.verification.compare import TOLERANCE, UPDATE_TOLERANCE, Deviation, deviation, updates
from composer.verification.findings import Finding
from composer.verification.objects import shortened
from composer.verification.snapshot import display

__all__ = ["COMPARES", "DEPENDS_ON_EARLIER", "SHARD_STREAM", "judge_random", "judge_ranks", "judge_split", "loss_ratio"]

Steps = Mapping[str, Any]
Tensors = Mapping[str, Any]

_TOTAL = "loss/train/total"
# What a loss is taken to do that no scale explains, unless an exchange of samples shows that it does not.
COMPARES, DEPENDS_ON_EARLIER = (
    "the loss compares the samples of a batch",
    "the loss depends on earlier microbatches",
)
# The remedy for an iterable data set that each rank or each worker yields completely.
SHARD_STREAM = (
    "Let __iter__ of each rank and worker yield other samples: of info = torch.utils.data.get_worker_info(), which is "
    "None without workers, each (dist.get_world_size() * info.num_workers)-th, from number "
    "dist.get_global_rank() * info.num_workers + info.id on."
)


def judge_split(
    check: str, exact: Steps, other: Steps, tensors: Tensors, others: Tensors, facts: Mapping[str, Any]
) -> Finding:
    """Judge a run in exact mode that splits the batches in another way.

    The rule: the loss and every gradient of the first step deviate by no more than a relative 1e-6, in float64, and the
    change of every parameter after the last step by no more than 1e-4.

    Args:
        check: Name of the check.
        exact: The steps of the reference run in exact mode.
        other: The steps of the other.
        tensors: The tensors that the reference recorded.
        others: Those of the other.
        facts: What is known of the run.
    """
    first, second, step = tensors["first"], others["first"], exact["steps"][0]["step"]
    infinite = judge_finite(check, step, _losses(exact, other), first, second, facts["classes"])
    if infinite is not None:
        return infinite
    mixing = first_mixing_module(first, second)
    loss = loss_ratio(exact, other)
    gradients = deviation(first["gradients"], second["gradients"])
    if mixing is not None:
        return _of_module(check, step, mixing, agreeing_modules(first, second), facts)
    if gradients is None and abs(loss - 1) <= TOLERANCE:
        end = deviation(updates(tensors), updates(others), tolerance=UPDATE_TOLERANCE)
        if end is None:
            return Finding(check, "passed", "loss and gradients agree within 1e-6, and updates within 1e-4, in float64")
        stepped = deviation(first["stepped"], second["stepped"])
        if stepped is not None:
            return _of_gradients(check, step, loss, stepped, first, second, facts)
        where = f"step {step + 1} or later, parameter {end}"
        return Finding(check, "failed", "the parameters differ after some steps", "unknown", end.name, where)
    if gradients is None:
        summary, where = f"the logged loss is {loss:.4g} times as large", f"step {step}, loss"
        evidence = ("the gradients agree; only the logged loss differs",)
        return Finding(check, "failed", summary, "loss_scale", "the logged loss", where, evidence, loss)
    return _of_gradients(check, step, loss, gradients, first, second, facts)


def _of_module(check: str, step: int, name: str, agreeing: Set[str], facts: Mapping[str, Any]) -> Finding:
    """Judge a module whose outputs for a sample differ with the batch that the sample is in.

    Args:
        check: Name of the check.
        step: Number of the step.
        name: Name of the module.
        agreeing: The modules whose outputs agree; state of others inside of it, as of a parametrization, may be why.
        facts: What is known of the run.
    """
    shown = name or "the model"
    label = f"{shown} ({facts['classes'][name]})" if name in facts["classes"] else shown
    where = f"step {step}, outputs of {shown}"
    used = facts["suspects"].get(f"module {name}", [])
    if samples(used):
        evidence = (f"the code of {shown} uses {', '.join(used)}",)
        summary = "modules sample random numbers from a custom generator"
        return Finding(check, "expected", summary, "random_in_model", label, where, evidence)
    above = _sampling_above(name, facts)
    if above is not None:
        summary = "modules sample random numbers also in evaluation mode"
        return Finding(check, "expected", summary, "random_in_model", above, where)
    inside = {each for each in facts["classes"] if name in ("", each) or each.startswith(f"{name}.")}
    changed = _changed_in_forward(facts, {name} | (inside - agreeing))
    summary = "outputs for a sample depend on the rest of the batch"
    cause = "state_per_microbatch" if changed else "samples_interact"
    return Finding(check, "expected", summary, cause, ", ".join(changed) or label, where)


def _sampling_above(name: str, facts: Mapping[str, Any]) -> str | None:
    """Return the module around another that samples, and so determines its inputs; None if there is none."""
    parts = name.split(".")
    for above in (".".join(parts[:depth]) for depth in range(len(parts))):
        if above in facts["random_modules"] or samples(facts["suspects"].get(f"module {above}", [])):
            return above or "the model"
    return None


def _changed_in_forward(facts: Mapping[str, Any], modules: Set[str] | None = None) -> list[str]:
    """Return the state of modules that a forward pass or the loss changes, but for statistics of batches.

    Args:
        facts: What is known of the run.
        modules: Names of the modules whose state is meant; None for all.
    """
    found: list[str] = []
    for name in facts["changed in forward"]:
        owner = name.partition(": ")[0].removeprefix("module ")
        if (
            name.startswith("module ")
            and owner not in facts["statistics_modules"]
            and (modules is None or owner in modules)
        ):
            found.append(display(name))
    return shortened(found)


def _of_gradients(
    check: str, step: int, loss: float, gradients: Deviation, first: Tensors, second: Tensors, facts: Mapping[str, Any]
) -> Finding:
    """Judge gradients that deviate though the outputs of all modules agree."""
    where, factor = f"step {step}, gradient of {gradients}", gradients.factor
    scaled = factor is not None and abs(loss / factor - 1) <= TOLERANCE
    differ = "is scaled by the same factor" if scaled else "and the gradients do not"
    evidence = [f"the outputs of all modules agree; the loss {differ}"]
    editing = _editing(facts, ("gradients", "loss"))
    evidence += [f"{_labeled(name, facts)} changes the {changed}" for name, changed in editing.items()]
    name, cause, advice = "the loss", "loss_scale", ""
    if abs(loss - 1) <= TOLERANCE:
        suspected = [*shortened(facts["gradient hooks"], 2), *editing]
        if suspected or is_weighted_mean(first, second, loss):
            name, cause = ", ".join(suspected) or f"what changes the gradient of {gradients.name}", "gradients_modified"
            evidence[0] = "the outputs of all modules and the loss agree: a hook, callback or method changes gradients"
        else:
            name, cause, evidence[0] = _why_at_equal_loss(gradients.name, first, second)
    elif factor is None:
        cause = "ragged_mean" if is_weighted_mean(first, second, loss) else "samples_interact"
        if cause == "ragged_mean":
            advice = _count_of_labels(facts, evidence)
    if cause == "samples_interact":  # as Dice and contrastive losses do; an exchange of samples tells whether it is so
        changed, summary = _changed_in_forward(facts), COMPARES
        if changed:
            name, cause, summary = ", ".join(changed), "state_per_microbatch", DEPENDS_ON_EARLIER
        return Finding(check, "expected", summary, cause, name, where, tuple(evidence))
    summary = "the gradients differ" if factor is None else f"the gradients are {factor:.4g} times as large"
    return Finding(check, "failed", summary, cause, name, where, tuple(evidence), factor, advice)


def _why_at_equal_loss(parameter: str, first: Tensors, second: Tensors) -> tuple[str, str, str]:
    """Return what changes gradients though the loss agrees and no hook is known: its name, the cause and the evidence.

    A loss that compares samples has another value or at least another gradient at the outputs of the model.
    """
    agree = output_gradients_agree(first, second)
    if agree:
        inside = "those of parameters do not, because of a backward pass inside of the model, such as that of an"
        evidence = (
            f"the outputs of all modules, the loss and its gradients at the outputs agree; {inside} autograd.Function"
        )
        return f"what changes the gradient of {parameter}", "gradients_modified", evidence
    losses = torch.tensor([*first["losses"][:1], *second["losses"]])
    same = len(losses) > 1 and bool(((losses - losses[0]).abs() <= TOLERANCE * losses[0].abs()).all())
    if agree is False and same:  # by chance, as those of a new model
        evidence = (
            "the outputs of all modules agree; all microbatches have the same loss, with other gradients at the outputs"
        )
        return "the loss", "samples_interact", evidence
    known = "are not known" if agree is None else "do not"
    evidence = f"the outputs of all modules and the loss agree; the gradients of the loss at the outputs {known}"
    return f"the gradient of {parameter}", "unknown", evidence


def _count_of_labels(facts: Mapping[str, Any], evidence: list[str]) -> str:
    """Return how to count the labels of this run that are not ignored, if known, and add what was found in its batches.

    Args:
        facts: What is known of the run.
        evidence: Where to add the evidence.
    """
    if facts["token_function"]:
        evidence.append(f"{facts['token_function']} counts the tokens that weight the microbatches")
    found = facts["ignored labels"]
    if found is None:
        return ""
    labels, ignored, (fewest, most) = found["labels"], found["ignored"], found["counts"]
    evidence.append(f"samples have {fewest} to {most} values other than {ignored} in {labels}")
    if labels == "batch['labels']" and ignored == -100 and not facts["token_function"]:
        return ""  # what the trainer counts
    return (
        "Weight microbatches by the labels that count: pass DataSpec(dataloader, get_num_tokens_in_batch=lambda batch: "
        f"int(({labels} != {ignored}).sum())) and accumulate_train_batch_on_tokens=True to the Trainer."
    )


def _editing(facts: Mapping[str, Any], stages: Sequence[str]) -> dict[str, str]:
    """Return the class names of the methods and callbacks that change some stages of a step, and which of these.

    Args:
        facts: What is known of the run.
        stages: The stages.
    """
    changes: Mapping[str, Sequence[str]] = facts["changes"]
    found = {name: [stage for stage in changed if stage in stages] for name, changed in changes.items()}
    return {name: " and the ".join(edited) for name, edited in found.items() if edited}


def _labeled(name: str, facts: Mapping[str, Any]) -> str:
    """Return a class name of :func:`_editing` with what it is."""
    return f"the {'method' if name in facts['algorithms'] else 'callback'} {name}"


def _losses(exact: Steps, other: Steps) -> tuple[float, float]:
    """Return the loss of the first step of the reference, and of another run."""
    a, b = (float.fromhex(steps["steps"][0]["loss"][_TOTAL]) for steps in (exact, other))
    return a, b


def loss_ratio(exact: Steps, other: Steps) -> float:
    """Return the loss of the first step relative to that of the reference.

    Args:
        exact: The steps of the reference.
        other: Those of the other run.
    """
    a, b = _losses(exact, other)
    return b / a if a else (1.0 if b == 0 else float("inf"))


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
    if facts["exact_batch_size"] is None:
        return _judge_fixed_batches(check, other, facts)
    for one, step in zip(exact["steps"], other["steps"], strict=False):
        different = _judge_samples(check, one, step, facts)
        if different is not None:
            return different
        if step["ranks differ"]:
            name = step["ranks differ"][0]
            where, evidence = f"step {step['step']}, parameter {name}", _why_diverging(step, facts)
            return Finding(
                check, "failed", "the ranks have different parameters", "ranks_diverge", name, where, evidence
            )
    return judge_split(check, exact, other, tensors, others, facts)


def judge_random(check: str, steps: Steps, facts: Mapping[str, Any]) -> Finding:
    """Judge whether the ranks sample different random numbers, in a run with everything that samples.

    Args:
        check: Name of the check.
        steps: The steps of the run on several ranks.
        facts: What the reference found out.
    """
    alike = steps["sampled alike"]
    if alike is not None:
        label = f"{alike} ({facts['classes'][alike]})" if alike in facts["classes"] else alike
        where, summary = f"step 0, random numbers of {alike}", "the ranks sample the same random numbers"
        return Finding(check, "failed", summary, "same_random_numbers_on_ranks", label, where)
    for step in steps["steps"]:
        same = _same_random_state(step, facts)
        if same is not None:
            label = f"{same} ({facts['classes'].get(same, 'the model')})"
            where = f"step {step['step']}, random state after {same}"
            summary = "the ranks sample the same random numbers"
            return Finding(check, "failed", summary, "same_random_numbers_on_ranks", label, where)
    return Finding(check, "passed", f"the ranks sample different random numbers in {len(steps['steps'])} steps")


def _why_diverging(step: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what speaks for a cause of different parameters on the ranks."""
    if step["rates differ"]:
        setting = [_labeled(name, facts) for name in _editing(facts, ("learning rate",))]
        setting += [f"the schedule {name}" for name in facts["schedules"]]
        return (f"the learning rates differ too, perhaps by {' or '.join(setting) or 'a schedule or a callback'}",)
    editing = _editing(facts, ("parameters", "gradients"))
    return tuple(f"perhaps by {_labeled(name, facts)}, which changes the {each}" for name, each in editing.items())


def _judge_fixed_batches(check: str, other: Steps, facts: Mapping[str, Any]) -> Finding:
    """Judge ranks that have batches of the size of one process, and so train on other batches together."""
    name = ", ".join(facts["data_names"]) or "the data"
    for step in other["steps"]:
        common = set(step["samples"][0]).intersection(*step["samples"][1:])
        if common:
            where, evidence = f"step {step['step']}, samples", (f"{plural(len(common), 'sample')} on every rank",)
            summary = "the ranks train on the same samples"
            return Finding(check, "failed", summary, "repeated_samples", name, where, evidence, advice=_shard(facts))
    summary = "the ranks train on different samples; their results cannot be compared, since the batch size is fixed"
    return Finding(check, "skipped", summary)


def _judge_samples(
    check: str, one: Mapping[str, Any], step: Mapping[str, Any], facts: Mapping[str, Any]
) -> Finding | None:
    """Judge which samples the ranks train on in a step; return None if these are the ones of the reference.

    Args:
        check: Name of the check.
        one: The step of the reference.
        step: The step of the run on several ranks.
        facts: What is known of the run.
    """
    contents = [Counter(row for rank in each["samples"] for row in rank) for each in (one, step)]
    if contents[0] == contents[1]:
        return None
    name, where = ", ".join(facts["data_names"]) or "the data", f"step {step['step']}, samples"
    if facts["data"]["random"]:
        return Finding(check, "expected", "random augmentation differs on each rank", "random_in_data", name, where)
    own = facts["data"]["own random numbers"] or facts["data"]["changed by a fetch"]
    by_index = one["indices"] is not None and step["indices"] is not None
    ranks: Sequence[Sequence[Any]] = step["indices" if by_index else "samples"]
    expected = Counter(row for rank in one["indices" if by_index else "samples"] for row in rank)
    found = Counter(row for rank in ranks for row in rank)
    if found == expected and not own:
        return None  # the same samples, padded to the longest of each rank
    common = set(ranks[0]).intersection(*ranks[1:])
    repeated = sum(times - 1 for times in found.values()) - sum(times - 1 for times in expected.values())
    evidence = (
        f"the ranks together train on {plural(sum(found.values()), 'sample')}, one process on {sum(expected.values())}",
        f"{plural(len(common), 'sample')} on every rank, {sum((expected - found).values())} on none",
    )
    if own:
        cause = "rank_randomness"
    else:
        cause = "repeated_samples" if common or repeated > 0 else "lost_samples"
    advice = _shard(facts) if cause == "repeated_samples" else ""
    summary = "the ranks together train on other samples"
    return Finding(check, "failed", summary, cause, name, where, evidence, advice=advice)


def _shard(facts: Mapping[str, Any]) -> str:
    """Return how to give each rank other samples."""
    if facts["iterable"]:
        return SHARD_STREAM
    return "Use DataLoader(shuffle=True) or a sampler without shards, which the trainer shards among the ranks."


def _same_random_state(step: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return the first module that samples from a generator with the same state on all ranks."""
    ranks: Sequence[Mapping[str, Mapping[str, int]]] = step["random states"]
    for name in facts["random_modules"]:
        states = [rank.get(name, {}) for rank in ranks]
        if any(all(other.get(key) == value for other in states[1:]) for key, value in states[0].items()):
            return name or "the model"
    return None
