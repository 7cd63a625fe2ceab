"""Findings: what a check found out, and the report of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from composer.verification.causes import CAUSES

__all__ = ["Finding", "Report", "Status"]

Status = Literal["passed", "failed", "undecided", "expected", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        check: Name of the check.
        status: "passed", "failed", "undecided" (the check applies, but gave no answer), "expected" (a difference that
            is in the nature of a module) or "skipped" (the check does not apply).
        summary: What was compared, or why it was not.
        cause: Identifier of the likely cause, of :data:`.CAUSES`; empty without a difference.
        name: The module, tensor or object that the cause is about.
        where: The first step and stage that differ.
        evidence: What speaks for the cause.
        factor: The number by which gradients are multiplied, if they are.
        advice: A remedy in terms of this run, in place of that of the cause.

    >>> finding = Finding(
    ...     "resume", "failed", "the resumed run differs", "unsaved_callback_state", "Warmup.count"
    ... )
    >>> finding.explanation
    'A checkpoint does not restore Warmup.count.'
    """

    check: str
    status: Status
    summary: str
    cause: str = ""
    name: str = ""
    where: str = ""
    evidence: tuple[str, ...] = ()
    factor: float | None = None
    advice: str = ""

    @property
    def explanation(self) -> str:
        """What the cause means for this run, in a sentence."""
        return f"{self._filled(CAUSES[self.cause].text)}."

    @property
    def remedy(self) -> str:
        """What to do about it; empty if there is nothing to do."""
        return self.advice or self._filled(CAUSES[self.cause].remedy)

    def _filled(self, text: str) -> str:
        return text.format(name=self.name or CAUSES[self.cause].unnamed)

    def to_json(self) -> dict[str, Any]:
        """Return the finding in JSON types."""
        found = dataclasses.asdict(self)
        del found["advice"]  # it is the remedy
        told = {"explanation": self.explanation, "remedy": self.remedy} if self.cause else {}
        return {**found, **told}


@dataclass(frozen=True)
class Report:
    """The findings of ``composer verify``.

    Args:
        findings: One for each check, and one for each further fact.
        facts: What was found out about the run.
        seconds: Wall time of all trials.

    >>> print(Report([Finding("same", "passed", "6 steps are equal bit for bit")], seconds=3.0))
    passed    same: 6 steps are equal bit for bit
    OK: 1 check passed in 3 s
    """

    findings: list[Finding]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no check failed, and none is undecided."""
        return not any(finding.status in ("failed", "undecided") for finding in self.findings)

    @property
    def failures(self) -> list[Finding]:
        """The checks that failed."""
        return [finding for finding in self.findings if finding.status == "failed"]

    @property
    def causes(self) -> set[str]:
        """Identifiers of the causes of the failures."""
        return {finding.cause for finding in self.failures}

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "findings": [finding.to_json() for finding in self.findings],
            "facts": {name: value for name, value in self.facts.items() if name != "initial"},
        }

    def __str__(self) -> str:
        """The report as text, in which findings with the same cause are one entry."""
        from composer.verification.report_text import as_text  # which needs this module

        return as_text(self.findings, self.seconds)
