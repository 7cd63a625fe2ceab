"""``composer env``: report the system, GPUs and library versions for a bug report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from composer.cli.launch_options import COMMANDS

__all__ = ["add_to", "main"]


def add_to(commands: Any) -> None:
    """Add the command to a parser.

    Args:
        commands: What ``add_subparsers`` of the parser returned.

    >>> parser = argparse.ArgumentParser()
    >>> add_to(parser.add_subparsers())
    >>> parser.parse_args(["env", "--json"]).json
    True
    """
    command = commands.add_parser("env", help=COMMANDS["env"], description="Report the environment.")
    _add_arguments(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``composer_collect_env``, the former name of ``composer env``.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code.

    >>> main([])
    versions
      composer ...
    0
    """
    parser = argparse.ArgumentParser(prog="composer_collect_env", description="Report the environment.")
    _add_arguments(parser)
    given = parser.parse_args(arguments)
    given.run(given)
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=_report)


def _report(given: argparse.Namespace) -> None:
    from composer.environment import collect_env, print_env

    if given.json:
        json.dump(collect_env(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_env()


if __name__ == "__main__":
    sys.exit(main())
