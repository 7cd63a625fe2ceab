"""Command lines of ``composer COMMAND``: options, the program after them, and errors of one line with exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import signal
import sys
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

from composer._text import did_you_mean

__all__ = [
    "CLOSED_STDOUT",
    "ClosedStdoutError",
    "CommandParser",
    "UsageError",
    "discard_stdout",
    "raise_if_stdout_closed",
    "running_trials",
    "split_program",
    "usage_errors",
]

# Of a shell for a process that ended by SIGPIPE.
CLOSED_STDOUT = 141


class UsageError(Exception):
    """The command line is wrong: the command ends with this line and exit code 2.

    >>> print(UsageError("--step must not be negative."))
    --step must not be negative.
    """


class CommandParser(argparse.ArgumentParser):
    """A parser whose usage errors are one line.

    Attributes:
        num_positionals: Number of words before the program; None for a command that runs none.
        needed: Options of which the command needs one. If there is one only among the arguments of the program, all
            options of the command that are there are its own.

    >>> CommandParser(prog="composer env").prog
    'composer env'
    """

    num_positionals: int | None = None
    needed: tuple[str, ...] = ()

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """End the process with a line and exit code 2."""
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"composer: {message}{end} See {self.prog} --help.\n")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words after the name of the command; options may be between positional arguments.

        An unknown option is an error with a suggestion, and so is a word too many.

        Args:
            words: The words.
        """
        program: list[str] | None = None
        if self.num_positionals is not None:
            words, program = split_program(self, words, self.num_positionals)
            if program is not None and _has(program, self.needed) and not _has(words, self.needed):
                own, program = _taken_out(self, program)
                words = [*words, *own]
        elif "--" in words:
            self.error("this command takes no program after --")
        # argparse does not mix options and positional arguments of a command with subcommands.
        parse = self.parse_known_intermixed_args if self._subparsers is None else self.parse_known_args
        given, unknown = parse(words)
        if unknown:
            _chosen(self, words)._refuse(unknown)
        given.program = program
        return given

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End the process for words that are neither options nor arguments of the command."""
        options = [word for word in unknown if word.startswith("-") and len(word) > 1]
        if options:
            known = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(options[0].partition("=")[0], known)
            self.error(f"there is no option {options[0]!r}.{hint}")
        taken = [str(action.metavar or action.dest) for action in self._get_positional_actions()]
        takes = f"takes one {' and one '.join(taken)}" if taken else "takes only options"
        self.error(f"{self.prog} {takes}, but got {' '.join(unknown)!r} as well.")


def _chosen(parser: CommandParser, words: Sequence[str]) -> CommandParser:
    """The parser of the subcommand that words name, or the parser itself if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return next((action.choices[word] for word in words if word in action.choices), parser)
    return parser


def split_program(
    parser: argparse.ArgumentParser, words: Sequence[str], num_positionals: int
) -> tuple[list[str], list[str] | None]:
    """Return the words for a command, and those of the program that follows them, or None if none does.

    The program begins at the first word that is neither an option, nor the value of one, nor one of the positional
    arguments; at ``-m``; or after ``--``.

    Args:
        parser: The parser of the command.
        words: The words.
        num_positionals: Number of positional arguments of the command.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--step", type=int)
    >>> split_program(parser, ["out", "--step", "3", "train.py", "--lr", "1"], 1)
    (['out', '--step', '3'], ['train.py', '--lr', '1'])
    """
    takes_value = {name: action.nargs is None for action in parser._actions for name in action.option_strings}
    number, count = 0, 0
    while number < len(words):
        word = words[number]
        if word == "--":
            return list(words[:number]), list(words[number + 1 :])
        if word == "-m":
            return list(words[:number]), list(words[number:])
        if word.startswith("-") and len(word) > 1:
            number += takes_value.get(word, False)
        else:
            count += 1
            if count > num_positionals:
                return list(words[:number]), list(words[number:])
        number += 1
    return list(words), None


def _has(words: Sequence[str], options: Sequence[str]) -> bool:
    """Whether one of some options is among words that are not after "--"."""
    return any(word.partition("=")[0] in options for word in itertools.takewhile(lambda word: word != "--", words))


def _taken_out(parser: argparse.ArgumentParser, program: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of a command, with their values, among the words of a program, and the other words.

    After "--" all words are those of the program.
    """
    takes_value = {name: action.nargs is None for action in parser._actions for name in action.option_strings}
    own, others = list[str](), list[str]()
    words = iter(program)
    for word in words:
        if word == "--":
            return own, [*others, *words]
        name, separator, _ = word.partition("=")
        if name not in takes_value:
            others.append(word)
            continue
        own.append(word)
        if takes_value[name] and not separator:
            own += itertools.islice(words, 1)
    return own, others


@contextlib.contextmanager
def usage_errors() -> Generator[None]:
    """Turn errors of values that come from the command line into usage errors.

    Raises:
        UsageError: The block raises a FileExistsError, FileNotFoundError, TypeError or ValueError.

    >>> with usage_errors():
    ...     raise ValueError("--at must be at least 1.")
    Traceback (most recent call last):
    ...
    composer.cli.usage.UsageError: --at must be at least 1.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError, TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


@contextlib.contextmanager
def running_trials(folder: str | None = None) -> Generator[None]:
    """Turn errors of arguments into usage errors, and a signal into a line and its exit code, while trials run.

    Args:
        folder: Folder of the records with which the same command continues; None if it starts again.

    Raises:
        UsageError: The block raises a ValueError; errors of the program are RuntimeErrors.
        SystemExit: The process got SIGINT, SIGTERM or SIGHUP.

    >>> with running_trials():
    ...     raise ValueError("steps must be at least 3.")
    Traceback (most recent call last):
    ...
    composer.cli.usage.UsageError: steps must be at least 3.
    """
    from composer.trials.termination import Terminated, terminate_cleanly

    try:
        with terminate_cleanly():
            yield
    except ValueError as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as interruption:
        signum = interruption.signum if isinstance(interruption, Terminated) else signal.SIGINT
        goes_on = "" if folder is None else " Run the same command again to continue."
        sys.stderr.write(f"composer: interrupted; all runs were ended.{goes_on}\n")
        raise SystemExit(128 + signum) from None


class ClosedStdoutError(BrokenPipeError):
    """The reader of stdout has ended, such as ``head``: the command ends without a message.

    >>> issubclass(ClosedStdoutError, BrokenPipeError)
    True
    """


def raise_if_stdout_closed(error: BaseException) -> None:
    """Raise if an error means that the reader of stdout has ended, rather than that of another pipe.

    Args:
        error: The error.

    Raises:
        ClosedStdoutError: It does.

    >>> raise_if_stdout_closed(BrokenPipeError())
    """
    if isinstance(error, ClosedStdoutError):
        raise error
    if isinstance(error, BrokenPipeError) and _is_stdout_closed():
        raise ClosedStdoutError from error


def _is_stdout_closed() -> bool:
    try:
        sys.stdout.flush()  # raises if something is left in the buffer
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except BrokenPipeError:
        return True
    except (AttributeError, OSError, ValueError):  # on Windows, or not a file
        return False


def discard_stdout() -> None:
    """Let what is left in the buffer of stdout go nowhere, so that Python does not complain when it ends.

    >>> discard_stdout()  # doctest: +SKIP
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
