"""OwnFilesOnly: a run removes only checkpoints that it saved to its own folder, whatever it loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.callbacks import CheckpointSaver, LoadCheckpoint
from composer.storage.folder import Folder
from tests.common import without_ledger
from tests.storage.faulty import cleared
from tests.trainer.resuming import build, shuffled
from tests.trainer.test_sharded_resume import trainer


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setattr("composer.storage.retrying.sleep", lambda seconds: None)
    yield from cleared()


def run(folder: Any, run_name: str | None, duration: str, keep: int = -1, **arguments: Any) -> Trainer:
    given = {"save_interval": "2ba", "schedulers": None, "save_num_checkpoints_to_keep": keep, **arguments}
    made = build(shuffled(), save_folder=str(folder), run_name=run_name, max_duration=duration, **given)
    made.fit()
    made.close()
    return made


def listed(folder: Path) -> list[str]:
    return without_ledger(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


OURS = ["ep0-ba2-rank0.pt", "ep0-ba4-rank0.pt", "ep0-ba6-rank0.pt", "latest-rank0.pt"]


def edited(path: Path, target: Path, **entries: Any) -> str:
    """A checkpoint of which the saver's state says something else."""
    content = torch.load(path, weights_only=True)
    for name, state in content["state"]["callbacks"].items():
        if name == "CheckpointSaver":
            state.update(entries)
            for key in [key for key, value in entries.items() if value is None]:
                del state[key]
    torch.save(content, target)
    return str(target)


@pytest.mark.parametrize("run_name", ["A", "B"])
@pytest.mark.parametrize("inside", [False, True])
def test_fork_does_not_touch_the_original_run(run_name, inside, tmp_path) -> None:
    a, b = tmp_path / "a", tmp_path / "a" / "b" if inside else tmp_path / "b"
    run(a, "A", "6ba")
    forked = run(b, run_name, "8ba", 1, load_path=str(a / "latest-rank0.pt"))
    assert [name for name in listed(a) if not name.startswith("b")] == OURS
    assert listed(b) == ["ep1-ba8-rank0.pt", "latest-rank0.pt"]
    assert forked.saved_checkpoints == [str(b / "ep1-ba8-rank0.pt")]


def test_a_fork_into_the_same_folder_with_another_name(tmp_path) -> None:
    run(tmp_path, "A", "6ba")
    run(tmp_path, "B", "10ba", 1, load_path=str(tmp_path / "latest-rank0.pt"))
    assert listed(tmp_path) == [*OURS[:3], "ep1-ba10-rank0.pt", OURS[3]]


@pytest.mark.parametrize("run_name", ["A", None])
def test_resumed_run_continues_retention(run_name, tmp_path) -> None:
    """By autoresume or by the path, named or known by its folder alone."""
    run(tmp_path, run_name, "6ba", 2)
    assert listed(tmp_path) == OURS[1:]
    run(tmp_path, run_name, "8ba", 2, autoresume=True)
    assert listed(tmp_path) == ["ep0-ba6-rank0.pt", "ep1-ba8-rank0.pt", "latest-rank0.pt"]
    run(tmp_path, run_name, "10ba", 2, load_path=str(tmp_path / "latest-rank0.pt"))
    assert listed(tmp_path) == ["ep1-ba10-rank0.pt", "ep1-ba8-rank0.pt", "latest-rank0.pt"]


@pytest.mark.parametrize("moved", [False, True])
def test_resume_from_a_copied_folder(moved, tmp_path) -> None:
    run(tmp_path / "a", "A", "6ba")
    (shutil.move if moved else shutil.copytree)(tmp_path / "a", tmp_path / "c", **({} if moved else {"symlinks": True}))
    run(tmp_path / "c", "A", "8ba", 1, autoresume=True)
    assert listed(tmp_path / "c") == ["ep1-ba8-rank0.pt", "latest-rank0.pt"]
    assert moved or listed(tmp_path / "a") == OURS


def test_templates_with_the_name_of_the_run(tmp_path) -> None:
    """One folder for several runs, of which one's name begins as the other's."""
    names = {"save_filename": "{run_name}-{batch}.pt", "save_latest_filename": "{run_name}.latest"}
    for run_name in ("night", "night-1"):
        run(tmp_path, run_name, "6ba", **names)
    (tmp_path / ".night-1-8.pt.0123abcd.tmp").touch()
    run(tmp_path, "night", "10ba", 1, autoresume=True, **names)
    expected = [".night-1-8.pt.0123abcd.tmp", "night-1-2.pt", "night-1-4.pt", "night-1-6.pt", "night-1.latest"]
    assert listed(tmp_path) == [*expected, "night-10.pt", "night.latest"]


