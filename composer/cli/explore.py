"""``composer explore``: find out which methods pay on a training program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from composer._text import one_of
from composer.cli.program_command import add_program_options, add_program_parser, target_of, write_report
from composer.cli.usage import CommandParser, running_trials, usage_errors

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> given = commands.choices["explore"].parse(["--target", "Accuracy>=0.9", "train.py", "--lr", "0.1"])
    >>> given.target, given.program
    ('Accuracy>=0.9', ['train.py', '--lr', '0.1'])
    """
    command = add_program_parser(
        commands,
        "explore",
        "Find out which methods, learning rate, batch size and settings make a training script faster or better, and "
        "which do not: by short runs first, and then by pairs of runs with fresh seeds on evaluation data that nothing "
        "was selected by. The plan is printed first: what can be told from noise, and how long it takes.",
        "0 if the program was explored, whatever was found, 1 if the script fails or does not reach the target, 2 if "
        "the command line is wrong, 130 after Ctrl-C, after which the same command continues. Options may also follow "
        "the script if the goal does, those of the script among them or after --.",
    )
    _add_goal(command)
    command.needed = ("--target", "--quality-at", "--within", "--list")
    command.add_argument(
        "--budget",
        metavar="TIME",
        help="wall time of all runs together, such as 2h, of which two runs of the unchanged script are the least "
        "(default: what the plan takes)",
    )
    command.add_argument(
        "--search-cost",
        type=int,
        default=15,
        metavar="N",
        help="cost of the search at most, in trainings of the unchanged script, at least 6 (default 15); with more, "
        "less of what pays is missed",
    )
    command.add_argument(
        "--pairs", type=int, default=8, metavar="N", help="pairs of runs that confirm, at least 6 (default 8)"
    )
    _add_choice(command)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change an argument of the Trainer in all runs, such as max_duration=5ep; repeatable",
    )
    command.add_argument("--ranks", type=int, default=1, metavar="N", help="number of processes of a run (default 1)")
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="added to the seeds of all runs, to repeat with others"
    )
    command.add_argument(
        "--time-limit", default="1d", metavar="TIME", help="wall time after which a run counts as failed (default 1d)"
    )
    command.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="count seconds of wall time, or of CPU time where other processes use the CPU as well (default wall)",
    )
    command.add_argument("--html", metavar="FILE", help="write the report as an HTML page, which opens offline")
    add_program_options(
        command,
        "keep the records of runs in this folder; the same command continues there, also after a crash (default: "
        "explore- with the name of the script)",
    )
    command.set_defaults(run=_explore)


def _add_goal(command: CommandParser) -> None:
    """Add the options of which one must be given."""
    goal = command.add_mutually_exclusive_group()
    goal.add_argument(
        "--target", metavar="METRIC>=VALUE", help="to reach this value as soon as possible; or METRIC<=VALUE"
    )
    goal.add_argument(
        "--quality-at", metavar="TIME", help="to have the best --metric after this time of training, such as 10m"
    )
    goal.add_argument(
        "--within",
        metavar="PERCENT",
        help="to come so near to the final --metric of the unchanged program as soon as possible, such as 0.5%%",
    )
    command.add_argument(
        "--metric",
        metavar="NAME",
        help="the metric of --quality-at and --within (default: the only one that is evaluated)",
    )


def _add_choice(command: CommandParser) -> None:
    """Add the options that say what is tried."""
    command.add_argument(
        "--methods", metavar="NAME,...", help="names of the methods to try, see --list (default: all), or none"
    )
    command.add_argument("--without", metavar="NAME,...", help="names of what to leave out, see --list")
    command.add_argument("--list", action="store_true", help="list the methods")
    command.add_argument(
        "--try",
        dest="extra",
        action="append",
        default=[],
        metavar="CHANGE",
        help="try this as well, such as 'algorithms+=MyMethod()' with a class of the script; repeatable",
    )
    command.add_argument(
        "--confirm",
        action="append",
        metavar="PART",
        help="compare this recipe with the tuned baseline instead of searching: methods such as 'BlurPool+EMA', and "
        "changes such as optimizers.lr=0.1; repeatable",
    )


def _explore(given: argparse.Namespace) -> None:
    from composer._html import check_plots, page_file
    from composer.exploration.choice import CHOICES, TUNING, check_changes, variant_of
    from composer.exploration.command import default_folder
    from composer.exploration.explore import explore

    if given.list:
        sys.stdout.write("\n".join([*CHOICES, *(f"{name} (only for --without)" for name in TUNING), ""]))
        return
    with usage_errors():
        methods = None if given.methods is None else _names("--methods", given.methods, CHOICES)
        without = [] if given.without is None else _names("--without", given.without, (*CHOICES, *TUNING))
        check_changes("--set", given.set)
        for change in given.extra if given.confirm is None else ():
            variant_of("--try", change)
        page = None if given.html is None else page_file("--html", given.html)
    if page is not None:
        check_plots("composer explore --html")
    target = target_of(given)
    folder = default_folder(target) if given.folder is None else given.folder
    begun: list[str] = []

    def say(text: str) -> None:
        if not begun:
            _say(f"the records of runs are kept in {folder}; the same command continues there")
        begun.append(text)
        _say(text)

    with running_trials(folder):
        found = explore(
            target,
            target=given.target,
            quality_at=given.quality_at,
            within=given.within,
            metric=given.metric,
            budget=given.budget,
            search_cost=given.search_cost,
            pairs=given.pairs,
            methods=methods,
            without=without,
            extra=given.extra,
            confirm=given.confirm,
            changes=given.set,
            ranks=given.ranks,
            seed=given.seed,
            folder=folder,
            time_limit=given.time_limit,
            clock=given.clock,
            progress=say,
        )
    write_report(found, given.json)
    if page is not None:
        found.write_html(page)
        _say(f"wrote {page}")


def _names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names in the value of an option, of which there are none if it is "none"."""
    if text.strip() == "none":
        return []
    if not text.strip():
        raise ValueError(f"{option} is empty. Write names that composer explore --list has, or none.")
    return [one_of(option, name.strip(), known) for name in text.split(",")]


def _say(text: str) -> None:
    """Show on stderr what runs."""
    sys.stderr.write(f"composer explore: {text}\n")
    sys.stderr.flush()
