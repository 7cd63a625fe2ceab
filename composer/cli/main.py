"""The command ``composer``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from composer._version import __version__
from composer.cli import checkpoint

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What was written after its name; None takes that of the process.

    Returns:
        The exit code.

    >>> main(["checkpoint", "inspect", "no_such_file.pt"])
    1
    """
    parser = argparse.ArgumentParser(prog="composer", description="Tools for training with composer.")
    parser.add_argument("--version", action="version", version=f"composer {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    checkpoint.add_to(commands)
    given = parser.parse_args(arguments)
    try:
        given.run(given)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        # What the user can mend; the lines of our code would not help.
        print(f"composer: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
