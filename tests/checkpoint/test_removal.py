"""OwnFilesOnly: which files are removed from a folder."""

from __future__ import annotations

import pytest

from composer.checkpoint.removal import find_checkpoint, remove_checkpoint, remove_partial_files

TEMPLATE = "ep{epoch}-ba{batch}-rank{rank}.pt"


def test_only_partial_files_are_removed(tmp_path) -> None:
    keep = ["ep1-ba1-rank0.pt", ".other.pt.01234567.tmp", "ep1-ba1-rank0.pt.tmp", ".hidden"]
    for name in [*keep, ".ep1-ba1-rank0.pt.89abcdef.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / ".ep2-ba2-rank0.pt.89abcdef.tmp").symlink_to("gone.pt")  # so a link looks that was being moved
    remove_partial_files(tmp_path, TEMPLATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(keep)
    remove_partial_files(tmp_path / "none", TEMPLATE)


def test_partial_folders_are_removed(tmp_path) -> None:
    for name in (".ep1-ba2.0123abcd.tmp", ".other.0123abcd.tmp", "ep1-ba2"):
        (tmp_path / name / "deep").mkdir(parents=True)
    remove_partial_files(tmp_path, "ep{epoch}-ba{batch}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.0123abcd.tmp", "ep1-ba2"]


def test_partial_link_is_removed_but_not_its_target(tmp_path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data").touch()
    (tmp_path / ".ep1-ba2.0123abcd.tmp").symlink_to("other")
    remove_partial_files(tmp_path, "ep{epoch}-ba{batch}")
    assert [path.name for path in tmp_path.rglob("*")] == ["other", "data"]


def test_removing_checkpoints(tmp_path) -> None:
    (tmp_path / "ep1").touch()
    (tmp_path / "ep2" / "deep").mkdir(parents=True)
    (tmp_path / "ep2" / "composer.pt").touch()
    for name in ("ep1", "ep2", "ep3"):
        remove_checkpoint(tmp_path, name, "ep{epoch}")
    assert list(tmp_path.iterdir()) == []


def test_OwnFilesOnly_nothing_outside_the_folder_is_removed(tmp_path, caplog) -> None:
    """Neither by its name nor by a link, nor what is in the folder and no checkpoint."""
    folder, other = tmp_path / "run", tmp_path / "other"
    for one in (folder, other):
        (one / "ep1").mkdir(parents=True)
        (one / "ep1" / "composer.pt").touch()
        (one / "ep2").touch()
    (folder / "ep3").symlink_to(other / "ep2")
    (folder / "ep4").symlink_to(other / "ep1")
    (folder / "sub").symlink_to(other)
    (folder / "ep5").mkdir()
    (folder / "ep5" / "thesis.tex").touch()
    (folder / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    # The template itself may lead out of the folder.
    for template in ("ep{epoch}", "sub/ep{epoch}", "../other/ep{epoch}", f"{other}/ep{{epoch}}"):
        for number in range(6):
            if (template, number) not in {("ep{epoch}", 1), ("ep{epoch}", 2)}:
                remove_checkpoint(folder, template.replace("{epoch}", str(number)), template)
    for name in ("notes.txt", "../other/ep2", str(other / "ep2"), "", ".", ".."):
        remove_checkpoint(folder, name, "ep{epoch}")
    assert sorted(tmp_path.rglob("*")) == before
    assert "is not a checkpoint of this run" in caplog.text


def test_OwnFilesOnly_the_folder_itself_may_be_a_link(tmp_path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "ep1").touch()
    (tmp_path / "run").symlink_to("disk")
    assert find_checkpoint(tmp_path / "run", "ep1") == tmp_path / "run" / "ep1"
    remove_checkpoint(tmp_path / "run", "ep1", "ep{epoch}")
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize(
    ("template", "left"),
    [
        ("a/ep{epoch}/ba{batch}.pt", ["a"]),
        ("{epoch}/{epoch}/ba{batch}.pt", []),
        ("a/b/ep{epoch}-ba{batch}.pt", ["a", "a/b"]),
    ],
)
def test_empty_placeholder_folders_are_removed(template, left, tmp_path) -> None:
    names = [template.format(epoch=1, batch=batch) for batch in (1, 2)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_checkpoint(tmp_path, names[0], template)
    assert (tmp_path / names[1]).is_file()
    remove_checkpoint(tmp_path, names[1], template)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == left


def test_a_checkpoint_that_is_gone_is_no_warning_and_one_of_others_is(tmp_path, caplog) -> None:
    remove_checkpoint(tmp_path, "ep1-ba1-rank0.pt", TEMPLATE)
    remove_checkpoint(tmp_path / "none", "ep1-ba1-rank0.pt", TEMPLATE)
    assert not caplog.records
    (tmp_path / "data.pt").touch()
    (tmp_path / "ep2-ba2-rank0.pt").symlink_to("data.pt")
    for name in ("data.pt", "ep2-ba2-rank0.pt", "../ep1-ba1-rank0.pt"):
        remove_checkpoint(tmp_path, name, TEMPLATE)
    assert [record.args[0] for record in caplog.records] == ["data.pt", "ep2-ba2-rank0.pt", "../ep1-ba1-rank0.pt"]
    assert (tmp_path / "data.pt").exists()
