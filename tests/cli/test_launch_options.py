"""The options of the launcher."""

from __future__ import annotations

import pytest

from composer.cli.launch_options import COMMANDS, parse, parser


def test_what_follows_the_script_is_its_own() -> None:
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


def test_flags_of_the_predecessor() -> None:
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
def test_mistakes_are_told_in_one_line(arguments: list[str], told: str, capsys) -> None:
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
    assert all(f"composer {command} " in text for command in COMMANDS)
