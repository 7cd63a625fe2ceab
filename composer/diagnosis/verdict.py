"""The verdict: what bounds the speed of a run, in one line, with the evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from composer.diagnosis.advice import advise
from composer.diagnosis.charts import part_name
from composer.diagnosis.communication import COMMUNICATION, WAITING, imbalance
from composer.diagnosis.durations import milliseconds
from composer.diagnosis.epoch_start import start_evidence
from composer.diagnosis.hot_lines import by_function, hottest, place
from composer.diagnosis.step_split import seconds_of, shares_of
from composer.diagnosis.thread_watch import holding_thread

__all__ = ["Cause", "Verdict", "judge"]

Cause = Literal[
    "none",
    "data",
    "host",
    "synchronization",
    "compute",
    "communication",
    "imbalance",
    "evaluation",
    "saving",
    "logging",
    "callback",
    "method",
    "metrics",
    "optimizer",
    "schedules",
]

_COMPUTE = ("forward", "loss", "backward")
# Fractions of a step from which a part is more than its due. That of communication is what computation does not hide:
# DistributedDataParallel hides all but the all-reduce of the last bucket where a batch is large enough (Li et al. 2020,
# https://arxiv.org/abs/2006.15704). Without 15 % of a step, the run would be faster by 18 %.
_LIMITS = {
    "data": 0.15,
    "evaluation": 0.2,
    "saving": 0.15,
    "logging": 0.12,
    "metrics": 0.25,
    "schedules": 0.15,
    "communication": 0.15,
    "imbalance": 0.15,
    "synchronization": 0.15,
    "thread": 0.15,
}
# Fraction of a step from which a part below its limit is told in a healthy run of several ranks.
_WORTH_A_LINE = 0.03
# Fraction of a step from which a loss is told in a healthy run, such as one that runs the model again.
_LARGE_LOSS = 0.25
# Fraction of the time from which a line is one at which the host waits, and parts in which a device has no work.
_BLOCKED, _NOT_QUEUED = 0.05, ("data", "transfer", "evaluation", "saving", COMMUNICATION, WAITING)
_CALLBACK, _METHOD, _OWN_METHOD, _LINE = 0.12, 0.4, 0.15, 0.15
_OPTIMIZER, _UNFUSED_OPTIMIZER, _OWN_OPTIMIZER, _HOST = 0.4, 0.3, 0.2, 0.5
# Fraction of the time of a part in one function from which that is the place.
_MOST = 0.25
# Operators of a line in a step from which it is a loop, and the fraction of small ones from which they are many.
_LOOP, _MOSTLY = 24, 0.8
# Of an operator in a module: Python, the dispatcher and autograd, as a multiple of those of a bare operator.
_OVERHEAD = 3.0
# Cautious speeds of computation: a line that takes longer than with these does something else.
_SECONDS_PER_ELEMENT, _SECONDS_PER_FLOP, _SECONDS_PER_LINE = 4e-9, 4e-10, 30e-6


@dataclass(frozen=True)
class Verdict:
    """What bounds the speed of a run.

    Args:
        cause: The cause, of :data:`Cause`; "none" if there is no bottleneck.
        text: The verdict in one line.
        share: The fraction of the time of a step that it takes.
        where: The line of the user's code, callback, method or logger; empty if there is none.
        evidence: What speaks for it.

    >>> Verdict("data", "Bound by data.", 0.8).is_found
    True
    """

    cause: Cause
    text: str
    share: float = 0.0
    where: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """What to do about it, apart from the remedies that are tried."""
        return advise(self.cause, self.where)

    @property
    def is_found(self) -> bool:
        """Whether there is a bottleneck."""
        return self.cause != "none"


def judge(result: Mapping[str, Any], inline: Mapping[str, Any] | None = None) -> Verdict:
    """Return the verdict of a measured run.

    Args:
        result: What :class:`.StepRecorder` measured.
        inline: The same without data workers, in which lines of the data show; None if the run has none.

    >>> steps, facts = [{"forward": 1.0, "backward": 2.0}], {"data": {"workers": 0}, "float64": False}
    >>> judge({"steps": steps, "facts": {**facts, "anomaly": False, "optimizers": []}}).cause
    'none'
    """
    judged = _Judged(result, inline)
    thread = judged.thread()
    # A thread that holds the interpreter makes all parts longer.
    left = 1.0 if thread is None else 1 - thread.share
    found = sorted(judged.candidates(), key=lambda verdict: -verdict.share)
    if thread is None:
        return found[0] if found else judged.healthy()
    if not found or found[0].share * left <= thread.share:
        return thread
    told = f"also {thread.text[0].lower()}{thread.text[1:].rstrip('.')}"
    return dataclasses.replace(found[0], evidence=(*found[0].evidence, told))


class _Judged:
    """A run to judge; its arguments are those of :func:`judge`."""

    def __init__(self, result: Mapping[str, Any], inline: Mapping[str, Any] | None) -> None:
        self._result, self._inline, self._facts = result, inline, result["facts"]
        self._shares = shares_of(result)
        self._step = sum(seconds_of(result).values())
        self._operators: Mapping[str, Any] = result.get("operators") or {"parts": {}, "lines": [], "waits": []}

    def candidates(self) -> Iterator[Verdict]:
        """Yield everything that takes more than its due."""
        yield from self._data()
        yield from self._ranks()
        yield from self._outputs()
        yield from self._handlers()
        yield from self._optimizer()
        yield from self._computation()
        yield from self._lines()
        yield from self._synchronizations()

    def thread(self) -> Verdict | None:
        """Return the verdict of a thread of the user's that keeps the training from running, if there is one."""
        idle = self._idle() if self._facts.get("device", "cpu") != "cpu" else None
        share, thread = holding_thread(self._result, self._shares, idle)
        if thread is None or share < _LIMITS["thread"]:
            return None
        where, held = place(thread), f"{thread['held']:.0%} of the time"
        text = f"Bound by the host: thread {thread['thread']} runs {where} for {held}."
        evidence = [f"the training waits for the interpreter (GIL) for up to {share:.0%} of the time"]
        others = [f"thread {each['thread']} runs {place(each)}" for each in self._result["threads"]["threads"][1:4]]
        return Verdict("host", text, share, where, (*evidence, *others))

    def healthy(self) -> Verdict:
        """Return the verdict if nothing takes more than its due; a remedy may pay nevertheless."""
        compute = self._share(_COMPUTE)
        text = f"No bottleneck: forward, loss and backward take {compute:.0%} of the step."
        return Verdict("none", text, compute, "", tuple(self._below_limits()))

    def _below_limits(self) -> Iterator[str]:
        """Yield what takes a part of the step that is worth to know, and less than its due."""
        if self._share(("loss",)) > _LARGE_LOSS:
            yield from self._evidence("loss")
        for part in (COMMUNICATION, WAITING):
            share, limit = self._share((part,)), _LIMITS["communication" if part == COMMUNICATION else "imbalance"]
            if _WORTH_A_LINE <= share < limit:
                told = f"{milliseconds(share * self._step)} of {milliseconds(self._step)} ms, {share:.0%} of the step"
                hidden = ", beyond what computation hides" if part == COMMUNICATION else ""
                yield f"{part}{hidden}: {told}; a bottleneck from {limit:.0%}"

    def _data(self) -> Iterator[Verdict]:
        share = self._share(("data", "transfer"))
        facts = self._facts["data"]
        # Workers deliver batches in bursts: a step waits for the first of each, and a later one does not.
        if share < _LIMITS["data"] + (0.1 if facts.get("workers") else 0.0):
            return
        evidence = [f"a step waits {milliseconds(share * self._step)} of {milliseconds(self._step)} ms for its batch"]
        evidence += start_evidence(self._result)
        line, fraction = hottest(self._result, "data")  # with workers, what runs before them, such as a sampler
        if self._inline is not None and fraction <= _MOST:
            line, fraction = hottest(self._inline, "data")
        where = ""
        if line is not None and fraction > _MOST:
            where = place(line)
            evidence.append(f"{fraction:.0%} of the loading is in {where}")
        workers = facts.get("workers")
        if workers == 0:
            evidence.append("num_workers=0: the batch is made between two steps")
        elif workers:
            evidence.append(f"num_workers={workers}, persistent_workers={facts.get('persistent')}")
        at = f", most of it in {where}" if where else ""
        rank, excess, told = self._imbalance()
        if excess == "data":
            at = f" on rank {rank}{at}"
            evidence.append(told)
        yield Verdict(
            "data", f"Bound by data: waiting takes {share:.0%} of the step{at}.", share, where, tuple(evidence)
        )

    def _ranks(self) -> Iterator[Verdict]:
        """Yield the time of collectives, and that for which ranks wait for each other."""
        share = self._share((COMMUNICATION,))
        if share >= _LIMITS["communication"]:
            text = f"Bound by communication: the ranks communicate for {share:.0%} of the step."
            size = self._facts.get("parameters", 0) * (8 if self._facts["float64"] else 4) / 2**20
            evidence = [
                f"{COMMUNICATION}: {milliseconds(share * self._step)} of {milliseconds(self._step)} ms of a step"
            ]
            evidence.append(f"the gradients of {self._facts.get('ranks', 1)} ranks are {size:.3g} MiB on each")
            yield Verdict("communication", text, share, "", tuple(evidence))
        rank, excess, told = self._imbalance()
        if excess in (*_COMPUTE, "rest", "optimizer", WAITING):
            waits = max(each["waiting"] for each in self._result["ranks"]) / self._step
            line, fraction = hottest(self._result, excess)
            where = place(line) if line is not None and fraction > 0.25 else excess
            text = f"Bound by rank {rank}: the other ranks wait for it for {waits:.0%} of the step."
            if excess == WAITING:
                where, text = "data and model", f"Bound by waits of ranks for each other: {waits:.0%} of the step."
            yield Verdict("imbalance", text, waits, where, (told,))

    def _imbalance(self) -> tuple[int, str, str]:
        return imbalance(self._result, _LIMITS["imbalance"] * self._step)

    def _outputs(self) -> Iterator[Verdict]:
        for part, text in (
            ("evaluation", "Bound by evaluation: it takes"),
            ("saving", "Bound by saving checkpoints: it takes"),
            ("metrics", "Bound by metrics of training: computing them takes"),
            ("schedules", "Bound by schedules: computing learning rates takes"),
        ):
            share = self._share((part,))
            if share >= _LIMITS[part]:
                cause: Any = part
                line, fraction = hottest(self._result, part)
                where = place(line) if line is not None and fraction > _MOST else ""
                yield Verdict(cause, f"{text} {share:.0%} of the time.", share, where, self._evidence(part))
        loggers = {part: share for part, share in self._shares.items() if part.startswith(("logger ", "logging"))}
        share = sum(loggers.values())
        if share >= _LIMITS["logging"]:
            name = max(loggers, key=lambda part: loggers[part]).removeprefix("logger ")
            told = f", most of it {name}" if name != "logging" else ""
            evidence = [each for part in loggers for each in self._evidence(part)]
            text = f"Bound by logging: it takes {share:.0%} of the step{told}."
            yield Verdict("logging", text, share, name, tuple(evidence))

    def _handlers(self) -> Iterator[Verdict]:
        for part, share in self._shares.items():
            role, _, name = part.partition(" ")
            if role not in ("callback", "method"):
                continue
            line, _ = hottest(self._result, part)
            limit = _CALLBACK if role == "callback" else _METHOD if line is None else _OWN_METHOD
            if share >= limit:
                at = f" in {place(line)}" if line is not None else ""
                text = f"Bound by the {role} {name}: it takes {share:.0%} of the step{at}."
                cause: Any = role
                yield Verdict(cause, text, share, name, self._evidence(part))

    def _optimizer(self) -> Iterator[Verdict]:
        share = self._share(("optimizer",))
        optimizers = self._facts["optimizers"]
        work = self._operators["parts"].get("optimizer", {})
        line, fraction = hottest(self._result, "optimizer")
        is_line = line is not None and fraction > 0.5  # of an optimizer of the user's, or of a hook of its step
        own = [each for each in optimizers if not each["module"].startswith(("torch.", "composer."))]
        unfused = [each for each in optimizers if "fused" in each["accepts"] and not each["fused"]]
        is_many = work.get("small", 0) > _MOSTLY * work.get("count", 0) > 0
        limit = _OWN_OPTIMIZER if own or is_line else _UNFUSED_OPTIMIZER if unfused else _OPTIMIZER
        if share < limit or not (own or unfused or is_many or is_line):
            return
        named = (own or unfused or optimizers)[0]
        count, tensors = work.get("count", 0), sum(each["tensors"] for each in optimizers)
        evidence = [*self._evidence("optimizer"), f"{count:.0f} operators for {tensors} tensors in each step"]
        if unfused and not own and not is_line:
            evidence.append(f"{named['name']} has fused={named['fused']}")
        where = place(line) if is_line and line is not None else named["name"]
        at = f", most of it in {where}" if is_line else ""
        text = f"Bound by the optimizer: {named['name']} takes {share:.0%} of the step{at}."
        yield Verdict("optimizer", text, share, where, tuple(evidence))

    def _computation(self) -> Iterator[Verdict]:
        compute = self._share(_COMPUTE)
        seconds = compute * self._step
        if self._facts["anomaly"] and compute > 0.3:
            text = f"Bound by the host: anomaly detection is on, and backward takes {self._share(('backward',)):.0%}."
            yield Verdict("host", text, compute, "torch.autograd.set_detect_anomaly")
        if self._facts["float64"] and compute > 0.4:
            text = f"Bound by compute in float64: forward, loss and backward take {compute:.0%} of the step."
            evidence = ("most parameters are float64, which takes twice the memory and more than twice the time",)
            yield Verdict("compute", text, compute, "float64", evidence)
        works = [self._operators["parts"].get(part, {}) for part in _COMPUTE]
        small, count = (sum(work.get(name, 0) for work in works) for name in ("small", "count"))
        overhead = small * _OVERHEAD * self._result.get("seconds_per_operator", 0.0)
        if not count or overhead < _HOST * seconds or small < _MOSTLY * count:
            return
        # Larger batches make a step cheaper, but neither what takes longest of all, nor functions that the loop calls.
        others = (self._share((part,)) for part in ("metrics", "optimizer", "schedules"))
        share = compute + self._share(("rest",)) - self._called() + sum(other for other in others if other < compute)
        evidence = [
            f"forward, loss and backward are {count:.0f} operators a step, {small:.0f} of them on small tensors: "
            f"{seconds / count * 1e6:.0f} us each"
        ]
        lines = [each for each in self._operators["lines"] if each["part"] in _COMPUTE]
        most = max(lines, key=lambda each: each["count"], default=None)
        where, why = "", "the batches are small"
        if self._result.get("forwards", 1) >= 4:
            why = where = f"{self._result['forwards']:.0f} microbatches"
        elif most is not None and most["count"] >= _LOOP and most["count"] > 0.3 * sum(each["count"] for each in lines):
            where = place(most)
            why = f"{where} calls {most['count']:.0f} operators a step"
        yield Verdict("host", f"Bound by the host, not by computation: {why}.", share, where, tuple(evidence))

    def _called(self) -> float:
        """Return the fraction of a step that functions of the user's take which the loop itself calls."""
        functions = by_function(self._result.get("lines", ()), "rest").values()
        seconds = sum(each["seconds"] for lines in functions for each in lines)
        return min(seconds / (self._result.get("sampled_seconds") or 1.0), self._share(("rest",)))

    def _lines(self) -> Iterator[Verdict]:
        """Yield the functions that take longer than what their operators compute."""
        total = self._result.get("sampled_seconds") or 1.0
        for part in (*_COMPUTE, "rest"):
            for function, lines in by_function(self._result.get("lines", ()), part).items():
                share = sum(each["seconds"] for each in lines) / total
                if share < _LINE:
                    continue
                seconds = share * self._step
                works = by_function(self._operators["lines"], part).get(function, ())
                for work in works:
                    seconds -= work["elements"] * _SECONDS_PER_ELEMENT + work["flops"] * _SECONDS_PER_FLOP
                    seconds -= work["count"] * _SECONDS_PER_LINE
                if seconds / self._step >= _LINE:
                    where = place(max(lines, key=lambda each: each["seconds"]))
                    text = f"Bound by the host: {where} takes {share:.0%} of the step, in {part_name(part)}."
                    evidence = (f"its operators explain {1 - seconds / (share * self._step):.0%} of that time",)
                    yield Verdict("host", text, seconds / self._step, where, evidence)
                elif (count := self._looping(works, share * self._step)) > 0:
                    where = place(max(lines, key=lambda each: each["seconds"]))
                    text = f"Bound by the host: {where} takes {share:.0%} of the step, in {part_name(part)}."
                    evidence = (f"it calls {count:.0f} operators a step, most of them on small tensors",)
                    yield Verdict("host", text, share, where, evidence)

    def _looping(self, works: Sequence[Mapping[str, Any]], seconds: float) -> float:
        """Return the number of operators of a function that is a loop over small tensors; 0 if it is none.

        The rule for all of the computation, which a loop in one function is only a part of.
        """
        small, count = (sum(each[name] for each in works) for name in ("small", "count"))
        overhead = small * _OVERHEAD * self._result.get("seconds_per_operator", 0.0)
        is_loop = max((each["count"] for each in works), default=0) >= _LOOP
        return count if is_loop and small >= _MOSTLY * count and overhead >= _HOST * seconds else 0

    def _synchronizations(self) -> Iterator[Verdict]:
        """Yield the line at which the host waits for the device, if the device then waits for the host.

        A device that always has work queued loses nothing by a host that waits.
        """
        share = self._idle()
        if share < _LIMITS["synchronization"]:
            return
        lines, total = self._result.get("lines", ()), self._result.get("sampled_seconds") or 1.0
        blocked = {
            number: sum(one["seconds"] for one in lines if (one["file"], one["line"]) == (each["file"], each["line"]))
            for number, each in enumerate(self._operators["waits"])
        }
        number = max(blocked, key=lambda number: blocked[number], default=None)
        if number is None or blocked[number] < _BLOCKED * total:
            return
        wait = self._operators["waits"][number]
        where = place(wait)
        text = f"Bound by a synchronization in {where}: the device then waits for the host, for up to {share:.0%}."
        evidence = (f"{where} {wait['why']}, {wait['count']:g} times a step",)
        evidence += (f"the host waits there for {blocked[number] / total:.0%} of the time",)
        yield Verdict("synchronization", text, share, where, evidence)

    def _idle(self) -> float:
        """Return the fraction of a step for which a device waits for the host."""
        starved = self._result.get("starved", ())
        idle = sum(value for step in starved for part, value in step.items() if not part.startswith(_NOT_QUEUED))
        return idle / len(starved) / self._step if starved else 0.0

    def _share(self, parts: Sequence[str]) -> float:
        return sum(self._shares.get(part, 0.0) for part in parts)

    def _evidence(self, part: str) -> tuple[str, ...]:
        """Return the time of a part, and its hottest line."""
        seconds = self._shares.get(part, 0.0) * self._step
        told = [f"{part}: {milliseconds(seconds)} of {milliseconds(self._step)} ms of a step"]
        line, fraction = hottest(self._result, part)
        if line is not None:
            told.append(f"{fraction:.0%} of it is in {place(line)}")
        return tuple(told)
