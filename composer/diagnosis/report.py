"""The report of ``composer doctor``: the split of a step, the verdict, and what each remedy gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer._html import save_document
from composer.diagnosis.advice import advise
from composer.diagnosis.charts import part_name
from composer.diagnosis.durations import milliseconds
from composer.diagnosis.first_steps import Difference
from composer.diagnosis.hot_lines import place
from composer.diagnosis.remedies import Remedy
from composer.diagnosis.step_trace import StepTrace
from composer.diagnosis.verdict import Verdict
from composer.statistics.paired import Ratio

__all__ = ["Report", "Tried", "error_text", "remarks"]


@dataclass(frozen=True)
class Tried:
    """A remedy that was measured.

    Args:
        remedy: The remedy.
        ratio: How many times as fast the run is with it; None if it does not run.
        pays: Whether the gain is larger than the noise.
        error: Why it does not run.
        difference: What it changes in the losses of the first steps.
        break_even: Number of steps after which it has made up for its slower first steps, such as compilation; None if
            it does not pay.

    >>> Tried(Remedy("fused", lines="AdamW(..., fused=True)"), Ratio(1.2, 1.1, 1.3), pays=True).pays
    True
    """

    remedy: Remedy
    ratio: Ratio | None
    pays: bool = False
    error: str = ""
    difference: Difference = "unknown"
    break_even: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it changes no number but in its last digits, as far as is known."""
        return self.remedy.exact and self.difference != "numbers"

    def to_json(self) -> dict[str, Any]:
        """Return what was measured in JSON types."""
        gain = None if self.ratio is None else {"gain": self.ratio.gain, **dataclasses.asdict(self.ratio)}
        return {"name": self.remedy.name, "lines": self.remedy.lines, "exact": self.is_exact} | {
            "changes": [*self.remedy.changes, *self.remedy.edits],
            "ratio": gain,
            "pays": self.pays,
            "error": self.error,
            "difference": self.difference,
            "break_even": self.break_even,
        }


