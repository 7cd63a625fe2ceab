"""Folders that checkpoints go to."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import Timestamp
from composer.checkpoint.folders import (
    counters,
    ensure_folder_has_no_conflicting_files,
    ensure_folder_is_empty,
    matching_files,
    remove_checkpoint,
    remove_partial_files,
)
from composer.core._names import format_name
from composer.storage.folder import Folder

TEMPLATE = "ep{epoch}-ba{batch}-rank{rank}.pt"


def test_an_empty_folder(tmp_path) -> None:
    ensure_folder_is_empty(tmp_path / "none")
    (tmp_path / "only" / "folders").mkdir(parents=True)
    ensure_folder_is_empty(tmp_path)
    (tmp_path / "only" / "file.pt").touch()
    with pytest.raises(FileExistsError, match=re.escape("'only/file.pt'")):
        ensure_folder_is_empty(tmp_path)


@pytest.mark.parametrize(
    ("template", "name", "now", "later"),
    [
        ("ep{epoch}.pt", "ep3.pt", {"epoch": 3}, False),
        ("ep{epoch}.pt", "ep3.pt", {"epoch": 2}, True),
        (TEMPLATE, "ep0-ba9-rank0.pt", {"epoch": 1, "batch": 9}, False),
        (TEMPLATE, "ep0-ba10-rank0.pt", {"epoch": 1, "batch": 9}, True),
        (TEMPLATE, "other-ba10-rank0.pt", {"batch": 9}, False),
        ("{batch:06d}.pt", "000010.pt", {"batch": 9}, True),
        ("{total_wct}-s{sample}.pt", "12.5-s10.pt", {"sample": 9}, True),
        ("fixed.pt", "fixed.pt", {}, False),
        # The place in an epoch tells something about the same epoch only.
        ("ep{epoch}-{batch_in_epoch}.pt", "ep0-9.pt", {"epoch": 1, "batch_in_epoch": 2}, False),
        ("ep{epoch}-{batch_in_epoch}.pt", "ep1-9.pt", {"epoch": 1, "batch_in_epoch": 2}, True),
        ("{batch_in_epoch}.pt", "9.pt", {"epoch": 1, "batch_in_epoch": 2}, True),
        ("{{ep}}{epoch}.pt", "{ep}3.pt", {"epoch": 2}, True),
    ],
)
def test_files_of_a_later_time(template, name, now, later, tmp_path) -> None:
    (tmp_path / name).touch()
    timestamp = Timestamp(**now)
    if not later:
        ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp)
        return
    with pytest.raises(FileExistsError, match=f"{re.escape(name)}' is later than this run.*save_overwrite=True"):
        ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp)
    ensure_folder_has_no_conflicting_files(tmp_path, template, timestamp, except_for=[name])


def test_a_folder_that_is_not_there_has_no_conflicts(tmp_path) -> None:
    ensure_folder_has_no_conflicting_files(tmp_path / "none", TEMPLATE, Timestamp())
    assert matching_files(tmp_path / "none", TEMPLATE) == []
    remove_partial_files(tmp_path / "none", TEMPLATE)


def test_links_are_no_checkpoints(tmp_path) -> None:
    (tmp_path / "ep1-ba1-rank0.pt").touch()
    (tmp_path / "ep2-ba2-rank0.pt").symlink_to("ep1-ba1-rank0.pt")
    assert [path.name for path in matching_files(tmp_path, TEMPLATE)] == ["ep1-ba1-rank0.pt"]


def test_what_was_begun_is_removed_and_nothing_else(tmp_path) -> None:
    keep = ["ep1-ba1-rank0.pt", ".other.pt.01234567.tmp", "ep1-ba1-rank0.pt.tmp", ".hidden"]
    for name in [*keep, ".ep1-ba1-rank0.pt.89abcdef.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / ".ep2-ba2-rank0.pt.89abcdef.tmp").symlink_to("gone.pt")  # so a link looks that was being moved
    remove_partial_files(tmp_path, TEMPLATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(keep)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 99))
def test_the_numbers_of_a_name_are_those_that_it_was_made_of(epoch, batch, rank) -> None:
    name = format_name(TEMPLATE, "run", Timestamp(epoch=epoch, batch=batch), rank=rank)
    assert counters(name, TEMPLATE) == (epoch, batch)
    assert counters(f"x{name}", TEMPLATE) == ()


def test_a_counter_that_occurs_twice_must_be_the_same() -> None:
    assert counters("ep1-ep1.pt", "ep{epoch}-ep{epoch}.pt") == (1,)
    assert counters("ep1-ep2.pt", "ep{epoch}-ep{epoch}.pt") == ()


def test_partial_folders_are_removed(tmp_path) -> None:
    for name in (".ep1-ba2.0123abcd.tmp", ".other.0123abcd.tmp", "ep1-ba2"):
        (tmp_path / name / "deep").mkdir(parents=True)
    remove_partial_files(tmp_path, "ep{epoch}-ba{batch}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.0123abcd.tmp", "ep1-ba2"]


def test_removing_a_checkpoint(tmp_path) -> None:
    (tmp_path / "file.pt").touch()
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "latest.pt").symlink_to("folder")
    for name in ("file.pt", "absent.pt", "latest.pt"):
        remove_checkpoint(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # what a link names stays
    remove_checkpoint(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_removing_a_checkpoint_elsewhere() -> None:
    folder = Folder("memory://removing")
    for name in ("ep1.pt", "ep1/composer.pt", "ep1/__0_0.distcp", "ep10/composer.pt"):
        folder.write_text(name, "weights")
    remove_checkpoint("memory://removing/ep1.pt")
    assert folder.names() == ["ep1/__0_0.distcp", "ep1/composer.pt", "ep10/composer.pt"]
    remove_checkpoint("memory://removing/ep1")
    remove_checkpoint("memory://removing/absent")
    assert folder.names() == ["ep10/composer.pt"]
