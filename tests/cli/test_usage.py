"""Command lines: options between positional arguments, and words that a command does not take."""

from __future__ import annotations

import pytest

from composer.cli.main import main
from composer.cli.usage import CommandParser


def compared() -> CommandParser:
    command = CommandParser(prog="composer compare")
    command.add_argument("runs", nargs="*")
    command.add_argument("--group", action="append", default=[])
    command.add_argument("--json", action="store_true")
    command.add_argument("--metric")
    return command


@pytest.mark.parametrize(
    "words",
    [
        ["a", "--metric", "x", "b", "--json"],
        ["--json", "a", "--metric", "x", "b"],
        ["a", "--json", "b", "--metric=x"],
        ["--metric", "x", "--json", "a", "b"],
    ],
)
def test_options_may_be_between_positional_arguments(words: list[str]) -> None:
    given = compared().parse(words)
    assert (given.runs, given.metric, given.json, given.program) == (["a", "b"], "x", True, None)
    assert compared().parse(["a", "--group", "c=d,e", "b"]).runs == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare a --metrc x b", "there is no option '--metrc'. Did you mean '--metric'? See composer compare"),
        ("report a b c", "composer report takes one RUN, but got 'b c' as well. See composer report --help."),
        ("report a --opn b", "there is no option '--opn'. Did you mean '--open'?"),
        ("env a", "composer env takes only options, but got 'a' as well."),
        ("checkpoint inspect a b", "composer checkpoint inspect takes one path, but got 'b' as well."),
        ("checkpoint convert a b --overwrite c", "takes one source and one destination, but got 'c' as well."),
        ("checkpoint inspect a --wieghts", "there is no option '--wieghts'. Did you mean '--weights'?"),
    ],
)
def test_words_that_a_command_does_not_take(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
