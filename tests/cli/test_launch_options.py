"""The options of the launcher."""

from __future__ import annotations

import argparse
import re

import pytest

from composer.cli import checkpoint
from composer.cli.launch_options import COMMANDS, PROGRAMS, parse, parser


def test_script_arguments_are_not_parsed() -> None:
    given = parse(["-n", "2", "train.py", "-n", "4", "--unknown", "--", "-v"])
    assert (given.nproc, given.script, given.verbose) == ("2", "train.py", False)
    assert given.arguments == ["-n", "4", "--unknown", "--", "-v"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("world_size", 8),
        ("base_rank", 4),
        ("node_rank", 1),
        ("master_addr", "host"),
        ("master_port", 29500),
        ("max_restarts", 3),
        ("rdzv_endpoint", "host:1"),
        ("grace_period", 5),
        ("monitor_interval", 0.5),
    ],
)
def test_both_spellings(name: str, value: object) -> None:
    for spelling in (name, name.replace("_", "-")):
        assert getattr(parse([f"--{spelling}", str(value), "train.py"]), name) == value


def test_flags_of_composer_0_32() -> None:
    long = parse(["--nproc", "2", "--module_mode", "--verbose", "--stdout", "o", "--stderr", "e", "package"])
    short = parse(["-n", "2", "-m", "-v", "--stdout", "o", "--stderr", "e", "package"])
    assert long == short
    assert parse(["-c", "ls"]) == parse(["--command_mode", "ls"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--nprocs", "2", "train.py"], "there is no option '--nprocs'. Did you mean '--nproc'?"),
        (["--max-restart=2", "train.py"], "there is no option '--max-restart=2'. Did you mean '--max-restarts'?"),
        (["--master_port", "x", "train.py"], "invalid int value: 'x'"),
        (["-n", "2"], "the following arguments are required: SCRIPT"),
        ([], "the following arguments are required: SCRIPT"),
    ],
)
def test_errors_are_one_line(arguments: list[str], told: str, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        parse(arguments)
    assert left.value.code == 2
    usage, message = capsys.readouterr().err.splitlines()
    assert usage == "usage: composer [-n N] [OPTION ...] SCRIPT [ARGUMENT ...]"
    assert message.startswith("composer: ")
    assert told in message


def test_help_names_everything() -> None:
    text = parser().format_help()
    options = [action for action in parser()._actions if action.help != "==SUPPRESS=="]
    assert all(option in text for action in options for option in action.option_strings)
    assert all(re.search(rf"^  composer {command} .*\w", text, re.MULTILINE) for command in [*COMMANDS, *PROGRAMS])


def test_help_lists_the_actions_of_commands() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    checkpoint.add_to(commands)
    (actions,) = commands.choices["checkpoint"]._subparsers._group_actions
    text = parser().format_help()
    assert len(actions.choices) >= 2
    assert all(f"  composer checkpoint {action} " in text for action in actions.choices)


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = parser().format_help().splitlines()
    commands = lines[lines.index("commands:") + 1 :]
    commands = commands[: commands.index("")]
    assert max(map(len, commands)) <= columns
    names = [line.strip().split("  ")[0] for line in commands if line.startswith("  composer ")]
    assert [name.split()[1] for name in names] == [
        *(
            "SCRIPT",
            "train",
            *2 * ["checkpoint"],
            "estimate",
            "verify",
            "doctor",
            "explore",
            "replay",
            "blame",
            "fork",
            "report",
            "compare",
            "env",
        )
    ]
    # What is to be typed is never broken.
    assert any(line.startswith("  composer -n 8 --nnodes 1:4 --max-restarts 3 --rdzv-endpoint HOST") for line in lines)
