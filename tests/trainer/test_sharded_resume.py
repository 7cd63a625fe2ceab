"""Sharded runs resume: bit for bit with the same number of ranks, with the same weights with another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer, dist
from composer.algorithms import EMA
from composer.callbacks import CheckpointSaver
from composer.checkpoint.load import read_checkpoint
from composer.warnings import ComposerWarning
from tests.checkpoint.sharding import equal, full
from tests.common import At, without_ledger
from tests.trainer.killed_while_uploading import Far
from tests.trainer.resuming import STEPS, Augmented, build

LATEST = "latest-rank0.pt"


def trainer(how: str, **arguments: Any) -> Trainer:
    """DDP, or FSDP with checkpoints of one form."""
    if how != "ddp":
        arguments["parallelism_config"] = {"fsdp": {"state_dict_type": how, **arguments.pop("fsdp", {})}}
    return build(data(), **arguments)


class Even(Augmented):
    """As many samples as come out even with four processes too."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)


def data() -> DataLoader[Any]:
    """The samples in another order in each epoch, four to each process."""
    return DataLoader(Even(), 4, shuffle=True)


def state_of(made: Trainer) -> dict[str, torch.Tensor]:
    """Full weights, buffers and EMA averages."""
    found = {name: full(value) for name, value in made.state.model.state_dict().items()}
    for method in made.state.algorithms:
        found |= {f"average of {name}": full(value) for name, value in method.state_dict().get("averages", {}).items()}
    return found


def parameters(made: Trainer) -> dict[str, torch.Tensor]:
    """Full state that is equal on all ranks."""
    return {name: value for name, value in state_of(made).items() if "running" not in name}


def method() -> EMA:
    return EMA(half_life="3ba", update_interval="1ba")


def stop_at(batch: int) -> At:
    def stop(state: Any) -> None:
        if int(state.timestamp.batch) == batch:
            raise RuntimeError("the power went out")

    return At("batch_end", stop)


def stopped(made: Trainer) -> None:
    """Train until the power goes out; what is being written then is complete."""
    with pytest.raises(RuntimeError, match="the power went out"):
        made.fit()
    made.close()


def interrupted(folder: str, how: str, asynchronous: bool) -> tuple[bool, str, list[bool]]:
    with trainer(how, algorithms=method()) as straight:
        straight.fit()
        expected = state_of(straight)
    arguments: dict[str, Any] = {
        "save_folder": folder,
        "save_interval": "5ba",
        "save_async": asynchronous,
        "autoresume": True,
    }
    stopped(trainer(how, algorithms=method(), callbacks=stop_at(7), **arguments))
    with trainer(how, algorithms=method(), **arguments) as again:
        path = str(again.state.load_path)
        again.fit()
        found = state_of(again)
    if dist.get_global_rank():  # running statistics are those of each process, and the first one's are saved
        found, expected = ({k: v for k, v in one.items() if "running" not in k} for one in (found, expected))
    return equal(found, expected), path, [name.startswith("average") for name in found]


@pytest.mark.parametrize(
    ("how", "asynchronous"),
    [("ddp", False), ("ddp", True), ("full", False), ("full", True), ("sharded", False), ("sharded", True)],
)
def test_resuming_is_exact(how, asynchronous, tmp_path, two_ranks) -> None:
    for same, path, averages in two_ranks.run(interrupted, str(tmp_path), how, asynchronous):
        assert same
        assert Path(path).name == ("ep0-ba5" if how == "sharded" else "ep0-ba5-rank0.pt")
        assert any(averages) and not all(averages)
    kind = Path.is_dir if how == "sharded" else Path.is_file
    assert all(kind(tmp_path / name) for name in without_ledger(path.name for path in tmp_path.iterdir()))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert read_checkpoint(tmp_path / LATEST)["state"]["timestamp"]["Timestamp"]["batch"] == STEPS


# ---------------------------------------------------------------------------------------- other numbers of processes


def saved(folder: str, how: str) -> dict[str, torch.Tensor]:
    with trainer(how, algorithms=method(), max_duration="3ba", save_folder=folder, save_interval="3ba") as made:
        made.fit()
        return state_of(made)


def resumed(path: str, how: str, **arguments: Any) -> tuple[dict[str, torch.Tensor], int, float, bool]:
    """What was loaded, and how far training comes; what random numbers there are then."""
    with trainer(how, algorithms=method(), max_duration="6ba", load_path=path, **arguments) as made:
        loaded = state_of(made)
        drawn: list[float] = []
        made.state.callbacks.append(At("batch_start", lambda _: drawn.append(torch.rand(()).item())))
        with pytest.warns(ComposerWarning, match="random numbers will differ"):
            made.fit()
        return (
            loaded,
            int(made.state.timestamp.batch),
            drawn[0],
            all(v.isfinite().all() for v in state_of(made).values()),
        )


@pytest.mark.parametrize("how", ["ddp", "full", "sharded"])
def test_other_world_sizes_resume(how, tmp_path, two_ranks, four_ranks) -> None:
    expected = two_ranks.run(saved, str(tmp_path), how)[0]
    path = str(tmp_path / LATEST)
    answers = four_ranks.run(resumed, path, how)
    for loaded, batches, _, finite in [*answers, *([resumed(path, how)] if how == "ddp" else [])]:
        assert equal(loaded, expected)
        assert batches == 6
        assert finite
    # Each process has its own random numbers, those too that there were no states for.
    assert len({drawn for *_, drawn, _ in answers}) == 4


