"""``composer doctor``: find out why a training program is slow, and try remedies."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.cli.program_command import add_program_options, add_program_parser, print_report, target_of
from composer.cli.usage import running_trials, usage_errors

if TYPE_CHECKING:
    from composer.diagnosis.report import Report

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> from composer.cli.usage import CommandParser
    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> given = commands.choices["doctor"].parse(["--steps", "30", "train.py", "--lr", "0.1"])
    >>> given.steps, given.program
    (30, ['train.py', '--lr', '0.1'])
    """
    command = add_program_parser(
        commands,
        "doctor",
        "Find out why a training script is slow: train some steps as they are, show where their time goes, name what "
        "limits the speed, and measure changes that may make it faster, in turn with the unchanged run.",
        "0 if there is no bottleneck, even if a remedy pays, 1 if there is one, the script or one of its loggers "
        "fails, or the page cannot be written, 2 if the command line is wrong.",
    )
    command.add_argument("--steps", type=int, default=20, metavar="N", help="number of steps to measure (default 20)")
    command.add_argument(
        "--remedies", metavar="NAME,...", help="the remedies to try (default: all that start quickly), or none"
    )
    command.add_argument("--list", action="store_true", help="list the remedies")
    command.add_argument("--ranks", type=int, default=1, metavar="N", help="number of processes (default 1)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change an argument of the Trainer first, such as train_dataloader.num_workers=4; repeatable",
    )
    command.add_argument(
        "--time-limit", type=float, default=300.0, metavar="SECONDS", help="time limit of a trial (default 300)"
    )
    command.add_argument("--html", metavar="FILE", help="write the report as an HTML page, which opens offline")
    trace = command.add_mutually_exclusive_group()
    trace.add_argument(
        "--trace",
        metavar="FILE",
        help="write the PyTorch profiler's trace of three further steps, for https://ui.perfetto.dev (default with "
        "--html: NAME.trace.json beside the page)",
    )
    trace.add_argument("--no-trace", action="store_true", help="record no trace for the page")
    add_program_options(command, "keep the records and logs of the trials here")
    command.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> None:
    from composer._numbers import positive
    from composer._text import one_of
    from composer.diagnosis.doctor import doctor
    from composer.diagnosis.remedies import REMEDIES

    if given.list:
        for name, text in REMEDIES.items():
            sys.stdout.write(f"{name:<16}{text}\n")
        return
    remedies = None
    with usage_errors():
        if given.remedies is not None:
            names = [name for name in given.remedies.split(",") if name not in ("", "none")]
            remedies = [one_of("--remedies", name, list(REMEDIES)) for name in names]
        positive("--time-limit", given.time_limit)
        page, trace = _files(given)
    target = target_of(given)
    with running_trials():
        report = doctor(
            target,
            steps=given.steps,
            remedies=remedies,
            changes=given.set,
            ranks=given.ranks,
            folder=given.folder,
            time_limit=given.time_limit,
            trace=trace,
            progress=_say,
        )
    is_written = page is None or _wrote(report, page)
    print_report(report, given.json)
    if not is_written:
        raise SystemExit(1)


def _wrote(report: Report, page: Path) -> bool:
    """Write the page, and return whether that worked: what was measured is printed all the same."""
    try:
        report.write_html(page)
    except OSError as error:
        _say(f"the page could not be written: {error}")
        return False
    _say(f"wrote {page}")
    return True


def _files(given: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return the files of the page and of the trace; errors come before anything is measured."""
    from composer._html import check_plots, page_file
    from composer.diagnosis.step_trace import trace_file

    page = None if given.html is None else page_file("--html", given.html)
    trace = None if given.trace is None else trace_file("--trace", given.trace)
    if page is None:
        return None, trace
    check_plots("composer doctor --html")
    if trace is None and not given.no_trace:
        trace = trace_file("--trace", page.with_suffix(".trace.json"))
    if trace == page:
        raise ValueError(f"--html and --trace name the same file, {str(page)!r}. Choose different names.")
    return page, trace


def _say(text: str) -> None:
    """Show on stderr what has been measured."""
    sys.stderr.write(f"composer doctor: {text}\n")
    sys.stderr.flush()
