"""The command ``composer``: dispatch to the launcher or to a subcommand."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from composer._secrets.masking import mask_text
from composer._text import did_you_mean
from composer.cli import launcher
from composer.cli.launch_options import COMMANDS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code.

    >>> main(["checkpoint", "inspect", "no_such_file.pt"])
    1
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] not in COMMANDS:
        return launcher.main(arguments)
    # These import torch, which would delay the launcher's help and usage errors.
    from composer.cli import blame, checkpoint, env, estimate, fork, replay, verify

    parser = argparse.ArgumentParser(prog="composer", description="Tools for training with composer.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    checkpoint.add_to(commands)
    env.add_to(commands)
    estimate.add_to(commands)
    verify.add_to(commands)
    replay.add_to(commands)
    blame.add_to(commands)
    fork.add_to(commands)
    # What follows "--" is a program with its own options.
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    given, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        options = re.findall(r"--[\w-]+", commands.choices[arguments[0]].format_help())
        parser.error(f"unrecognized arguments: {' '.join(unknown)}.{did_you_mean(unknown[0], options)}")
    if end < len(arguments):
        if not hasattr(given, "program"):
            parser.error(f"composer {arguments[0]} takes no program after --.")
        given.program = [*(given.program or ()), *arguments[end + 1 :]]
    try:
        given.run(given)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        # Errors that the user can fix; a traceback would not help.
        print(f"composer: {mask_text(error)}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
