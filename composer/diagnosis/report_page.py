"""The HTML page of ``composer doctor``: one file that opens offline."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer._html import Html, document, section, table, tag
from composer._text import plural
from composer.diagnosis.charts import colors, gains, in_order, part_name, timeline
from composer.diagnosis.durations import milliseconds
from composer.diagnosis.report import Report, Tried, error_text, remarks

__all__ = ["report_page"]

_PERFETTO = "https://ui.perfetto.dev"


def report_page(report: Report, folder: Path | None = None) -> str:
    """Return a report as a page.

    Args:
        report: The report.
        folder: Folder that the page will be in; links to other files are relative to it. None for absolute ones.

    Raises:
        MissingConditionalImportError: plotly is not installed.

    >>> from composer.diagnosis.verdict import Verdict
    >>> "<h2>Run</h2>" in report_page(Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}))
    True
    """
    name = report.command or "composer doctor"
    parts = (
        tag("h1", "Why is it slow?"),
        tag("pre", tag("code", report.command)) if report.command else None,
        _verdict(report),
        _errors(report),
        _split(report),
        _lines(report),
        _remedies(report),
        _savings(report),
        _trace(report, folder),
        _run(report),
    )
    return document(name, *(part for part in parts if part is not None), command="composer doctor")


def _verdict(report: Report) -> Html:
    verdict = report.verdict
    evidence = [tag("li", each) for each in verdict.evidence]
    return tag(
        "div",
        tag("p", verdict.text),
        tag("ul", *evidence) if evidence else None,
        tag("p", report.advice) if report.advice else None,
        tag("p", report.best_in_words) if report.best else None,
        class_="verdict good" if report.ok else "verdict",
    )


def _errors(report: Report) -> Html | None:
    """Return what loggers and threads raised."""
    if not report.errors:
        return None
    return section("Raised while the training went on", tag("ul", *(tag("li", error_text(e)) for e in report.errors)))


def _split(report: Report) -> Html:
    """Return the timeline and the table of shares."""
    most = max(report.shares.values(), default=0.0) or 1.0
    shades = colors(in_order(list(report.shares)))
    rows = [
        (
            part_name(part),
            milliseconds(share * report.step),
            f"{share:.1%}",
            tag("span", class_="bar", style=f"--part:{share / most:.4f};background:{shades[part]}"),
        )
        for part, share in report.shares.items()
    ]
    shares = table("Time of a step by part", ["part", "ms", "share", ""], rows, right=(1, 2))
    told = (
        f"A step takes {milliseconds(report.step)} ms, the sum of its parts. Each method, callback and logger is one."
    )
    if report.clock > 0.005 * report.step:
        told += f" To measure it takes another {milliseconds(report.clock)} ms, which are left out."
    if not report.steps:
        return section("Where the time of a step goes", tag("p", told), shares)
    usage = "Drag to zoom, double-click to zoom out; click a name to hide a part, double-click to see it alone."
    return section(
        "Where the time of a step goes",
        tag("p", told),
        timeline(report.steps),
        tag("p", usage, class_="note"),
        shares,
        _periodic(report),
        _every_step(report.steps),
    )


def _periodic(report: Report) -> Html | None:
    """Return the note about parts whose share is not that of the measured steps."""
    seconds = sum(sum(step.values()) for step in report.steps)
    for part in ("evaluation", "saving"):
        measured = sum(step.get(part, 0.0) for step in report.steps) / (seconds or 1.0)
        if abs(measured - report.shares.get(part, 0.0)) > 0.02:
            text = "In the table, rare evaluations and checkpoints are spread over all steps that were trained."
            return tag("p", text, class_="note")
    return None


def _every_step(steps: Sequence[Mapping[str, float]]) -> Html:
    parts = in_order(list(dict.fromkeys(part for step in steps for part in step)))
    rows = [
        [number, milliseconds(sum(step.values())), *(milliseconds(step.get(part, 0.0)) for part in parts)]
        for number, step in enumerate(steps, 1)
    ]
    columns = ["step", "all", *map(part_name, parts)]
    cells = table("Milliseconds of every step", columns, rows, right=range(len(columns)))
    return tag("details", tag("summary", f"The {plural(len(steps), 'step')} in numbers (ms)"), cells)


def _lines(report: Report) -> Html | None:
    """Return the hot lines, and those where an accelerator would be waited for."""
    content: list[Html] = []
    if report.lines:
        rows = [(_place(each), part_name(each["part"]), f"{each['share']:.1%}") for each in report.lines]
        content += [
            tag("h3", "Hot lines"),
            tag(
                "p",
                "How often each line of the program was found running, as a fraction of the time of all steps.",
                class_="note",
            ),
            table("Hot lines", ["line", "part", "time"], rows, right=(2,)),
        ]
    if report.waits:
        rows = [(_place(each), each["why"], f"{each['count']:g}") for each in report.waits]
        is_cpu = report.facts.get("device", "cpu") == "cpu"
        told = "In each step the host waits for the accelerator in these lines."
        told += " This run is on the CPU, where they cost nothing." if is_cpu else ""
        content += [
            tag("h3", "Synchronizations"),
            tag("p", told, class_="note"),
            table("Synchronizations", ["line", "what it does", "times a step"], rows, right=(2,)),
        ]
    return section("Lines of the program", *content) if content else None


def _place(line: Mapping[str, Any]) -> Html:
    return tag("code", f"{line['file']}:{line['line']} ({line['in']})", class_="place")


def _remedies(report: Report) -> Html | None:
    if not report.tried:
        return None
    shown = report.ranked if report.combined is None else [report.combined, *report.ranked]
    noise = tag("p", f"The unchanged run against itself: {report.noise}.", class_="note") if report.noise else None
    rows = [tuple(_row(one)) for one in shown]
    usage = "Each was measured in turn with the unchanged run: the mean gain in speed and its 95 % interval."
    write = [tag("h3", "Write"), tag("pre", tag("code", report.best.remedy.lines))] if report.best else []
    return section(
        "Remedies",
        tag("p", usage),
        gains(shown, report.noise),
        noise,
        table("Remedies", ["remedy", "gain", "", "write"], rows, right=(1,)),
        *write,
    )


def _row(one: Tried) -> Iterator[object]:
    """Yield the cells of a remedy."""
    yield tag("code", one.remedy.name)
    yield "" if one.ratio is None else one.ratio
    if one.ratio is None:
        yield tag("span", f"does not run: {one.error}", class_="no")
    else:
        told = ", ".join([*(["pays"] if one.pays else []), *remarks(one)]) or "slower"
        yield tag("span", told, class_="yes" if one.pays else "no")
    yield tag("code", one.remedy.lines)


def _savings(report: Report) -> Html | None:
    if not report.would_save:
        return None
    told = "The run would be faster by at most this without them: computed from the shares, not measured."
    rows = [(part_name(part), f"{gain:+.0%}") for part, gain in report.would_save.items()]
    return section(
        "Evaluation, checkpoints, communication, loggers and callbacks",
        tag("p", told),
        table("Computed gains", ["without", "gain at most"], rows, right=(1,)),
    )


def _trace(report: Report, folder: Path | None) -> Html | None:
    trace = report.trace
    if trace is None:
        return None
    if trace.error:
        return section("Trace", tag("p", str(trace)))
    link = tag("a", Path(trace.path).name, href=_link(Path(trace.path), folder))
    viewer = tag("a", "ui.perfetto.dev", href=_PERFETTO, rel="noreferrer noopener", target="_blank")
    told = (
        f" is the PyTorch profiler's trace of {plural(trace.steps, 'step')} of the unchanged run, which are not among "
        f"those above. Open it at "
    )
    return section("Trace", tag("p", link, told, viewer, ", which reads it in the browser and sends it nowhere."))


def _link(path: Path, folder: Path | None) -> str:
    """Return the address of a file, relative to a folder where both are on one drive."""
    path = path.absolute()
    if folder is None:
        return path.as_uri()
    try:
        # "./" since a name may look like an address: "http:x".
        return "./" + urllib.parse.quote(Path(os.path.relpath(path, folder.absolute())).as_posix())
    except ValueError:
        return path.as_uri()


_FACTS = {
    "composer": "composer",
    "torch": "torch",
    "python": "Python",
    "device": "device",
    "device_name": "device name",
    "ranks": "ranks",
    "cores": "cores that may be used",
    "threads": "threads of an operation",
    "precision": "precision",
    "parameters": "parameters",
    "microbatch": "microbatch size",
    "compiled": "compiled",
    "evaluators": "evaluators",
    "loggers": "loggers",
    "left_out": "not measured, since they write elsewhere",
}


def _run(report: Report) -> Html:
    """Return the command, and the facts of the run and its environment."""
    found = dict(report.facts)
    rows: list[tuple[str, object]] = [(name, _told(found[key])) for key, name in _FACTS.items() if key in found]
    data = found.get("data") or {}
    names = {"loader": "data loader", "dataset": "data set", "batch_size": "batch size", "workers": "data workers"}
    rows += [(name, _told(data[key])) for key, name in names.items() if data.get(key) is not None]
    rows += [("optimizer", _told([each["name"] for each in found["optimizers"]]))] if found.get("optimizers") else []
    rows.append(("time of the diagnosis", f"{report.seconds:.0f} s"))
    return section("Run", table("Run", ["fact", "value"], [row for row in rows if row[1] not in ("", "None")]))


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
