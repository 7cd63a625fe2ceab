"""Remedies: single changes of a program that lower its memory, in the order of the time that they cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer._text import plural
from composer.estimation.configuration import Configuration
from composer.estimation.devices import Outcome
from composer.estimation.memory import Memory

__all__ = ["Remedy", "candidates", "chosen", "strongest", "together"]

# Optimizers with one value of state for each parameter, where Adam has two.
_LEANER = "DecoupledSGDW"
_ADAM = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "DecoupledAdamW"})


@dataclass(frozen=True)
class Remedy:
    """A change of a program that lowers its memory.

    Args:
        kind: What is changed: "microbatch", "evaluation", "checkpointing", "sharding", "offloading", "kernels",
            "precision" or "optimizer".
        cost: What it costs in time, in words.
        configuration: The changed program.
        keeps_results: Whether the training computes the same up to rounding.
        memory: The memory with it, when it was measured.
        outcome: Whether that fits, as :meth:`.Device.outcome` says; None if it was not measured.
        error: Why the trial failed; empty if it did not.

    >>> remedy = Remedy("precision", "none", Configuration(precision="amp_bf16"), keeps_results=False)
    >>> remedy.line
    'precision=amp_bf16'
    """

    kind: str
    cost: str
    configuration: Configuration
    keeps_results: bool = True
    memory: Memory | None = None
    outcome: Outcome | None = None
    error: str = ""
    base: Configuration = dataclasses.field(default_factory=Configuration)

    @property
    def fits(self) -> bool:
        """Whether it was measured and surely fits."""
        return self.outcome == "fits"

    @property
    def line(self) -> str:
        """What to write into the program."""
        before = self.base.lines()
        return ", ".join(each for each in self.configuration.lines() if each not in before)

    def to_json(self, overhead: int = 0) -> dict[str, Any]:
        """Return the remedy in JSON types.

        Args:
            overhead: Bytes that the context and libraries of the device take.
        """
        return {
            "kind": self.kind,
            "line": self.line,
            "cost": self.cost,
            "keeps_results": self.keeps_results,
            "peak": None if self.memory is None else self.memory.needed + overhead,
            "fits": self.fits,
            "outcome": self.outcome,
            "error": self.error,
        }


def candidates(base: Configuration, memory: Memory, *, on_accelerator: bool) -> Iterator[Remedy]:
    """Yield the changes to try besides the microbatch, those that cost least first.

    Args:
        base: The configuration that does not fit.
        memory: Its memory.
        on_accelerator: Whether the device is not the CPU.

    >>> facts = {"blocks": 4, "kernels": [{}], "optimizers": ["SGD"], "precision": "fp32"}
    >>> memory = Memory(2**30, facts=facts)
    >>> [remedy.line for remedy in candidates(Configuration(), memory, on_accelerator=False)][:2]
    ["parallelism_config={'fsdp': {'activation_checkpointing': 'selective'}}", ...]
    """
    facts = memory.facts
    base = dataclasses.replace(base, fsdp_argument=facts.get("fsdp", ""))
    if memory.stage == "evaluation":
        size = max(1, min(facts["microbatch"], facts["batch_size"] // 4))
        changed = dataclasses.replace(base, eval_microbatch=size)
        yield Remedy("evaluation", "smaller passes in the evaluation", changed, base=base)
    kernels = [each for each in facts["kernels"] if each]
    has_kernels = len(kernels) == len(facts["kernels"])
    if has_kernels and not all(each.get("fused") for each in kernels):
        yield _set(base, "kernels", "optimizers.fused=True", "none, the fused kernel is the fastest")
    yield from _checkpointing(base, facts)
    shards = base.strategy in ("fsdp", "hsdp") or bool(base.fsdp_argument)
    if base.processes > 1 and not shards:
        cost = "all-gathers parameters twice a step, about 1.5 times the communication of DDP"
        yield Remedy("sharding", cost, dataclasses.replace(base, strategy="fsdp"), base=base)
    if on_accelerator and facts["blocks"]:
        cost = "copies activations to the host and back, over PCIe"
        yield Remedy("offloading", cost, base.with_fsdp(activation_cpu_offload=True), base=base)
    if has_kernels and not any(each.get("fused") or each.get("foreach") is False for each in kernels):
        cost = "one kernel for each parameter in the optimizer step"
        yield _set(base, "kernels", "optimizers.foreach=False", cost)
    if facts["precision"] == "fp32":
        changed = dataclasses.replace(base, precision="amp_bf16")
        yield Remedy("precision", "none, faster on most accelerators", changed, keeps_results=False, base=base)
    if _ADAM & set(facts["optimizers"]):
        changed = dataclasses.replace(base, optimizer=_LEANER)
        cost = "none, but needs another learning rate"
        yield Remedy("optimizer", cost, changed, keeps_results=False, base=base)


def strongest(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Return the remedies without weaker ones of a kind, which cannot fit if the strongest does not.

    Args:
        remedies: The remedies in their order; of activation checkpointing, the last lowers memory most.

    >>> facts = {"blocks": 4, "kernels": [{}], "optimizers": ["SGD"], "precision": "fp32"}
    >>> tried = list(candidates(Configuration(), Memory(2**30, facts=facts), on_accelerator=False))
    >>> [remedy.line for remedy in strongest(tried)]
    ["parallelism_config={'fsdp': {'activation_checkpointing': 1}}", 'precision=amp_bf16']
    """
    last = {each.kind: each for each in remedies}
    return [each for each in remedies if each.kind != "checkpointing" or each is last[each.kind]]