@dataclass(frozen=True)
class Report:
    """What ``composer doctor`` found out.

    Args:
        verdict: What bounds the speed.
        step: Seconds of a step.
        shares: Fraction of the time of a step by part.
        noise: Ratio of the unchanged run to itself.
        tried: The remedies that were measured.
        combined: The combination of those that pay, if there are several.
        would_save: Gain at most without outputs and callbacks, computed from the shares.
        waits: Where an accelerator would be waited for.
        facts: What is known of the run.
        ranks: The seconds of each rank in a step, and for how many it waits for others; empty for one rank.
        seconds: Wall time of the diagnosis.
        steps: Seconds of each part, for every measured step.
        lines: Lines of the user's code with the fraction of the time in which they were running, the largest first.
        command: The command or call that was diagnosed.
        trace: The profiler's trace of further steps, if one was wanted.
        errors: What loggers and threads raised while the training went on, each with its source, call, line, error and
            count.
        clock: Seconds that measuring takes in a step, which are not among those of the step.

    >>> Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}).ok
    True
    """

    verdict: Verdict
    step: float
    shares: Mapping[str, float]
    noise: Ratio | None = None
    tried: Sequence[Tried] = ()
    combined: Tried | None = None
    would_save: Mapping[str, float] = field(default_factory=dict[str, float])
    waits: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ranks: Sequence[Mapping[str, Any]] = ()
    seconds: float = 0.0
    steps: Sequence[Mapping[str, float]] = ()
    lines: Sequence[Mapping[str, Any]] = ()
    command: str = ""
    trace: StepTrace | None = None
    clock: float = 0.0
    errors: Sequence[Mapping[str, Any]] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no bottleneck and no error; a remedy may pay nevertheless, see :attr:`best`."""
        return not self.verdict.is_found and not self.errors

    @property
    def advice(self) -> str:
        """What to do apart from the remedies, without what a remedy has refuted; empty if there is no bottleneck."""
        tried = {one.remedy.name.partition("-")[0] for one in self.tried if one.ratio is not None}
        paying = {one.remedy.name.partition("-")[0] for one in self.tried if one.pays}
        return advise(self.verdict.cause, self.verdict.where, tried - paying)

    @property
    def paying(self) -> list[Tried]:
        """The remedies that pay and change no number, the largest gain first."""
        return [one for one in self.ranked if one.pays and one.is_exact and one.ratio is not None]

    @property
    def best(self) -> Tried | None:
        """What to write: the combination if it pays, else the remedy that pays most; None if none does."""
        if self.combined is not None and self.combined.pays:
            return self.combined
        return next(iter(self.paying), None)

    @property
    def best_in_words(self) -> str:
        """What the best remedy gains, in a line; empty if none pays.

        >>> fused = Tried(Remedy("fused"), Ratio(1.2, 1.1, 1.3), pays=True)
        >>> Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}, tried=[fused]).best_in_words
        'A remedy pays nevertheless: fused makes it faster by +20% [+10%, +30%].'
        """
        if self.best is None or self.best.ratio is None:
            return ""
        begin = "A remedy pays" if self.verdict.is_found else "A remedy pays nevertheless"
        return f"{begin}: {self.best.remedy.name} makes it faster by {self.best.ratio}."

    @property
    def ranked(self) -> list[Tried]:
        """All remedies that were measured, the largest gain first."""
        return sorted(self.tried, key=lambda one: -(one.ratio.value if one.ratio else 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {
            "ok": self.ok,
            "verdict": {**dataclasses.asdict(self.verdict), "advice": self.advice},
            "seconds_per_step": self.step,
            "seconds_of_clock": self.clock,
            "shares": dict(self.shares),
            "noise": None if self.noise is None else dataclasses.asdict(self.noise),
            "remedies": [one.to_json() for one in self.tried],
            "combined": None if self.combined is None else self.combined.to_json(),
            "best": None if self.best is None else self.best.to_json(),
            "would_save": dict(self.would_save),
            "waits": list(self.waits),
            "errors": [dict(each) for each in self.errors],
            "facts": dict(self.facts),
            "ranks": list(self.ranks),
            "seconds": round(self.seconds, 1),
            "steps": [dict(step) for step in self.steps],
            "lines": list(self.lines),
            "command": self.command,
            "trace": None if self.trace is None else self.trace.to_json(),
        }

    def to_html(self, folder: str | Path | None = None) -> str:
        """Return the report as an HTML page in one file, which needs no network.

        Args:
            folder: Folder that the page will be in, so that it links to the trace from there; None links to where the
                trace is now.

        Raises:
            MissingConditionalImportError: plotly is not installed.

        >>> report = Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}, steps=[{"forward": 0.1}])
        >>> "No bottleneck." in report.to_html()
        True
        """
        from composer.diagnosis.report_page import report_page

        return report_page(self, None if folder is None else Path(folder))

    def write_html(self, path: str | Path) -> None:
        """Write the page of :meth:`to_html`; an existing page is replaced.

        Args:
            path: The file.

        Raises:
            FileExistsError: The file is not a page of composer.
            MissingConditionalImportError: plotly is not installed.

        >>> Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}).write_html(
        ...     "doctor.html"
        ... )  # doctest: +SKIP
        """
        path = Path(path)
        save_document(self.to_html(path.parent), path)

    def __str__(self) -> str:
        """The report as text."""
        lines = [self.verdict.text, *(f"  {each}" for each in self.verdict.evidence)]
        lines += [f"  {self.advice}"] if self.advice else []
        lines += [self.best_in_words, ""] if self.best else [""]
        clock = f", without {milliseconds(self.clock)} ms to measure it" if self.clock > 0.005 * self.step else ""
        lines.append(f"A step takes {milliseconds(self.step)} ms{clock}:")
        lines += [f"  {share:6.1%}  {part_name(part)}" for part, share in self.shares.items() if share >= 0.0005]
        lines += _ranks(self.ranks)
        if self.tried:
            noise = "" if self.noise is None else f" (the unchanged run against itself: {self.noise})"
            lines += ["", f"Remedies, measured in turn{noise}:"]
            lines += [_line(one) for one in self.ranked]
        if self.combined is not None:
            lines += ["", f"Together: {self.combined.ratio}"]
        if self.best is not None:
            lines += ["", "Write:", *(f"  {line}" for line in self.best.remedy.lines.splitlines())]
        if self.would_save:
            lines += ["", "Without these the run would be faster by at most (computed, not measured):"]
            lines += [f"  {gain:+6.0%}  {part}" for part, gain in self.would_save.items()]
        if self.waits:
            lines += ["", "On an accelerator the host would wait in each step for:"]
            lines += [f"  {_wait(each)}" for each in self.waits]
        if self.errors:
            lines += ["", "Raised while the training went on:"]
            lines += [f"  {error_text(each)}" for each in self.errors]
        if self.facts.get("left_out"):
            lines += ["", f"Not measured, since they write elsewhere: {', '.join(self.facts['left_out'])}"]
        if self.trace is not None:
            lines += ["", str(self.trace)]
        return "\n".join([*lines, "", f"in {self.seconds:.0f} s"])


# Number of steps until a remedy has made up for its start that is worth a remark.
_LATE = 100
_DIFFERENCES = {
    "none": "",
    "rounding": "changes the last digits of the losses",
    "batches": "changes the order of samples, or random augmentation",
    "numbers": "changes numbers",
    "unknown": "",
}


def remarks(one: Tried) -> list[str]:
    """Return what a reader must know of a gain besides its value.

    Args:
        one: A remedy that was measured.

    >>> remarks(Tried(Remedy("bf16", exact=False), Ratio(1.0, 0.9, 1.1)))
    ['changes numbers', 'not more than noise']
    """
    found = [_DIFFERENCES[one.difference] if one.is_exact else "changes numbers"]
    if (one.break_even or 0) >= _LATE:
        found.append(f"in runs of more than {one.break_even:,} steps")
    if one.ratio is not None and not one.pays and one.ratio.high > 1:
        found.append("not more than noise")
    return [each for each in found if each]


def error_text(each: Mapping[str, Any]) -> str:
    """Return what a logger or thread raised, in a line.

    Args:
        each: One of :attr:`Report.errors`.

    >>> line = {"file": "src/board.py", "line": 7, "in": "Board.log_images"}
    >>> error_text({"source": "Board", "call": "log_images", **line, "error": "KeyError: 'x'", "count": 2})
    "Board.log_images, board.py:7 (Board.log_images): KeyError: 'x', 2 times"
    """
    source = f"{each['source']}.{each['call']}" if each["call"] else each["source"]
    times = f", {each['count']} times" if each["count"] > 1 else ""
    return f"{source}, {place(each)}: {each['error']}{times}"


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the slowest and the fastest rank."""
    if len(ranks) < 2:
        return []
    order = sorted(ranks, key=lambda each: each["waiting"])
    lines = ["", f"Of {len(ranks)} ranks, the slowest and the fastest:"]
    for each in (order[0], order[-1]):
        largest = sorted(each["parts"].items(), key=lambda part: -part[1])[:4]
        parts = ", ".join(f"{part} {milliseconds(seconds)} ms" for part, seconds in largest)
        lines.append(f"  rank {each['rank']} waits {milliseconds(each['waiting'])} ms a step for others: {parts}")
    return lines


def _line(one: Tried) -> str:
    if one.ratio is None:
        return f"  {'-':>18}  {one.remedy.name}: does not run: {one.error}"
    write = one.remedy.lines.splitlines()[-1 if one.remedy.lines.startswith("from ") else 0] if one.remedy.lines else ""
    notes = "".join(f"  ({each})" for each in remarks(one))
    return f"  {one.ratio!s:>18}  {one.remedy.name}: {write}{notes}"


def _wait(each: Mapping[str, Any]) -> str:
    return f"{each['file']}:{each['line']} ({each['in']}): {each['why']}, {each['count']:g} times"
