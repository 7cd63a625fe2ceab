"""What commands that take a training script and print a report have in common, such as ``composer verify train.py``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from composer.cli.launch_options import COMMANDS
from composer.cli.usage import CommandParser, usage_errors

if TYPE_CHECKING:
    from composer.trials.target import Target

__all__ = ["add_program_options", "add_program_parser", "print_report", "target_of", "write_report"]

_CONTINUES = "keep the results in this folder; running the same command again continues with what is left"


def add_program_parser(commands: Any, name: str, description: str, exit_codes: str) -> CommandParser:
    """Add the parser of a command that is followed by a training script, and return it.

    Args:
        commands: What ``add_subparsers`` of the parser returned.
        name: Name of the command, which must be in ``COMMANDS``.
        description: What it does.
        exit_codes: The meaning of the exit codes.

    >>> commands = CommandParser().add_subparsers()
    >>> add_program_parser(commands, "verify", "Check a script.", "0 if all is well.").parse(
    ...     ["train.py"]
    ... ).program
    ['train.py']
    """
    command = commands.add_parser(
        name,
        help=COMMANDS[name],
        description=f"{description} The script needs no changes, and nothing is written to its folders or experiment "
        "trackers.",
        usage=f"composer {name} [OPTION ...] SCRIPT [ARGUMENT ...]\n"
        f"       composer {name} [OPTION ...] -m MODULE [ARGUMENT ...]\n"
        f"       composer {name} [OPTION ...] train CONFIG.yaml",
        epilog=f"Exit code: {exit_codes}",
    )
    command.num_positionals = 0
    return command


def add_program_options(command: CommandParser, folder_help: str = _CONTINUES) -> None:
    """Add the options that all these commands have: ``--json``, ``--folder`` and ``--fit``.

    Args:
        command: The parser.
        folder_help: What the folder is for.

    >>> parser = CommandParser()
    >>> add_program_options(parser)
    >>> parser.parse(["--fit", "2"]).fit
    2
    """
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--folder", help=folder_help)
    command.add_argument(
        "--fit",
        type=int,
        default=1,
        metavar="N",
        help="which call of Trainer.fit is meant, for scripts with several (default 1)",
    )


def target_of(given: argparse.Namespace) -> Target:
    """Return the training script of a command line.

    Args:
        given: What was parsed.

    Raises:
        UsageError: No script is given, or it does not exist.

    >>> target_of(argparse.Namespace(program=["train", "run.yaml"], fit=1)).arguments
    ('run.yaml',)
    """
    from composer.trials.target import Target

    with usage_errors():
        return Target.from_command(given.program or (), given.fit)


class _Report(Protocol):
    """What these commands print."""

    def to_json(self) -> Mapping[str, Any]: ...


class _Judged(_Report, Protocol):
    """A report that says whether all is well."""

    @property
    def ok(self) -> bool: ...


def write_report(report: _Report, as_json: bool) -> None:
    """Print a report that judges nothing.

    Args:
        report: The report.
        as_json: Whether to print it as JSON.

    >>> write_report(composer.explore(["train.py"], target="Accuracy>=0.9"), as_json=True)  # doctest: +SKIP
    """
    if as_json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(f"{report}\n")


def print_report(report: _Judged, as_json: bool) -> None:
    """Print a report.

    Args:
        report: The report.
        as_json: Whether to print it as JSON.

    Raises:
        SystemExit: The report says that something is wrong: exit code 1.

    >>> print_report(composer.verify(["train.py"]), as_json=True)  # doctest: +SKIP
    """
    write_report(report, as_json)
    if not report.ok:
        raise SystemExit(1)
