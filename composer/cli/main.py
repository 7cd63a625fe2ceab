"""The command ``composer``: dispatch to the launcher or to a subcommand."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from composer._interrupts import INTERRUPTED, CtrlC

__all__ = ["main"]

_MESSAGE = "composer: interrupted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code.

    >>> main(["checkpoint", "inspect", "no_such_file.pt"])
    1
    """
    # Each import before this is a moment in which Ctrl-C is a traceback.
    with CtrlC(_MESSAGE, INTERRUPTED) as ctrl_c:
        return _main(sys.argv[1:] if arguments is None else arguments, ctrl_c)


def _main(arguments: Sequence[str], ctrl_c: CtrlC) -> int:
    from composer.cli.usage import CLOSED_STDOUT, discard_stdout

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files and metrics may have characters that the terminal or a pipe cannot encode.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(arguments, ctrl_c)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as in composer blame ... | head
        discard_stdout()
        return CLOSED_STDOUT
    except KeyboardInterrupt:
        print(_MESSAGE, file=sys.stderr)  # noqa: T201 - this is a program
        return INTERRUPTED


def _run(arguments: Sequence[str], ctrl_c: CtrlC) -> int:
    from composer.cli.launch_options import COMMANDS

    if not arguments or arguments[0] not in COMMANDS:
        from composer.cli import launcher

        ctrl_c.raises()
        return launcher.main(arguments)
    # These import torch, which would delay the launcher's help and usage errors.
    from composer._secrets.masking import mask_text
    from composer.cli import blame, checkpoint, compare, doctor, env, estimate, explore, fork, replay, report, verify
    from composer.cli.usage import CommandParser, UsageError, raise_if_stdout_closed

    parser = CommandParser(prog="composer", description="Tools for training with composer.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (checkpoint, env, estimate, verify, doctor, explore, replay, blame, fork, report, compare):
        command.add_to(commands)
    chosen: CommandParser = commands.choices[arguments[0]]
    given = chosen.parse(arguments[1:])
    ctrl_c.raises()
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
