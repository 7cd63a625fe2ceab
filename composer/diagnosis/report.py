"""The report of ``composer doctor``: the split of a step, the verdict, and what each remedy gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer.diagnosis.paired import Ratio
from composer.diagnosis.remedies import Remedy
from composer.diagnosis.verdict import Verdict

__all__ = ["Report", "Tried"]


@dataclass(frozen=True)
class Tried:
    """A remedy that was measured.

    Args:
        remedy: The remedy.
        ratio: How many times as fast the run is with it; None if it does not run.
        pays: Whether the gain is larger than the noise.
        error: Why it does not run.
        break_even: Steps after which it has made up for its slower first steps, such as compilation; None if it does
            not pay.

    >>> Tried(Remedy("fused", lines="AdamW(..., fused=True)"), Ratio(1.2, 1.1, 1.3), pays=True).pays
    True
    """

    remedy: Remedy
    ratio: Ratio | None
    pays: bool = False
    error: str = ""
    break_even: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what was measured in JSON types."""
        gain = None if self.ratio is None else {"gain": self.ratio.gain, **dataclasses.asdict(self.ratio)}
        return {"name": self.remedy.name, "lines": self.remedy.lines, "exact": self.remedy.exact} | {
            "changes": [*self.remedy.changes, *self.remedy.edits],
            "ratio": gain,
            "pays": self.pays,
            "error": self.error,
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
        seconds: Wall time of the diagnosis.

    >>> Report(Verdict("none", "Nothing is wrong."), 0.1, {"forward": 1.0}).ok
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
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.verdict.is_found

    @property
    def paying(self) -> list[Tried]:
        """The remedies that pay and change no number, the largest gain first."""
        paying = [one for one in self.tried if one.pays and one.remedy.exact and one.ratio is not None]
        return sorted(paying, key=lambda one: -(one.ratio.value if one.ratio else 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {
            "ok": self.ok,
            "verdict": {**dataclasses.asdict(self.verdict), "advice": self.verdict.advice},
            "seconds_per_step": self.step,
            "shares": dict(self.shares),
            "noise": None if self.noise is None else dataclasses.asdict(self.noise),
            "remedies": [one.to_json() for one in self.tried],
            "combined": None if self.combined is None else self.combined.to_json(),
            "would_save": dict(self.would_save),
            "waits": list(self.waits),
            "facts": dict(self.facts),
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        """The report as text."""
        lines = [self.verdict.text, *(f"  {each}" for each in self.verdict.evidence)]
        lines += [f"  {self.verdict.advice}", ""] if self.verdict.advice else [""]
        lines.append(f"A step takes {self.step * 1e3:.3g} ms:")
        lines += [f"  {share:6.1%}  {_NAMES.get(part, part)}" for part, share in self.shares.items() if share >= 0.0005]
        if self.tried:
            noise = "" if self.noise is None else f" (the unchanged run against itself: {self.noise})"
            lines += ["", f"Remedies, measured in turn{noise}:"]
            order = sorted(self.tried, key=lambda one: -(one.ratio.value if one.ratio else 0.0))
            lines += [_line(one) for one in order]
        if self.combined is not None:
            lines += ["", f"Together: {self.combined.ratio}"]
        best = [self.combined] if self.combined is not None and self.combined.pays else self.paying[:1]
        if best:
            lines += ["", "Write:", *(f"  {line}" for line in best[0].remedy.lines.splitlines())]
        if self.would_save:
            lines += ["", "Without these the run would be faster by at most (computed, not measured):"]
            lines += [f"  {gain:+6.0%}  {part}" for part, gain in self.would_save.items()]
        if self.waits:
            lines += ["", "On an accelerator the host would wait in each step for:"]
            lines += [f"  {_wait(each)}" for each in self.waits]
        if self.facts.get("left_out"):
            lines += ["", f"Not measured, since they write elsewhere: {', '.join(self.facts['left_out'])}"]
        return "\n".join([*lines, "", f"in {self.seconds:.0f} s"])


# Steps until a remedy pays that are worth a word.
_LATE = 100
_NAMES = {"rest": "the loop itself", "data": "waiting for data", "transfer": "copying to the device"}


def _line(one: Tried) -> str:
    if one.ratio is None:
        return f"  {'-':>18}  {one.remedy.name}: does not run: {one.error}"
    mark = "" if one.pays else "  (not more than noise)" if one.ratio.high > 1 else ""
    separate = "" if one.remedy.exact else "  (changes numbers)"
    late = f"  (in runs of more than {one.break_even} steps)" if (one.break_even or 0) >= _LATE else ""
    return f"  {one.ratio!s:>18}  {one.remedy.name}: {one.remedy.lines}{separate}{mark}{late}"


def _wait(each: Mapping[str, Any]) -> str:
    return f"{each['file']}:{each['line']} ({each['in']}): {each['why']}, {each['count']:g} times"
