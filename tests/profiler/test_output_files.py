"""Names of a profiler's files, earlier ones in the way, copies, and how many are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from composer import Logger, State, Timestamp
from composer.profiler._output_files import WindowFiles
from tests.callbacks.memory import Keeper


def state_at(batch: int) -> State:
    state = State(model=nn.Linear(1, 1), run_name="night")
    state.timestamp = Timestamp(batch=batch)
    return state


def write(files: WindowFiles, batch: int, text: str = "new") -> Path:
    path = files.new(state_at(batch))
    path.write_text(text)
    return path


def files_in(folder: Path, keep: int = -1, overwrite: bool = False, remote: str | None = None) -> WindowFiles:
    return WindowFiles(str(folder / "{run_name}"), "rank{rank}/ba{batch}.json", remote, overwrite, keep)


def test_names(tmp_path) -> None:
    assert write(files_in(tmp_path), 3) == tmp_path / "night" / "rank0" / "ba3.json"


def test_a_file_of_an_earlier_run_moves_out_of_the_way(tmp_path) -> None:
    for text in "abc":
        path = write(files_in(tmp_path), 3, text)
    found = {other.name: other.read_text() for other in path.parent.iterdir()}
    assert found == {"ba3.json": "c", "ba3.1.json": "a", "ba3.2.json": "b"}


def test_overwrite_replaces_it(tmp_path) -> None:
    write(files_in(tmp_path), 3, "old")
    path = write(files_in(tmp_path, overwrite=True), 3)
    assert [other.read_text() for other in path.parent.iterdir()] == ["new"]


def test_a_run_replaces_its_own_file_where_the_time_was_set_back(tmp_path) -> None:
    files = files_in(tmp_path)
    write(files, 3, "old")
    path = write(files, 3)
    assert [other.read_text() for other in path.parent.iterdir()] == ["new"]


@pytest.mark.parametrize(("keep", "left"), [(-1, [1, 2, 3]), (0, []), (1, [3]), (2, [2, 3]), (5, [1, 2, 3])])
def test_keeps_the_newest(keep, left, tmp_path) -> None:
    files = files_in(tmp_path, keep)
    for batch in (1, 2, 3):
        write(files, batch)
        files.prune()
    assert sorted(tmp_path.rglob("*.json")) == [tmp_path / "night" / "rank0" / f"ba{batch}.json" for batch in left]


def test_copies_replace_only_those_of_the_run(tmp_path) -> None:
    keeper = Keeper()
    files, state = files_in(tmp_path, remote="{run_name}/{batch}.json"), state_at(3)
    logger = Logger(state, [keeper])
    for _ in range(2):
        files.upload(state, logger, write(files, 3))
    assert keeper.files == [("night/3.json", False), ("night/3.json", True)]
    files_in(tmp_path).upload(state, logger, Path("none"))
    assert len(keeper.files) == 2


def test_refuses_to_keep_nothing_anywhere(tmp_path) -> None:
    state = state_at(0)
    with pytest.raises(ValueError, match="num_traces_to_keep=0 keeps no local trace"):
        files_in(tmp_path, 0, remote="x").check(Logger(state))
    with pytest.raises(ValueError, match="num_traces_to_keep=0 keeps no local trace"):
        files_in(tmp_path, 0).check(Logger(state, [Keeper()]))
    files_in(tmp_path, 0, remote="x").check(Logger(state, [Keeper()]))


def test_refuses_one_file_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    logger = Logger(state_at(0))
    with pytest.raises(ValueError, match=r"filename='\{batch\}\.json' is the same on all ranks\. Add \{rank\}"):
        WindowFiles("traces", "{batch}.json", None, False).check(logger)
    WindowFiles("traces/{rank}", "{batch}.json", None, False).check(logger)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{batch}", "x", None, False), "folder='{batch}' has the placeholder {batch}, but does not change"),
        (("x", "{bach}", None, False), "filename='{bach}' has the unknown placeholder {bach}. Did you mean 'batch'"),
        (("x", "x", "{rnk}", False), "remote_file_name='{rnk}' has the unknown placeholder {rnk}."),
        (("x", "x", None, False, -2), "num_traces_to_keep must be a number of files, or -1 for all; got -2."),
        (("x", "x", None, False, "all"), "num_traces_to_keep must be an integer, but got 'all'"),
        (("x", "{bach}", None, False, 1, "memory_"), "memory_filename="),
    ],
)
def test_refuses_impossible_arguments(arguments: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        WindowFiles(*arguments)
    assert message in str(raised.value)
