"""``composer verify``: check that a training program computes the same in every way that must not matter."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from composer.cli.program_command import add_program_options, add_program_parser, print_report, target_of
from composer.cli.usage import running_trials, usage_errors

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> from composer.cli.usage import CommandParser
    >>> commands = CommandParser().add_subparsers()
    >>> add_to(commands)
    >>> given = commands.choices["verify"].parse(["--steps", "4", "train.py", "--lr", "0.1"])
    >>> given.steps, given.program
    (4, ['train.py', '--lr', '0.1'])
    """
    command = add_program_parser(
        commands,
        "verify",
        "Check that a training script computes the same results in every configuration that should not change them: "
        "run twice, with other microbatch sizes, on 2 ranks, stopped and resumed, and so on. Each configuration trains "
        "a few steps in a process of its own; the results are compared, and the likely cause of a difference is named.",
        "0 if all checks pass, 1 if a check or the script fails, 2 if the command line is wrong.",
    )
    command.add_argument("--steps", type=int, default=6, metavar="N", help="number of steps to train (default 6)")
    command.add_argument(
        "--checks", metavar="NAME,...", help="names of the checks to run, see --list (default: all that apply)"
    )
    command.add_argument("--list", action="store_true", help="list the checks")
    command.add_argument("--parallel", type=int, metavar="N", help="number of configurations to train at the same time")
    command.add_argument(
        "--time-limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time limit for each configuration (default 300)",
    )
    add_program_options(command)
    command.set_defaults(run=_verify)


def _verify(given: argparse.Namespace) -> None:
    from composer._numbers import positive
    from composer._text import one_of
    from composer.verification.verify import CHECKS, verify

    if given.list:
        for name, text in CHECKS.items():
            sys.stdout.write(f"{name:<14}{text}\n")
        return
    checks = None
    with usage_errors():
        if given.checks is not None:
            checks = [one_of("--checks", name, list(CHECKS)) for name in given.checks.split(",")]
        positive("--parallel", 1 if given.parallel is None else given.parallel)
        positive("--time-limit", given.time_limit)
    target = target_of(given)
    with running_trials(given.folder):
        report = verify(
            target,
            steps=given.steps,
            checks=checks,
            folder=given.folder,
            parallel=given.parallel,
            time_limit=given.time_limit,
        )
    print_report(report, given.json)
