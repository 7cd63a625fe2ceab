"""Write checkpoints of multiple ranks, and load them in any world size."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from composer import Logger, dist
from composer.checkpoint import file_format
from composer.checkpoint.load import load_checkpoint, read_checkpoint
from composer.checkpoint.save import collect, save_checkpoint
from composer.checkpoint.sharded_writer import TENSOR_KEY, checksum, shard_checkpoint, write_sharded
from tests.checkpoint.content import same
from tests.checkpoint.sharding import equal, moments, placements, run, weights

CONTENT = {
    "state": {
        "model": {"weight": torch.arange(6.0).reshape(3, 2), "a.b": torch.tensor(7), "none": torch.empty(0, 2)},
        "optimizers": {"SGD": {"state": {"weight": {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}},
        "timestamp": {"epoch": 1},
    },
    "rng": [{"torch": torch.arange(3, dtype=torch.uint8), "python": (3, (1, 2), None)}],
}


def saved(folder: str, how: str) -> Any:
    """Save in both formats; return the full state of the run and the path on this rank."""
    state = run(how=how, folders=True)
    path = save_checkpoint(state, f"{folder}/{how}/ep{{epoch}}-rank{{rank}}.pt")
    state.checkpoint_folders = None
    file = save_checkpoint(state, f"{folder}/{how}/ep{{epoch}}.pt")
    dist.barrier()
    return weights(state), moments(state), path, file


def loaded(path: str, how: str, steps: int = 1) -> tuple[Any, Any, Any, Any]:
    """What a run becomes that was another one before, and is loaded."""
    state = run(seed=1, how=how, steps=steps)
    load_checkpoint(path, state, Logger(state), progress_bar=False)
    return weights(state), moments(state), placements(state), placements(run(how=how))


@pytest.mark.parametrize("how", ["fsdp", "tensor"])
def test_checkpoint_of_two_ranks_loads_in_any_world_size(how, tmp_path, two_ranks, four_ranks) -> None:
    (kept, optimizer, path, file), (_, _, nowhere, no_file) = two_ranks.run(saved, str(tmp_path), how)
    assert path == str(tmp_path / how / "ep0-ba0") and file == str(tmp_path / how / "ep0.pt")
    assert nowhere is None and no_file is None
    for form in (path, file):
        for ranks, at in itertools.product([two_ranks, four_ranks], ["fsdp", "none"]):
            for model, states, found, expected in ranks.run(loaded, form, at):
                assert equal(model, kept)
                assert equal(states, optimizer)
                assert found == expected
        model, states, _, _ = loaded(form, "none", steps=0)
        assert equal(model, kept)
        assert equal(states, optimizer)
        assert equal(read_checkpoint(form)["state"]["model"], kept)


def test_replicated_shards_are_written_once(tmp_path, four_ranks, two_ranks) -> None:
    kept, _, path, _ = four_ranks.run(saved, str(tmp_path), "hybrid")[0]
    told = dcp.FileSystemReader(path).read_metadata()
    chunks = told.state_dict_metadata["state.model.0.weight"].chunks
    assert sorted(tuple(chunk.offsets) for chunk in chunks) == [(0, 0), (3, 0)]
    sizes = [file.stat().st_size for file in Path(path).glob("*.distcp")]
    assert len(sizes) == 4
    assert sum(sizes) == sum(one.length for one in told.storage_data.values())
    assert all(equal(model, kept) for model, *_ in two_ranks.run(loaded, path, "fsdp"))


def written(how: str) -> list[tuple[str, tuple[int, ...]]]:
    """Which shards this rank writes."""
    state = run(how=how, folders=True)
    checkpoint = shard_checkpoint(collect(state))
    return [(name, one.offsets) for name, one in checkpoint.metadata.items()]


@pytest.mark.parametrize("how", ["hybrid", "tensor"])
def test_replicas_take_turns_so_that_the_plan_has_each_shard_once(four_ranks, how) -> None:
    everywhere = [set(found) for found in four_ranks.run(written, how)]
    assert len(set().union(*everywhere)) == sum(map(len, everywhere)), "no shard is written twice"
    if how == "hybrid":
        assert min(map(len, everywhere)) >= 5, "the replicas write about as much"


def test_plain_torch_reads_the_weights(tmp_path, two_ranks) -> None:
    kept, _, path, _ = two_ranks.run(saved, str(tmp_path), "fsdp")[0]
    empty = {"state": {"model": {name: torch.zeros_like(value) for name, value in kept.items()}}}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(empty, storage_reader=dcp.FileSystemReader(path))
    assert equal(empty["state"]["model"], kept)


def test_contents_of_each_file(tmp_path) -> None:
    write_sharded(shard_checkpoint(CONTENT), tmp_path / "ep1")
    assert sorted(path.name for path in (tmp_path / "ep1").iterdir()) == [".metadata", "__0_0.distcp", "composer.pt"]
    rest = file_format.read(tmp_path / "ep1" / "composer.pt")
    assert rest["content"]["state"]["model"]["weight"] == {TENSOR_KEY: "state.model.weight", "dims": None}
    assert rest["content"]["rng"][0]["python"] == (3, (1, 2), None)
    assert rest["files"] == {name: checksum(tmp_path / "ep1" / name) for name in ("__0_0.distcp", ".metadata")}
    assert same(read_checkpoint(tmp_path / "ep1"), CONTENT)


def test_existing_folder_is_replaced(tmp_path) -> None:
    for number in range(2):
        write_sharded(
            shard_checkpoint({"state": {"model": {"weight": torch.full((2,), float(number))}}}), tmp_path / "ep1"
        )
    assert read_checkpoint(tmp_path / "ep1")["state"]["model"]["weight"].tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["ep1"]


def failing(folder: str, step: str) -> tuple[str, str]:
    """A second checkpoint of the same name, at which the second process fails."""
    state = run(folders=True)
    save_checkpoint(state, f"{folder}/x.pt")
    torch.nn.init.zeros_(state.model.get_parameter("0.weight"))
    patch = pytest.MonkeyPatch()

    def no_space(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if dist.get_global_rank() == 1:
        target = {"write": "torch.distributed.checkpoint.FileSystemWriter.write_data"}.get(
            step, "composer.checkpoint.sharded_writer.checksum"
        )
        patch.setattr(target, no_space)
    try:
        save_checkpoint(state, f"{folder}/x.pt")
    except OSError as error:
        return str(error), " ".join(getattr(error, "__notes__", ()))
    finally:
        patch.undo()
        dist.barrier()
    return "", ""


@pytest.mark.parametrize("step", ["write", "check"])
def test_failure_of_one_rank_fails_all_and_keeps_the_previous_checkpoint(step, tmp_path, two_ranks) -> None:
    for text, notes in two_ranks.run(failing, str(tmp_path), step):
        assert "No space left" in text
        assert "ank 1" in text + notes
    assert read_checkpoint(tmp_path / "ep0-ba0")["state"]["model"]["0.weight"].abs().sum() > 0
    assert [path.name for path in tmp_path.iterdir()] == ["ep0-ba0"]


def per_rank_folder(folder: str) -> list[str]:
    """Each process has a folder of its own, as where they go to a store."""
    mine = Path(folder, str(dist.get_global_rank()), "ep1")
    write_sharded(shard_checkpoint({"state": {"model": dict(run().model.state_dict())}}), mine, per_rank_folder=True)
    return sorted(path.name for path in mine.iterdir())


def test_each_rank_to_its_own_folder(tmp_path, two_ranks) -> None:
    first, other = two_ranks.run(per_rank_folder, str(tmp_path))
    assert first == [".metadata", "__0_0.distcp", "composer.pt"]
    assert other == ["__1_0.distcp"]
    for path in (tmp_path / "1" / "ep1").iterdir():
        path.rename(tmp_path / "0" / "ep1" / path.name)
    assert len(read_checkpoint(tmp_path / "0" / "ep1")["state"]["model"]) == 9
