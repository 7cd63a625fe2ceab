"""``composer verify``: check that a training program computes the same in every way that must not matter."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from composer.cli.launch_options import COMMANDS
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
    command = commands.add_parser(
        "verify",
        help=COMMANDS["verify"],
        description="Check that a training script computes the same results in every configuration that should not "
        "change them: run twice, with other microbatch sizes, on 2 ranks, stopped and resumed, and so on. Each "
        "configuration trains a few steps in a process of its own; the results are compared, and the likely cause of a "
        "difference is named. The script needs no changes, and nothing is written to its folders or experiment "
        "trackers.",
        usage="composer verify [OPTION ...] SCRIPT [ARGUMENT ...]\n"
        "       composer verify [OPTION ...] -m MODULE [ARGUMENT ...]\n"
        "       composer verify [OPTION ...] train CONFIG.yaml",
        epilog="Exit code: 0 if all checks pass, 1 if a check or the script fails, 2 if the command line is wrong.",
    )
    command.num_positionals = 0
    command.add_argument("--steps", type=int, default=6, metavar="N", help="number of steps to train (default 6)")
    command.add_argument(
        "--checks", metavar="NAME,...", help="names of the checks to run, see --list (default: all that apply)"
    )
    command.add_argument("--list", action="store_true", help="list the checks")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument(
        "--folder", help="keep the results in this folder; running the same command again continues with what is left"
    )
    command.add_argument("--parallel", type=int, metavar="N", help="number of configurations to train at the same time")
    command.add_argument(
        "--time-limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time limit for each configuration (default 300)",
    )
    command.add_argument(
        "--fit",
        type=int,
        default=1,
        metavar="N",
        help="which call of Trainer.fit to check, for scripts with several (default 1)",
    )
    command.set_defaults(run=_verify)


def _verify(given: argparse.Namespace) -> None:
    from composer._text import one_of, positive
    from composer.trials.target import Target
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
        target = Target.from_command(given.program or (), given.fit)
    with running_trials(given.folder):
        report = verify(
            target,
            steps=given.steps,
            checks=checks,
            folder=given.folder,
            parallel=given.parallel,
            time_limit=given.time_limit,
        )
    if given.json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(f"{report}\n")
    if not report.ok:
        raise SystemExit(1)