def chosen(measured: Sequence[Remedy], memory: Memory) -> list[Remedy]:
    """Return the remedies to report: of each kind the first that fits, or the one that needs least if none does.

    Args:
        measured: The remedies in their order, with their memory.
        memory: The memory without them; those that do not lower it are left out.

    >>> higher, lower, lowest = Memory(90), Memory(60), Memory(50)
    >>> found = [
    ...     Remedy("kernels", "", Configuration(), memory=higher),
    ...     Remedy("checkpointing", "", Configuration(), memory=lower, outcome="fits"),
    ...     Remedy("checkpointing", "", Configuration(), memory=lowest, outcome="fits"),
    ... ]
    >>> [(remedy.kind, remedy.memory.peak) for remedy in chosen(found, Memory(80))]
    [('checkpointing', 60)]
    """
    measured = [each for each in measured if each.memory is None or each.memory.needed < memory.needed]
    found: list[Remedy] = []
    for kind in dict.fromkeys(each.kind for each in measured):
        alike = [each for each in measured if each.kind == kind]
        known = [each for each in alike if each.memory is not None]
        best = next((each for each in alike if each.fits), None)
        if best is None and known:
            best = min(known, key=lambda each: each.memory.needed if each.memory else 0)
        found.append(best or alike[0])
    return sorted(found, key=lambda each: (not each.fits, not each.keeps_results))


def together(base: Configuration, facts: Mapping[str, Any]) -> Remedy:
    """Return all changes that keep the results in one, with microbatches of one sample.

    Args:
        base: The configuration that does not fit.
        facts: What is known of the run.

    >>> together(Configuration(), {"blocks": 0}).line
    'device_train_microbatch_size=1'
    """
    base = dataclasses.replace(base, fsdp_argument=facts.get("fsdp", ""))
    changed = dataclasses.replace(base, microbatch=1, eval_microbatch=1 if facts.get("evaluators") else 0)
    if base.processes > 1 and base.strategy in ("", "ddp") and not base.fsdp_argument:
        changed = dataclasses.replace(changed, strategy="fsdp")
    if facts["blocks"]:
        changed = changed.with_fsdp(activation_checkpointing=True)
    return Remedy("together", "that of all of them", changed, base=base)


def _checkpointing(base: Configuration, facts: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield ways of recomputing activations: those of matrix products last, and those of fewer blocks first."""
    if "activation_checkpointing" in dict(base.fsdp):
        return
    blocks = facts["blocks"]
    if blocks:
        cost = "recomputes all but matrix products and attention"
        yield Remedy("checkpointing", cost, base.with_fsdp(activation_checkpointing="selective"), base=base)
    for every in (4, 2, 1):
        if blocks > every or (blocks and every == 1):
            recomputed = -(-blocks // every)
            cost = f"runs the forward pass of {recomputed} of {plural(blocks, 'block')} twice"
            yield Remedy("checkpointing", cost, base.with_fsdp(activation_checkpointing=every), base=base)


def _set(base: Configuration, kind: str, change: str, cost: str) -> Remedy:
    return Remedy(kind, cost, dataclasses.replace(base, changes=(*base.changes, change)), base=base)
