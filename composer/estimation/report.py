"""The report of ``composer estimate``: the peak of memory, what it is made of, and what makes it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer.estimation.configuration import Configuration
from composer.estimation.devices import Device, Outcome
from composer.estimation.memory import Memory, by_module, size_text
from composer.estimation.remedies import Remedy
from composer.estimation.roofline import Bound, OperatorCosts, lower_bound

__all__ = ["Report"]

# In the order in which they are shown; further roles come last.
_ROLES = {
    "parameters": "parameters",
    "buffers": "buffers",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "batch": "batch",
    "activations": "activations",
    "communication": "communication",
    "temporary": "temporary",
    "algorithms": "algorithms and callbacks",
    "metrics": "metrics",
    "kept": "kept after each batch",
    "other": "other",
    "allocator": "allocator overhead",
    "context": "context and libraries",
}
_STAGES = {
    "": "outside of the model",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "evaluation": "the evaluation",
}


@dataclass(frozen=True)
class Report:
    """The memory that a program needs.

    Args:
        device: The device.
        configuration: What was changed about the program.
        memory: The peak and what it is made of.
        largest: The largest microbatch that surely fits and its memory; None if not even one sample does.
        remedies: Single changes that were tried, if the program does not surely fit, those that fit first.
        together: All changes that keep the results in one, if no single one fits.
        seconds: Wall time of all trials.
        modules: How many modules of activations the text lists.

    >>> report = Report(Device("1GiB", 2**30), Configuration(), Memory(2**29, facts={"batch_size": 8}))
    >>> report.ok, report.outcome, report.margin
    (True, 'fits', 375809638)
    """

    device: Device
    configuration: Configuration
    memory: Memory
    largest: tuple[int, Memory] | None = None
    remedies: Sequence[Remedy] = ()
    together: Remedy | None = None
    seconds: float = 0.0
    modules: int = field(default=10, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the program surely fits."""
        return self.outcome == "fits"

    @property
    def outcome(self) -> Outcome:
        """Whether the program fits, as far as the error of estimates allows to tell; see :meth:`.Device.outcome`."""
        return self.device.outcome(self.memory.needed)

    @property
    def margin(self) -> int:
        """Bytes that remain free at the peak besides those for errors of the estimate; negative if it may not fit."""
        return self.device.available - self.memory.needed

    @property
    def largest_microbatch(self) -> int | None:
        """Number of samples in the largest microbatch that fits; None if not even one sample fits."""
        return None if self.largest is None else self.largest[0]

    @property
    def activations(self) -> list[tuple[str, int]]:
        """Bytes of activations by module, summed to a depth at which the list is short, the largest first."""
        return by_module(self.memory.activations, self.modules)

    @property
    def bound(self) -> Bound | None:
        """Lower bound of the time of a step, without communication; None if the speed of the device is not known."""
        return lower_bound(self.memory.costs, self.device, allow_tf32=self.memory.facts.get("tf32", False))

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {
            "fits": self.ok,
            "device": {"name": self.device.name, "memory": self.device.memory},
            "outcome": self.outcome,
            "margin": self.margin,
            "safety_margin": self.device.safety_margin,
            "processes": self.configuration.processes,
            "strategy": self.configuration.strategy,
            "changes": self.configuration.lines(),
            **self.memory.to_json(self.device.overhead),
            "facts": dict(self.memory.facts),
            "step": self._step_json(),
            "largest_microbatch": self.largest_microbatch,
            "remedies": [each.to_json(self.device.overhead) for each in self.remedies],
            "together": None if self.together is None else self.together.to_json(self.device.overhead),
            "seconds": round(self.seconds, 1),
        }

    @property
    def _costs(self) -> OperatorCosts:
        return OperatorCosts.from_json(self.memory.costs)

    def _step_json(self) -> dict[str, Any]:
        costs, bound = self._costs, self.bound
        return {
            "flops": costs.flops,
            "bytes": costs.nbytes,
            "seconds_lower_bound": None if bound is None else bound.at_peak,
            "seconds_lower_bound_unfused": None if bound is None else bound.seconds,
        }

    def __str__(self) -> str:
        """The report as text."""
        lines = [
            *self._head(),
            "",
            *self._composition(),
            "",
            *self._microbatch(),
            *self._kept(),
            *self._batches(),
            *self._allocator(),
            *self._step(),
        ]
        if not self.ok:
            lines += ["", *self._remedies()]
        return "\n".join([*lines, "", f"measured in {self.seconds:.0f} s"])

    def _head(self) -> Iterator[str]:
        memory, device = self.memory, self.device
        share = 100 * (memory.needed + device.overhead) / device.memory
        free = (device.capacity if device.is_accelerator else device.available) - memory.needed
        margin = f"{size_text(free)} remain" if free >= 0 else f"{size_text(-free)} are missing"
        yield f"{self.outcome}: the peak is {self._peak(memory)}, {share:.3g} % of {_named(device)}; {margin}"
        if self.outcome == "may not fit":
            kept = f"{size_text(device.capacity - device.available)} ({100 * device.safety_margin:.0f} %)"
            yield f"estimates for a GPU were up to 13 % too low: a program surely fits if it leaves {kept} free"
        where = _STAGES.get(memory.stage, memory.stage)
        yield f"reached in {where}" + (f" of {memory.module}" if memory.module else "")
        yield self._run()

    def _run(self) -> str:
        """Return the configuration in a line."""
        facts, given = self.memory.facts, self.configuration
        number = "1 process" if given.processes == 1 else f"{given.processes} processes"
        parts = [number + (f" with {given.strategy}" if given.strategy else "")]
        if "precision" in facts:
            parts.append(facts["precision"])
        if facts.get("optimizers"):
            parts.append(" and ".join(facts["optimizers"]))
        if "microbatch" in facts:
            batch, size = facts["batch_size"], facts["microbatch"]
            each = "" if given.processes == 1 else " for each process"
            parts.append(f"batches of {batch}{each}" + (f" in microbatches of {size}" if size < batch else ""))
        return ", ".join(parts)

    def _composition(self) -> Iterator[str]:
        memory = self.memory
        roles = memory.composition(self.device.overhead)
        total = max(sum(roles.values()), 1)
        rows: list[tuple[str, int]] = []
        for role in [*_ROLES, *(role for role in roles if role not in _ROLES)]:
            if not roles.get(role):
                continue
            rows.append((_ROLES.get(role, role), roles[role]))
            inner = {"activations": self.activations, "algorithms": sorted(self.memory.algorithms.items())}.get(
                role, ()
            )
            rows += [(f"  {name or 'outside of modules'}", size) for name, size in inner]
        width = max((len(name) for name, _ in rows), default=0)
        for name, size in rows:
            yield f"{name:<{width}}  {size_text(size):>12}  {100 * size / total:5.1f} %"

    def _microbatch(self) -> Iterator[str]:
        batch = self.memory.facts.get("batch_size")
        if self.largest is None:
            yield f"largest microbatch that {self._surely}fits: none, not even one sample"
            return
        size, memory = self.largest
        rest = "the full batch" if size == batch else f"device_train_microbatch_size={size}"
        fits = f"largest microbatch that {self._surely}fits: {size} of {batch} ({rest})"
        yield f"{fits}, with a peak of {self._peak(memory)}"

    def _kept(self) -> Iterator[str]:
        """Tell what grows with each batch."""
        for stage, size, remaining in self.memory.facts.get("kept", ()):
            where = f"memory that is allocated in {_STAGES[stage]}" if stage in _STAGES else stage
            yield f"each batch keeps {size_text(size)} more ({where}), here for {remaining} more batches"

    def _batches(self) -> Iterator[str]:
        """Tell that samples have different sizes, as with padding: no later batch was looked at."""
        sizes = self.memory.facts.get("sample_bytes", ())
        if sizes and max(sizes) > 1.01 * min(sizes):
            yield (
                f"samples take {size_text(min(sizes))} to {size_text(max(sizes))} in the first {len(sizes)} batches; "
                "a later batch that is larger needs more than estimated"
            )

    def _allocator(self) -> Iterator[str]:
        """Tell what other settings of the allocator change, and that it will be short of memory."""
        memory, available = self.memory, self.device.available
        if not self.ok and memory.reserved_expandable and memory.reserved_expandable <= available:
            size = size_text(memory.reserved_expandable + self.device.overhead)
            yield f"fits with PYTORCH_ALLOC_CONF=expandable_segments:True, with a peak of {size}"
        elif self.ok and memory.reserved > available:
            yield "the allocator has to give back free segments, which takes time, as it does not fit all of them"

    def _step(self) -> Iterator[str]:
        """Tell what a step computes, and how long it takes at least."""
        costs, bound = self._costs, self.bound
        if not costs.counts:
            return
        each = "" if self.configuration.processes == 1 else " in each process"
        yield f"a step computes {_number(costs.flops)}FLOP and moves {_number(costs.nbytes)}B{each}"
        if bound is not None:
            least = f"{_number(bound.at_peak)}s at the peak FLOP/s, {_number(bound.seconds)}s without fused operators"
            yield f"lower bound of its time on {self.device.name}: {least}; real steps take longer"

    def _remedies(self) -> Iterator[str]:
        fitting = [each for each in self.remedies if each.fits]
        unsure = [each for each in self.remedies if each.outcome == "may not fit"]
        others = [each for each in self.remedies if each not in fitting and each not in unsure]
        if fitting:
            yield f"each of these changes makes it {self._surely}fit, the one that costs least time first:"
            yield from self._table(fitting)
        else:
            yield f"no single change makes it {self._surely}fit"
        if unsure:
            yield "with these changes alone it may fit:"
            yield from self._table(unsure)
        if others:
            yield "these changes alone do not:"
            yield from self._table(others)
        if self.together is not None:
            outcomes = {"fits": "fit", "may not fit": "may not fit either"}
            fits = outcomes.get(self.together.outcome or "", "do not fit either")
            yield f"all changes that keep the results, with microbatches of one sample, {fits}:"
            yield from self._table([self.together])

    def _table(self, remedies: Sequence[Remedy]) -> Iterator[str]:
        """Yield two lines for each remedy: its memory and line, and what it costs."""
        for each in remedies:
            size = "failed" if each.memory is None else self._peak(each.memory)
            yield f"  {size:>12}  {each.line}"
            told = f"time: {each.cost}" if not each.error else each.error
            yield f"{'':>16}{told}" + ("" if each.keeps_results else "; changes the results")

    @property
    def _surely(self) -> str:
        """Return what is said of fitting where the error of estimates is large."""
        return "surely " if self.device.is_accelerator else ""

    def _peak(self, memory: Memory) -> str:
        """Return what a run takes of the device at its peak, with the context and libraries."""
        return size_text(memory.needed + self.device.overhead)


def _number(value: float) -> str:
    """Return a number with the prefix of its unit, such as ``"1.25 T"``."""
    exponent = min(max(math.floor(math.log10(value)) // 3, -3), 5) if value > 0 else 0
    return f"{value / 1000**exponent:.3g} {'num kMGTP'[exponent + 3].strip()}"


def _named(device: Device) -> str:
    return f"{size_text(device.memory)}" + ("" if device.name[0].isdigit() else f" ({device.name})")
