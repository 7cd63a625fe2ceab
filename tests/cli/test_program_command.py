"""What commands that take a training script have in common."""

from __future__ import annotations

import argparse
import json

import pytest

from composer.cli.program_command import add_program_options, add_program_parser, print_report, target_of
from composer.cli.usage import CommandParser, UsageError


class Report:
    """A report of one line."""

    def __init__(self, ok: bool) -> None:
        self.ok = ok

    def to_json(self) -> dict[str, bool]:
        """Return the report in JSON types."""
        return {"ok": self.ok}

    def __str__(self) -> str:
        return "one line"


def parse(*words: str) -> argparse.Namespace:
    """Parse the words of a command."""
    command = add_program_parser(CommandParser().add_subparsers(), "verify", "Check.", "0 if all is well.")
    add_program_options(command)
    return command.parse(words)


def test_options_end_at_the_script() -> None:
    """Words after the script belong to it, also options that the command has."""
    given = parse("--fit", "2", "--json", "train", "--json")
    assert (given.fit, given.json, given.program) == (2, True, ["train", "--json"])
    assert target_of(given).arguments == ("--json",)


@pytest.mark.parametrize("words", [(), ("no_such_script.py",), ("--fit", "0", "train", "run.yaml")])
def test_wrong_script(words: tuple[str, ...]) -> None:
    """Without a script, or with one that does not exist, the command line is wrong."""
    with pytest.raises(UsageError):
        target_of(parse(*words))


def test_report_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A report is printed as text or as JSON, and exit code 1 says that something is wrong."""
    print_report(Report(True), as_json=False)
    with pytest.raises(SystemExit, match="1"):
        print_report(Report(False), as_json=True)
    text, _, rest = capsys.readouterr().out.partition("\n")
    assert text == "one line"
    assert json.loads(rest) == {"ok": False}
