"""The command ``composer``: dispatch to the launcher or to a subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from composer._secrets.masking import mask_text
from composer.cli import launcher
from composer.cli.launch_options import COMMANDS
from composer.cli.usage import (
    CLOSED_STDOUT,
    INTERRUPTED,
    CommandParser,
    UsageError,
    discard_stdout,
    raise_if_stdout_closed,
)

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
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as in composer blame ... | head
        discard_stdout()
        return CLOSED_STDOUT
    except KeyboardInterrupt:  # also while modules are imported
        print("composer: interrupted", file=sys.stderr)  # noqa: T201 - this is a program
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        return launcher.main(arguments)
    # These import torch, which would delay the launcher's help and usage errors.
    from composer.cli import blame, checkpoint, compare, doctor, env, estimate, explore, fork, replay, report, verify

    parser = CommandParser(prog="composer", description="Tools for training with composer.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (checkpoint, env, estimate, verify, doctor, explore, replay, blame, fork, report, compare):
        command.add_to(commands)
    chosen: CommandParser = commands.choices[arguments[0]]
    given = chosen.parse(arguments[1:])
    try:
        given.run(given)
    except UsageError as error:
        chosen.error(mask_text(error))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise_if_stdout_closed(error)
        # Errors that the user can fix; a traceback would not help.
        print(f"composer: {mask_text(error)}", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
