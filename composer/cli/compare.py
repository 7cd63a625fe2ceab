"""``composer compare``: runs, or groups of runs with different seeds, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from composer.cli.launch_options import COMMANDS
from composer.cli.usage import CommandParser, UsageError, usage_errors

__all__ = ["add_to"]

_DESCRIPTION = (
    "Compare runs by the logs of JSONLinesLogger or CSVLogger: last and best metric, time to a target, throughput, "
    "with 95 % intervals where groups have several seeds, which hyperparameters and versions differ, and which runs "
    "are best in time and quality. The first group is the baseline. Runs that differ only in seed and name are one "
    "group."
)


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> given = commands.choices["compare"].parse(
    ...     ["a", "b", "--group", "c=d,e", "--target", "Accuracy>=0.9"]
    ... )
    >>> given.runs, given.group, given.target
    (['a', 'b'], ['c=d,e'], 'Accuracy>=0.9')
    """
    command: CommandParser = commands.add_parser(
        "compare",
        prog="composer compare",
        help=COMMANDS["compare"],
        description=_DESCRIPTION,
        epilog="Exit codes: 0 if the runs were compared, 1 if logs cannot be read or compared, 2 if the command line "
        "is wrong.",
    )
    command.add_argument("runs", metavar="RUN", nargs="*", help="folder of a run, or one of its logs")
    command.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=RUN,RUN",
        help="compare these runs as one group; repeatable. Groups come before other runs",
    )
    command.add_argument(
        "--metric",
        metavar="NAME",
        help="the metric, such as eval/MulticlassAccuracy (default: one of an evaluation)",
    )
    command.add_argument(
        "--target", metavar="NAME>=VALUE", help="also compare the time to this value of a metric; or NAME<=VALUE"
    )
    command.add_argument("-o", "--output", metavar="FILE", help="write a page with curves, which opens offline")
    command.add_argument("--json", action="store_true", help="print the comparison as JSON")
    command.set_defaults(run=_compare)


def _compare(given: argparse.Namespace) -> None:
    from composer._html import check_plots, page_file
    from composer.core.metric_target import MetricTarget
    from composer.reports.comparison import compare_runs

    with usage_errors():
        groups = _groups(given.group)
        number = len(given.runs) + sum(map(len, groups.values()))
        if number < 2:
            raise ValueError(f"a comparison takes at least two runs, but {number or 'none'} was given.")
        if given.target is not None:
            MetricTarget.parse(given.target)
        page = None if given.output is None else page_file("--output", given.output)
        for run in [*given.runs, *(run for some in groups.values() for run in some)]:
            _check(run)
    if page is not None:
        check_plots("composer compare --output")
    found = compare_runs(*given.runs, groups=groups, metric=given.metric, target=given.target)
    if page is not None:
        found.write_html(page)
        sys.stderr.write(f"composer compare: wrote {given.output}\n")
    if given.json:
        json.dump(found.to_json(), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from rich.console import Console

        Console(highlight=False).print(found)


def _groups(words: list[str]) -> dict[str, list[str]]:
    """Return the runs by group from ``NAME=RUN,RUN``."""
    groups: dict[str, list[str]] = {}
    for word in words:
        name, equals, runs = word.partition("=")
        # A path may have a comma.
        listed = [runs] if Path(runs).exists() else [run for run in runs.split(",") if run]
        if not (name and equals and runs and listed):
            raise ValueError(f"--group must be NAME=RUN,RUN, such as adamw=runs/a1,runs/a2, but got {word!r}.")
        groups.setdefault(name, []).extend(listed)
    return groups


def _check(run: str) -> None:
    """Raise if a run does not exist, before others are read."""
    from composer.history import History
    from composer.history._read import local_run

    if not run or "\0" in run:
        raise UsageError(f"{run!r} is not a path of a run.")
    if not local_run(run).exists():
        History.read(run)  # raises with a suggestion
