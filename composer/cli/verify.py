"""``composer verify``: check that a training program computes the same in every way that must not matter."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any

from composer.cli.launch_options import COMMANDS

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> parser = argparse.ArgumentParser()
    >>> add_to(parser.add_subparsers())
    >>> given = parser.parse_args(["verify", "--steps", "4", "train.py", "--lr", "0.1"])
    >>> given.steps, given.program
    (4, ['train.py', '--lr', '0.1'])
    """
    command = commands.add_parser(
        "verify",
        help=COMMANDS["verify"],
        description="Train a few steps of a program in many ways that must not matter (again, in microbatches, on 2 "
        "ranks, killed and resumed, ...), compare them, and name the cause of what differs. The program needs no "
        "change, and nothing is written to its folders and trackers. The exit code is 1 if a check fails.",
        usage="composer verify [OPTION ...] SCRIPT [ARGUMENT ...]",
    )
    command.add_argument("--steps", type=int, default=6, metavar="N", help="number of steps to train (default 6)")
    command.add_argument("--checks", metavar="NAME,...", help="the checks to run (default: all that apply)")
    command.add_argument("--list", action="store_true", help="list the checks")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--folder", help="keep the records of the runs here; the same command again goes on")
    command.add_argument("--parallel", type=int, metavar="N", help="number of runs at the same time")
    command.add_argument(
        "--time-limit", type=float, default=300.0, metavar="SECONDS", help="time limit of a run (default 300)"
    )
    command.add_argument(
        "--fit", type=int, default=1, metavar="N", help="which call of fit of the program is meant (default 1)"
    )
    command.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="a script with its arguments, -m MODULE, or train CONFIG.yaml",
    )
    command.set_defaults(run=_verify)


def _verify(given: argparse.Namespace) -> None:
    from composer.trials.termination import Terminated, terminate_cleanly
    from composer.verification.verify import CHECKS, verify

    if given.list:
        for name, text in CHECKS.items():
            sys.stdout.write(f"{name:<14}{text}\n")
        return
    try:
        with terminate_cleanly():
            report = verify(
                given.program,
                steps=given.steps,
                checks=given.checks.split(",") if given.checks else None,
                folder=given.folder,
                parallel=given.parallel,
                time_limit=given.time_limit,
                fit=given.fit,
            )
    except KeyboardInterrupt as interruption:
        signum = interruption.signum if isinstance(interruption, Terminated) else signal.SIGINT
        goes_on = f" The same command with --folder {given.folder} goes on." if given.folder else ""
        sys.stderr.write(f"composer: interrupted; all runs were ended.{goes_on}\n")
        raise SystemExit(128 + signum) from None
    if given.json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(f"{report}\n")
    if not report.ok:
        raise SystemExit(1)
