"""``composer report``: write a page about a run, from its logs."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import Any

from composer.cli.usage import CommandParser, usage_errors

__all__ = ["add_to"]

_DESCRIPTION = (
    "Write a page about a run: curves of its metrics with zoom, events, checkpoints, tables, the model, "
    "hyperparameters and the environment, as one HTML file that opens without a network. It is made from the logs of "
    "JSONLinesLogger or CSVLogger, also while the run trains."
)


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> given = commands.choices["report"].parse(["runs/night", "-o", "night.html"])
    >>> given.run_folder, given.output
    ('runs/night', 'night.html')
    """
    command: CommandParser = commands.add_parser(
        "report",
        prog="composer report",
        description=_DESCRIPTION,
        epilog="Exit codes: 0 if the page was written, 1 if the logs cannot be read, 2 if the command line is wrong.",
    )
    command.add_argument("run_folder", metavar="RUN", help="folder of the run, or one of its logs")
    command.add_argument(
        "-o", "--output", metavar="FILE", help="path of the page (default: report.html in the folder of the log)"
    )
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    command.set_defaults(run=_report)


def _report(given: argparse.Namespace) -> None:
    from composer._html import check_plots, page_file, save_document
    from composer.history import History
    from composer.history._read import local_run
    from composer.reports import run_report
    from composer.reports.run_images import run_images
    from composer.reports.run_time import find_ledger, seconds_by_category

    check_plots("composer report")
    with usage_errors():
        run = local_run(given.run_folder)
        if not run.exists():
            History.read(run)  # raises with a suggestion
        page = None if given.output is None else Path(given.output)
        if page is not None:
            page_file("--output", page)
    history = History.read(run)
    if page is None:
        page = history.files[0].absolute().parent / "report.html"
        with usage_errors():
            page_file("--output", page)
    folder = run if run.is_dir() else run.absolute().parent
    ledger = find_ledger(history, folder)
    times = None if ledger is None else seconds_by_category(ledger)
    started = min((event.time for event in history.events if event.time is not None), default=None)
    images = run_images(history.files[0].absolute().parent, started)
    goodput = "" if ledger is None else f"{ledger.of_all_ranks()}."
    document = run_report(history, time_by_category=times, goodput=goodput, images=images, folder=folder)
    save_document(document, page)
    sys.stdout.write(f"{page}\n")
    if given.open:
        webbrowser.open(page.absolute().as_uri())