def alone(path: str) -> tuple[bool, int]:
    """A checkpoint of sharded weights in a run that does not shard them."""
    made = build(data(), algorithms=method(), max_duration="6ba", load_path=path)
    weights = read_checkpoint(path)["state"]["model"]
    same = equal({name: value.clone() for name, value in made.state.model.state_dict().items()}, weights)
    with pytest.warns(ComposerWarning, match="random numbers will differ"):
        made.fit()
    made.close()
    return same, int(made.state.timestamp.batch)


@pytest.mark.parametrize("how", ["full", "sharded"])
def test_weights_are_unsharded_and_resharded(how, tmp_path, two_ranks) -> None:
    two_ranks.run(saved, str(tmp_path / "two"), how)
    assert alone(str(tmp_path / "two" / LATEST)) == (True, 6)
    with build(data(), max_duration="3ba", save_folder=str(tmp_path / "one"), algorithms=method()) as one:
        one.fit()
    for loaded, *_ in two_ranks.run(resumed, str(tmp_path / "one" / LATEST), how):
        assert equal(loaded, state_of(one))


def rank_zero_only(path: str) -> dict[str, torch.Tensor]:
    """Only rank 0 sees the file."""
    hidden = path if dist.get_global_rank() == 0 else "nowhere/latest.pt"
    fsdp = {"load_monolith_rank0_only": True, "sync_module_states": True}
    with trainer("full", algorithms=method(), max_duration="6ba", load_path=hidden, fsdp=fsdp) as made:
        return state_of(made)


def test_rank_zero_reads_for_all(tmp_path, two_ranks) -> None:
    expected = two_ranks.run(saved, str(tmp_path), "full")[0]
    for loaded in two_ranks.run(rank_zero_only, str(tmp_path / LATEST)):
        assert equal(loaded, expected)


# ------------------------------------------------------------------------------------------ what is kept, and where


def kept(folder: str) -> list[str]:
    saver = CheckpointSaver(folder, save_interval="1ba", num_checkpoints_to_keep=1, keep_every=3)
    fsdp = {"sharded_ckpt_prefix_dir": "{run_name}-{batch:03d}"}
    with trainer("sharded", callbacks=saver, max_duration="5ba", fsdp=fsdp) as made:
        made.fit()
        dist.barrier()
        return [Path(path).name for path in made.saved_checkpoints]


def test_retained_folders(tmp_path, two_ranks) -> None:
    expected = ["night-001", "night-004", "night-005"]
    assert two_ranks.run(kept, str(tmp_path)) == [expected] * 2
    assert without_ledger(path.name for path in tmp_path.iterdir()) == [LATEST, *expected]
    assert (tmp_path / LATEST).readlink() == Path("night-005")


def in_part(folder: str) -> tuple[bool, list[str], int, bool]:
    """Weights alone, and a training begun with them."""
    arguments: dict[str, Any] = {"save_folder": folder, "save_weights_only": True}
    with trainer("sharded", max_duration="4ba", save_ignore_keys=["state/metadata"], **arguments) as made:
        made.fit()
        expected = state_of(made)
    names = sorted(read_checkpoint(f"{folder}/{LATEST}")["state"])
    made = trainer(
        "sharded",
        load_path=f"{folder}/{LATEST}",
        load_weights_only=True,
        load_ignore_keys=["state/model/*bias"],
    )
    with made:
        found = state_of(made)
    same = torch.equal(found["module.0.weight"], expected["module.0.weight"])
    other = not torch.equal(found["module.0.bias"], expected["module.0.bias"])
    return same, names, int(made.state.timestamp.batch), other


def test_weights_only(tmp_path, two_ranks) -> None:
    for same, names, batch, other in two_ranks.run(in_part, str(tmp_path)):
        assert same and other
        assert names == ["integrations", "model"]
        assert batch == 0


def remote_store(uri: str) -> tuple[bool, str, list[str]]:
    """Each process sends its part; the training continues from there."""
    arguments: dict[str, Any] = {
        "save_folder": uri,
        "save_interval": "2ba",
        "save_num_checkpoints_to_keep": 2,
        "autoresume": True,
    }
    with trainer("sharded") as straight:
        straight.fit()
        expected = parameters(straight)
    stopped(trainer("sharded", callbacks=stop_at(7), **arguments))
    dist.barrier()
    with trainer("sharded", **arguments) as again:
        path = str(again.state.load_path)
        again.fit()
        return equal(parameters(again), expected), path, [Path(one).name for one in again.saved_checkpoints]


def test_remote_save_folder(tmp_path, two_ranks) -> None:
    uri = f"{Far.protocol}://{tmp_path}/run"
    for same, path, paths in two_ranks.run(remote_store, uri):
        assert same
        assert path == f"{uri}/ep0-ba6"
        assert paths == ["ep1-ba10", "ep1-ba12"]
    names = without_ledger(path.name for path in (tmp_path / "run").iterdir() if path.is_file())
    assert names == [f"{LATEST}.symlink"]
    for name in paths:
        assert sorted(path.name for path in (tmp_path / "run" / name).iterdir()) == [
            ".metadata",
            "__0_0.distcp",
            "__1_0.distcp",
            "composer.pt",
        ]
    assert {path.parent.name for path in (tmp_path / "run").glob("*/*")} == set(paths)
