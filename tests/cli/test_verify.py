"""Mistakes in the command line of ``composer verify``; tests/verification is about what it does."""

from __future__ import annotations

import pytest

from composer.cli.main import main
from composer.cli.usage import CommandParser, split_program
from composer.cli.verify import add_to


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch.py"], "There is no script 'nosuch.py'."),
        (["trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
        (["-m", "trian"], "There is no module 'trian'. Did you mean 'train'?"),
        (["folder"], "'folder' is a folder."),
        ([], "No script was given"),
        (["--checks", "resum,same", "train.py"], "'resum'. Did you mean 'resume'?"),
        (["--steps", "2", "train.py"], "steps must be at least 3"),
        (["--steps", "x", "train.py"], "--steps: invalid int value: 'x'"),
        (["--step", "4", "train.py"], "no option '--step'. Did you mean '--steps'?"),
        (["--parallel", "0", "train.py"], "--parallel must be greater than 0"),
        (["--time-limit", "0", "train.py"], "--time-limit must be greater than 0"),
        (["--fit", "0", "train.py"], "fit must be at least 1"),
    ],
)
def test_usage_errors(words, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1 / 0")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["verify", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith(" See composer verify --help.\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        ("--steps 4 train.py --steps 5", "--steps 4", "train.py --steps 5"),
        ("--steps=4 -m package.train -x", "--steps=4", "-m package.train -x"),
        ("--json -- train.py -- x", "--json", "train.py -- x"),
        ("train run.yaml", "", "train run.yaml"),
        ("--list", "--list", None),
    ],
)
def test_where_the_program_begins(words, options, program) -> None:
    commands = CommandParser().add_subparsers()
    add_to(commands)
    found = split_program(commands.choices["verify"], words.split(), 0)
    assert found == (options.split(), None if program is None else program.split())
