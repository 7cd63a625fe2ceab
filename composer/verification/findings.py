"""Findings: what a check found out, and the report of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from composer.verification.causes import CAUSES

__all__ = ["Finding", "Report", "Status"]

Status = Literal["passed", "failed", "expected", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        check: Name of the check.
        status: "passed", "failed", "expected" (a difference that is in the nature of a module) or "skipped".
        summary: What was compared, or why it was not.
        cause: Identifier of the likely cause, of :data:`.CAUSES`; empty without a difference.
        name: The module, tensor or object that the cause is about.
        where: The first step and stage that differ.
        evidence: What speaks for the cause.
        factor: The number by which gradients are multiplied, if they are.

    >>> finding = Finding("microbatches of 1", "failed", "", cause="loss_scale", factor=0.5)
    >>> finding.explanation
    'The gradient is 0.5 times as large: the loss is not the mean over the samples, or is scaled twice.'
    """

    check: str
    status: Status
    summary: str
    cause: str = ""
    name: str = ""
    where: str = ""
    evidence: tuple[str, ...] = ()
    factor: float | None = None

    @property
    def explanation(self) -> str:
        """What the cause means for this run, in a sentence."""
        factor = "?" if self.factor is None else f"{self.factor:.4g}"
        text = CAUSES[self.cause].text.format(name=self.name or "it", factor=factor)
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return CAUSES[self.cause].remedy.format(name=self.name or "it")

    def to_json(self) -> dict[str, Any]:
        """Return the finding in JSON types."""
        told = {"explanation": self.explanation, "remedy": self.remedy} if self.cause else {}
        return {**dataclasses.asdict(self), **told}


@dataclass(frozen=True)
class Report:
    """The findings of ``composer verify``.

    Args:
        findings: One for each check, and one for each further fact.
        facts: What was found out about the run.
        seconds: Wall time of all trials.

    >>> Report([Finding("same run again", "passed", "6 steps are equal bit for bit")]).ok
    True
    """

    findings: list[Finding]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

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
        """The report as text."""
        lines: list[str] = []
        for finding in self.findings:
            lines.append(f"{finding.status:<9} {finding.check}: {finding.summary}")
            if finding.where:
                lines.append(f"{'':<10}first difference: {finding.where}")
            if finding.cause:
                lines.append(f"{'':<10}likely cause: {finding.explanation} [{finding.cause}]")
                lines += [f"{'':<10}evidence: {evidence}" for evidence in finding.evidence]
                lines.append(f"{'':<10}remedy: {finding.remedy}")
        counts = {
            status: sum(f.status == status for f in self.findings)
            for status in ("passed", "failed", "expected", "skipped")
        }
        counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        return "\n".join([*lines, f"{counted} in {self.seconds:.0f} s"])
