"""The report of ``composer verify`` as text: failures by cause, the other checks by status, and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence

from composer._text import plural
from composer.verification.findings import Finding, Status
from composer.verification.objects import shortened

__all__ = ["as_text"]

_STATUSES: tuple[Status, ...] = ("failed", "undecided", "expected", "passed", "skipped")
_WIDTH = 120
_INDENT = " " * 10


def as_text(findings: Sequence[Finding], seconds: float) -> str:
    """Return a report: entries by status, each with the checks that it is about, and the verdict as the last line.

    Args:
        findings: The findings of all checks.
        seconds: Wall time of all trials.

    >>> print(as_text([Finding("tp", "skipped", "the run has no plan")], 2.0))
    skipped   tp (the run has no plan)
    OK: no check failed in 2 s; 1 skipped
    """
    by_status: dict[Status, list[Finding]] = {
        status: [f for f in findings if f.status == status] for status in _STATUSES
    }
    lines = [
        *(line for group in _grouped(by_status["failed"]) for line in _failed(group)),
        *(_entry("undecided", group, group[0].summary) for group in _grouped(by_status["undecided"])),
        *(line for group in _grouped(by_status["expected"]) for line in _expected(group)),
        *(_entry("passed", group, group[0].summary) for group in _grouped(by_status["passed"])),
        *_skipped(_grouped(by_status["skipped"])),
    ]
    return "\n".join([*lines, _verdict(by_status, seconds)])


def _grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings in groups of the same cause, failures also of the same name; those without a cause by summary."""
    groups: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        about = finding.name if finding.status == "failed" else ""
        groups.setdefault((finding.cause, about) if finding.cause else finding.summary, []).append(finding)
    return list(groups.values())


def _failed(group: Sequence[Finding]) -> Iterator[str]:
    first = group[0]
    yield _entry("failed", group, _summary(group))
    yield from _place(group)
    yield f"{_INDENT}likely cause: {_line(first.explanation)} [{first.cause}]"
    yield from _details(group)


def _expected(group: Sequence[Finding]) -> Iterator[str]:
    first = dataclasses.replace(group[0], name=", ".join(shortened([finding.name for finding in group])))
    yield _entry("expected", group, _summary(group))
    yield from _place(group)
    yield f"{_INDENT}reason: {_line(first.explanation)} [{first.cause}]"
    yield from _details([first, *group[1:]])


def _entry(status: Status, group: Sequence[Finding], text: str) -> str:
    """Return the first line of an entry."""
    return f"{status:<10}{_checks(group)}: {_line(text)}"


def _checks(group: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.check for finding in group))


def _summary(group: Sequence[Finding]) -> str:
    """Return the summaries of a group in one; of summaries that differ in the factor, one with all factors."""
    factors = [f"{finding.factor:.4g}" for finding in group if finding.factor is not None]
    if len(factors) == len(group) and len(set(factors)) > 1:
        plain = {finding.summary.replace(factor, "#") for finding, factor in zip(group, factors, strict=True)}
        if len(plain) == 1:
            return plain.pop().replace("#", f"{', '.join(factors[:-1])} and {factors[-1]}")
    return "; ".join(dict.fromkeys(finding.summary for finding in group))


def _place(group: Sequence[Finding]) -> Iterator[str]:
    """Yield the first difference of the first check, with its name if it is not that of all."""
    places = list(dict.fromkeys(finding.where for finding in group if finding.where))
    if places:
        check = next(finding.check for finding in group if finding.where)
        yield f"{_INDENT}first difference{f' in {check}' if len(places) > 1 else ''}: {_line(places[0])}"


def _details(group: Sequence[Finding]) -> Iterator[str]:
    """Yield the evidence and the remedy of a group; evidence of several lines, such as a traceback, keeps them."""
    for evidence in dict.fromkeys(each for finding in group for each in finding.evidence):
        first, *others = evidence.splitlines() if "\n" in evidence else [evidence]
        yield f"{_INDENT}evidence: {first}"
        yield from (f"{_INDENT}{' ' * len('evidence: ')}{other}" for other in others)
    if group[0].remedy:
        yield f"{_INDENT}remedy: {_line(group[0].remedy)}"


def _skipped(groups: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """Yield the skipped checks with the reasons: in one line, or in one each if that is long."""
    told = [f"{_checks(group)} ({_line(group[0].summary)})" for group in groups]
    together = f"{'skipped':<10}{', '.join(told)}"
    if told and len(together) <= _WIDTH:
        yield together
    else:
        yield from (f"{'' if i else 'skipped':<10}{each}" for i, each in enumerate(told))


def _verdict(by_status: dict[Status, list[Finding]], seconds: float) -> str:
    """Return the last line."""
    counts: dict[Status, int] = {
        status: len({finding.check for finding in found}) for status, found in by_status.items()
    }
    took = f"in {seconds:.0f} s"
    if counts["failed"]:
        causes = list(dict.fromkeys(finding.cause for finding in by_status["failed"]))
        what = f"{plural(counts['failed'], 'check')}, {plural(len(causes), 'cause')} ({', '.join(causes)}), {took}"
        return _with_rest(f"FAILED: {what}", counts, ("undecided", "expected", "passed", "skipped"))
    what = f"{plural(counts['passed'], 'check')} passed" if counts["passed"] else "no check failed"
    if counts["undecided"]:
        unknown = plural(counts["undecided"], "check")
        return _with_rest(f"UNDECIDED: {unknown} gave no answer, {took}", counts, ("expected", "passed", "skipped"))
    return _with_rest(f"OK: {what} {took}", counts, ("expected", "skipped"))


def _with_rest(verdict: str, counts: dict[Status, int], rest: Sequence[Status]) -> str:
    told = ", ".join(f"{counts[status]} {status}" for status in rest if counts[status])
    return f"{verdict}; {told}" if told else verdict


def _line(text: str) -> str:
    """Return a text, such as the message of an error, in one line."""
    return " ".join(text.split())