@pytest.mark.parametrize("earlier_version", [False, True])
@pytest.mark.parametrize("key", ["obsolete", "saved"])
def test_file_list_in_a_checkpoint_is_not_trusted(key, earlier_version, tmp_path) -> None:
    """Absolute paths, ``..``, URIs, links, files of other names, of other kinds, and no names at all."""
    folder, other = tmp_path / "run", tmp_path / "other"
    run(folder, "A", "2ba")
    (other / "ep0-ba1-rank0.pt").mkdir(parents=True)
    (other / "ep0-ba1-rank0.pt" / "composer.pt").touch()
    (other / "ep0-ba0-rank0.pt").touch()
    Folder("memory://own-files").write_text("ep0-ba0-rank0.pt", "weights")
    (folder / "ep0-ba0-rank0.pt").symlink_to(other / "ep0-ba0-rank0.pt")
    (folder / "ep0-ba1-rank0.pt").symlink_to(other / "ep0-ba1-rank0.pt")
    (folder / "sub").symlink_to(other)
    (folder / "notes.txt").touch()
    (folder / "ep0-ba1-rank9.pt").mkdir()
    (folder / "ep0-ba1-rank9.pt" / "thesis.tex").touch()
    names = [
        str(other), str(other / "ep0-ba0-rank0.pt"), "../other/ep0-ba0-rank0.pt", "../other", "..", ".", "", "/",
        "ep0-ba0-rank0.pt", "ep0-ba1-rank0.pt", "sub/ep0-ba0-rank0.pt", str(folder / "ep0-ba0-rank0.pt"), "sub",
        str(folder / "sub" / "ep0-ba0-rank0.pt"), "notes.txt", str(folder / "notes.txt"), "latest-rank0.pt",
        "ep0-ba1-rank9.pt", str(folder / "ep0-ba1-rank9.pt"), str(folder), f"file://{other}", f"file://{folder}/notes.txt",
        "memory://own-files/ep0-ba0-rank0.pt", "memory://own-files", "a\0b", "\ud800",
        f"ep{'9' * 5000}-ba0-rank0.pt", str(folder / f"ep{'9' * 5000}-ba0-rank0.pt"), 3, None, ["x"],
    ]  # fmt: skip
    saved = [{"name": name, "path": name, "batch": 0, "number": i, "score": None} for i, name in enumerate(names)]
    value: Any = names if key == "obsolete" else [*saved, None, "text", {}]
    more: dict[str, Any] = {"run_name": None} if earlier_version else {}
    path = edited(folder / "ep0-ba2-rank0.pt", tmp_path / "evil.pt", **{"saved": [], key: value, **more})
    before = listed(tmp_path)
    run(folder, "A", "6ba", 1, load_path=path)
    left = [name for name in listed(tmp_path) if "ba6" not in name]
    assert left == [name for name in before if "ba4" not in name]
    assert Folder("memory://own-files").names() == ["ep0-ba0-rank0.pt"]


@pytest.mark.parametrize("entries", [{"saved": 3, "obsolete": "ab", "number": "x", "damaged": {}}, {"run_name": ["A"]}])
def test_state_with_other_types(entries, tmp_path) -> None:
    run(tmp_path, "A", "2ba")
    run(tmp_path, "A", "4ba", 1, load_path=edited(tmp_path / "ep0-ba2-rank0.pt", tmp_path / "evil.pt", **entries))
    assert "ep0-ba2-rank0.pt" in listed(tmp_path)


def test_lists_of_earlier_versions(tmp_path) -> None:
    """They hold paths: those in the folder are taken over, wherever it was when they were written."""
    run(tmp_path / "run", "A", "4ba")
    run(tmp_path / "other", "A", "4ba")
    paths = [str(tmp_path / at / f"ep0-ba{n}-rank0.pt") for at in ("run", "other") for n in (2, 4)]
    saved = [{"path": path, "batch": 2, "number": i, "score": None} for i, path in enumerate(paths)]
    newest = tmp_path / "run" / "ep0-ba4-rank0.pt"
    path = edited(newest, newest, saved=saved, run_name=None, place=None)
    run(tmp_path / "run", "A", "6ba", 1, load_path=path)
    assert listed(tmp_path / "run") == ["ep0-ba6-rank0.pt", "latest-rank0.pt"]
    assert listed(tmp_path / "other") == ["ep0-ba2-rank0.pt", "ep0-ba4-rank0.pt", "latest-rank0.pt"]


