from __future__ import annotations

import ntpath
import os
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import Timestamp
from composer.core.name_placeholders import (
    PROCESS_KEYS,
    TIME_KEYS,
    check_inside,
    check_remote_name,
    check_run_name,
    check_template,
    differs_by_rank,
    format_name,
    placeholders,
    with_braces,
    with_run_name,
)

NOW = Timestamp(iteration=1, epoch=2, batch=30, sample=400, token=5000, batch_in_epoch=6, total_wct=1.5)


def test_every_key_has_a_value() -> None:
    names = (*PROCESS_KEYS, *TIME_KEYS)
    template = "|".join(f"{{{name}}}" for name in names)
    values = dict(zip(names, format_name(template, "run", NOW).split("|"), strict=True))
    assert values["run_name"] == "run"
    assert values["rank"] == values["local_rank"] == values["node_rank"] == "0"
    assert values["world_size"] == values["local_world_size"] == "1"
    assert [values[name] for name in ("iteration", "epoch", "batch", "sample", "token")] == [
        "1",
        "2",
        "30",
        "400",
        "5000",
    ]
    assert values["batch_in_epoch"] == "6"
    assert values["total_wct"] == "1.5"
    assert values["batch_wct"] == "0.0"
    assert set(TIME_KEYS) == set(NOW.state_dict())


def test_the_environment_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "NODE_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    template = "{rank}-{local_rank}-{world_size}-{local_world_size}-{node_rank}"
    assert format_name(template, "run") == "5-1-8-4-1"


def test_specifications_braces_and_further_values() -> None:
    assert format_name("{batch:05d}-{total_wct:.2f}-{{x}}-{tag}", "run", NOW, tag="t") == "00030-1.50-{x}-t"
    assert format_name("{batch:{width}d}", "run", NOW, width=4) == "  30"


def test_extra_value_takes_precedence_over_the_timestamp() -> None:
    assert format_name("{batch}", "run", NOW, batch=7) == "7"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{epoh}", r"'\{epoh\}' has the unknown placeholder \{epoh\}\. Did you mean 'epoch'\?"),
        ("{}", r"has the unknown placeholder \{\}\. Known placeholders are batch, "),
        ("{run_name.title}", r"unknown placeholder \{run_name\.title\}\. Did you mean 'run_name'\?"),
        ("{batch:{widht}d}", r"unknown placeholder \{widht\}"),
        ("{epoch", r"has invalid placeholders: expected '}' before end of string\. Write \{\{ for a literal brace\."),
    ],
)
def test_mistakes(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        format_name(template, "run", NOW)


def test_missing_timestamp() -> None:
    with pytest.raises(ValueError, match=r"has the placeholder \{batch\}, but does not change during training"):
        format_name("{batch}", "run")
    assert check_template("filename", "{batch}", timed=True) == "{batch}"
    assert check_template("filename", "{mine}", more=["mine"]) == "{mine}"
    with pytest.raises(ValueError, match=r"^filename='\{rnk\}' has the unknown placeholder \{rnk\}\. Did you mean"):
        check_template("filename", "{rnk}")
    with pytest.raises(TypeError, match=r"filename must be a string, but got 3"):
        check_template("filename", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "differs"),
    [
        ("{run_name}/rank{rank}", True),
        ("{node_rank}-{local_rank}", True),
        ("{local_rank}", False),
        ("{run_name}", False),
        ("{{rank}}", False),
    ],
)
def test_differs_by_process(template: str, differs: bool) -> None:
    assert differs_by_rank(template) is differs


@given(st.text())
def test_text_without_placeholders_stays(text: str) -> None:
    template = text.replace("{", "{{").replace("}", "}}")
    assert placeholders(template) == ()
    assert format_name(template, "run", NOW) == text


ESCAPES = [
    "..",
    "../x",
    "a/../b",
    "a/..",
    "/etc",
    "//x",
    "C:/x",
    "C:x",
    "..\\x",
    "a\\..\\b",
    "\\\\host\\x",
    "a\0b",
    "a\nb",
    "a//b",
    "a/./b",
]


@pytest.mark.parametrize("name", [*ESCAPES, "", " ", "/", "a\x7f"])
def test_run_names_with_path_traversal(name: str) -> None:
    with pytest.raises(ValueError, match=r"^RUN_NAME=.* Pass a name such as"):
        check_run_name("RUN_NAME", name)
    with pytest.raises(ValueError, match="run_name="):
        format_name("{run_name}/x", name)
    with pytest.raises(ValueError, match="run_name="):
        with_run_name("{run_name}/x", name)
    assert format_name("x", name) == "x"


@pytest.mark.parametrize("name", ESCAPES)
def test_file_names_with_path_traversal(name: str) -> None:
    with pytest.raises(ValueError, match=r"^save_filename=.* Pass a name inside of it"):
        check_inside("save_filename", name)
    if name[0] not in "/C":  # the root of the store, and what is no drive there
        with pytest.raises(ValueError, match=r"^remote_file_name="):
            check_remote_name("remote_file_name", f"s3://bucket/{name}")
        with pytest.raises(ValueError, match=r"^remote_file_name="):
            check_remote_name("remote_file_name", name)


@pytest.mark.parametrize(
    "name",
    [
        "night",
        "a/b",
        "{epoch}",
        "{run_name}",
        "{{x}",
        "a.b",
        "...",
        "..a",
        "ep*[0-9]?",
        "(.+)",
        "a b",
        "~x",
        "50%",
        "é",
    ],
)
def test_run_names_are_literal(name: str) -> None:
    assert check_run_name("run_name", name) == name
    template = "{run_name}/ep{epoch:02d}-{{x}}-{run_name!s:>3}"
    once = format_name(template, name, Timestamp(epoch=3))
    assert once == f"{name}/ep03-{{x}}-{name:>3}"
    # As where the name of the run is filled in first, and the time later.
    assert format_name(with_run_name(template, name), "other", Timestamp(epoch=3)) == once
    assert format_name(with_braces(once), "other", Timestamp()) == once


@given(st.text())
def test_run_name_is_rejected_or_stays_inside_the_folder(name: str) -> None:
    try:
        check_run_name("run_name", name)
    except ValueError:
        return
    folder = Path("/above/folder")
    assert folder in Path(os.path.normpath(folder / format_name("{run_name}", name))).parents
    assert PureWindowsPath("D:/above") in PureWindowsPath(ntpath.normpath(PureWindowsPath("D:/above") / name)).parents
