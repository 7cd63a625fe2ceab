"""``composer doctor``: find out why a training program is slow, and try remedies."""

from __future__ import annotations

import argparse
import json
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
    >>> given = parser.parse_args(["doctor", "--steps", "30", "train.py", "--lr", "0.1"])
    >>> given.steps, given.program
    (30, ['train.py', '--lr', '0.1'])
    """
    command = commands.add_parser(
        "doctor",
        help=COMMANDS["doctor"],
        description="Train some steps of a program as it is, show where their time goes, name what bounds the speed, "
        "and try what may make it faster, in turn with the unchanged run. The program needs no change, and nothing is "
        "written to its folders and trackers. The exit code is 1 if something is wrong.",
        usage="composer doctor [OPTION ...] SCRIPT [ARGUMENT ...]",
    )
    command.add_argument("--steps", type=int, default=20, metavar="N", help="number of steps to measure (default 20)")
    command.add_argument(
        "--remedies", metavar="NAME,...", help="the remedies to try (default: all that start quickly), or none"
    )
    command.add_argument("--list", action="store_true", help="list the remedies")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--folder", help="keep the records and logs of the trials here")
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
    command.add_argument(
        "--fit", type=int, default=1, metavar="N", help="which call of fit of the program is meant (default 1)"
    )
    command.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="a script with its arguments, -m MODULE, or train CONFIG.yaml",
    )
    command.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> None:
    from composer.diagnosis.doctor import doctor
    from composer.diagnosis.remedies import REMEDIES

    if given.list:
        for name, text in REMEDIES.items():
            sys.stdout.write(f"{name:<16}{text}\n")
        return
    named = None if given.remedies is None else [name for name in given.remedies.split(",") if name not in ("", "none")]
    try:
        report = doctor(
            given.program,
            steps=given.steps,
            remedies=named,
            changes=given.set,
            ranks=given.ranks,
            folder=given.folder,
            time_limit=given.time_limit,
            fit=given.fit,
            progress=_say,
        )
    except KeyboardInterrupt:
        sys.stderr.write("composer: interrupted; all runs were ended.\n")
        raise SystemExit(130) from None
    if given.json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(f"{report}\n")
    if not report.ok:
        raise SystemExit(1)


def _say(text: str) -> None:
    """Show on stderr what has been measured."""
    sys.stderr.write(f"composer doctor: {text}\n")
    sys.stderr.flush()