def test_loaded_checkpoint_is_kept_until_the_next_save(tmp_path) -> None:
    run(tmp_path, "A", "2ba")
    path = edited(tmp_path / "ep0-ba2-rank0.pt", tmp_path / "evil.pt", saved=[], obsolete=["ep0-ba2-rank0.pt"])
    shutil.move(path, tmp_path / "ep0-ba2-rank0.pt")
    made = build(shuffled(), save_folder=str(tmp_path), run_name="A", save_interval="9ba", max_duration="3ba",
                 schedulers=None, autoresume=True, save_latest_filename="new.pt")  # fmt: skip
    made.state.callbacks[-1].fit_start(made.state, made.logger)
    assert "ep0-ba2-rank0.pt" in listed(tmp_path)


def test_folder_behind_a_symlink(tmp_path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    run(tmp_path / "run", "A", "4ba", 1)
    run(tmp_path / "run", "A", "6ba", 1, autoresume=True)
    assert listed(tmp_path / "disk") == ["ep0-ba6-rank0.pt", "latest-rank0.pt"]


def test_a_rejected_run_removes_nothing(tmp_path) -> None:
    """What another one, perhaps still at work, is writing stays as well."""
    run(tmp_path, "A", "2ba")
    (tmp_path / ".ep0-ba4-rank0.pt.0123abcd.tmp").touch()
    before = listed(tmp_path)
    with pytest.raises(FileExistsError):
        run(tmp_path, "B", "2ba")
    assert listed(tmp_path) == before


# ------------------------------------------------------------------------------------------------- elsewhere


def test_at_a_uri(faulty) -> None:
    a, b = Folder("faulty://bucket/a"), Folder("faulty://bucket/b")
    run(a.uri, "A", "6ba")
    before = a.names()
    run(b.uri, "A", "8ba", 1, load_path=f"{a.uri}/ep0-ba6-rank0.pt")
    assert a.names() == before
    assert without_ledger(b.names()) == ["ep1-ba8-rank0.pt", "latest-rank0.pt.symlink"]
    run(a.uri, "A", "8ba", 1, autoresume=True)
    assert without_ledger(a.names()) == ["ep1-ba8-rank0.pt", "latest-rank0.pt.symlink"]
    assert without_ledger(b.names()) == ["ep1-ba8-rank0.pt", "latest-rank0.pt.symlink"]


@pytest.mark.parametrize("earlier_version", [False, True])
def test_file_list_of_a_uri_is_not_trusted(earlier_version, faulty, tmp_path) -> None:
    root, folder = Folder("faulty://bucket"), Folder("faulty://bucket/run")
    run(tmp_path / "here", "A", "2ba")
    for name in ("other/ep0-ba0-rank0.pt", "run/notes.txt", "run/ep0-ba1-rank0.pt/thesis.tex", "ep0-ba0-rank0.pt"):
        root.write_text(name, "text")
    names = [
        root.uri, folder.uri, f"{root.uri}/other", f"{root.uri}/other/ep0-ba0-rank0.pt", "../other/ep0-ba0-rank0.pt",
        "ep0-ba1-rank0.pt", "notes.txt", "", ".", f"{folder.uri}/../ep0-ba0-rank0.pt", f"{folder.uri}/ep0-ba1-rank0.pt",
        str(tmp_path / "here" / "ep0-ba2-rank0.pt"),
    ]  # fmt: skip
    more: dict[str, Any] = {"run_name": None} if earlier_version else {}
    path = edited(tmp_path / "here" / "ep0-ba2-rank0.pt", tmp_path / "evil.pt", saved=[], obsolete=names, **more)
    before = root.names()
    run(folder.uri, "A", "4ba", 1, load_path=path)
    assert [name for name in without_ledger(root.names()) if "ba4" not in name and "latest" not in name] == before
    assert (tmp_path / "here" / "ep0-ba2-rank0.pt").exists()


# ------------------------------------------------------------------------------------------------- several ranks


def fork(above: str, how: str) -> tuple[list[str], list[str]]:
    a, b = Path(above, "a"), Path(above, "b")
    given: dict[str, Any] = {"save_interval": "2ba", "schedulers": None}
    with trainer(how, max_duration="4ba", save_folder=str(a), **given) as made:
        made.fit()
    path = next(a.glob("ep0-ba4*"))
    kept = {"save_num_checkpoints_to_keep": 1, **given}
    with trainer(how, max_duration="8ba", save_folder=str(b), load_path=str(path), **kept) as made:
        made.fit()
        saved = made.saved_checkpoints
    return without_ledger(path.name for path in a.iterdir()), [Path(path).name for path in saved]


@pytest.mark.parametrize(("how", "ending"), [("ddp", "-rank0.pt"), ("sharded", "")])
def test_multiple_ranks(how, ending, tmp_path, two_ranks) -> None:
    for a, saved in two_ranks.run(fork, str(tmp_path), how):
        assert a == [f"ep0-ba2{ending}", f"ep0-ba4{ending}", "latest-rank0.pt"]
        assert len(saved) == 1
    assert len(without_ledger(path.name for path in (tmp_path / "b").iterdir())) == 2


def test_a_folder_that_is_not_a_checkpoint_is_not_replaced(tmp_path) -> None:
    """Though a sharded checkpoint gets the name that it has."""
    from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded

    (tmp_path / "ep1").mkdir()
    (tmp_path / "ep1" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="is not a checkpoint"):
        write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    assert listed(tmp_path) == ["ep1", "ep1/thesis.tex"]
    (tmp_path / "ep1" / "thesis.tex").unlink()
    for _ in range(2):
        write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")


# ------------------------------------------------------------------------------------------------- names with folders


@pytest.mark.parametrize("place", ["here", "faulty"])
@pytest.mark.parametrize(
    "filename", ["sub/ep{epoch}-ba{batch}.pt", "{run_name}/ep{epoch}-ba{batch}.pt", "./ep{epoch}/ba{batch}.pt"]
)
def test_names_with_folders(filename, place, tmp_path, faulty) -> None:
    """Found without the link, refused, cleared away and removed, as names without."""
    folder = str(tmp_path) if place == "here" else "faulty://bucket/ck"

    def go(duration: str, **arguments: Any) -> Trainer:
        given = {"save_filename": filename, "save_latest_filename": "latest.pt", **arguments}
        return run(folder, "night", duration, 2, **given)

    def there() -> list[str]:
        if place == "faulty":
            return without_ledger(Folder(folder).names())
        return without_ledger(
            path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()
        )

    name = filename.removeprefix("./").replace("{run_name}", "night").format
    go("6ba")
    link = next(one for one in there() if "latest" in one)
    assert there() == sorted([name(epoch=0, batch=4), name(epoch=0, batch=6), link])
    above, _, last = name(epoch=0, batch=8).rpartition("/")
    Folder(folder).write_text(f"{above}/.{last}.0123abcd.tmp", "begun") if place == "faulty" else (
        tmp_path / above / f".{last}.0123abcd.tmp").touch()  # fmt: skip
    Folder(folder).remove(link) if place == "faulty" else (tmp_path / link).unlink()
    with pytest.raises(FileExistsError, match="is later than this run"):
        go("4ba")
    resumed = go("8ba", autoresume=True)
    assert resumed.state.load_path is not None and resumed.state.load_path.endswith(name(epoch=0, batch=6))
    assert there() == sorted([name(epoch=0, batch=6), name(epoch=1, batch=8), link])


def test_two_savers_track_their_own_files(tmp_path) -> None:
    """Whatever the order in which they are given."""

    def savers() -> list[CheckpointSaver]:
        return [CheckpointSaver(tmp_path / name, save_interval=f"{n}ba", num_checkpoints_to_keep=1)
                for name, n in (("often", 2), ("seldom", 3))]  # fmt: skip

    for duration, given in (("7ba", savers()), ("9ba", savers()[::-1])):
        made = build(shuffled(), callbacks=given, autoresume=True, max_duration=duration, schedulers=None)
        made.fit()
        made.close()
    assert [path.split("/")[0] for path in listed(tmp_path) if "ba9" in path] == ["often", "seldom"]
    assert len(listed(tmp_path)) == 6


@pytest.mark.parametrize("by_callback", [False, True])
def test_OwnFilesOnly_foreign_checkpoint_removes_nothing(by_callback, tmp_path) -> None:
    """Even by the names of our own files, with the name of our own run."""
    run(tmp_path / "ours", "night", "6ba")
    before = listed(tmp_path / "ours")
    run(tmp_path / "theirs", "night", "2ba")
    newest = tmp_path / "theirs" / "ep0-ba2-rank0.pt"
    names = [name for name in before if name.startswith("ep")]
    path = edited(newest, tmp_path / "sent.pt", obsolete=names, saved=[])

    def how():
        return {"callbacks": LoadCheckpoint(path)} if by_callback else {"load_path": path}

    with pytest.raises(FileExistsError, match="is later than this run"):
        run(tmp_path / "ours", "night", "8ba", **how())
    run(tmp_path / "ours", "night", "8ba", save_overwrite=True, **how())
    assert set(names) <= set(listed(tmp_path / "ours"))
