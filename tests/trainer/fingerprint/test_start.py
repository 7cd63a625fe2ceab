"""What a run starts from is noted once, kept in its checkpoints, and compared in a replay."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, WeightedRandomSampler, random_split

from composer import Trainer
from composer.checkpoint.at_step import facts_of
from composer.checkpoint.load import read_checkpoint
from composer.trainer.fingerprint import start
from composer.trainer.fingerprint.compare import RunChangedError
from composer.trainer.replay import Replay
from composer.warnings import ComposerWarning
from tests.common import classifier


def data(seed: int = 1, kind: str = "split") -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    rows = TensorDataset(torch.rand(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3)
    if kind == "weights":
        return DataLoader(rows, 4, sampler=WeightedRandomSampler(torch.rand(24, generator=generator).tolist(), 20))
    if kind == "rows":
        return DataLoader([(torch.rand(4, generator=generator), index % 3) for index in range(20)], 4)
    parts = random_split(rows, [10, 10, 4], generator)
    return DataLoader(ConcatDataset(parts[:2]) if kind == "concat" else parts[0] + parts[1], 4, shuffle=True)


def made(folder: Any, loader: Any = None, model_seed: int = 3, **arguments: Any) -> Trainer:
    torch.manual_seed(model_seed)
    model = classifier()
    given = {"max_duration": "2ep", "seed": 7, "save_interval": "3ba", "save_folder": str(folder), **arguments}
    return Trainer(
        model=model,
        train_dataloader=data() if loader is None else loader,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        progress_bar=False,
        **given,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Any:
    """The folder of a run with checkpoints at the batches 3, 6, 9 and 10."""
    folder = tmp_path_factory.mktemp("run")
    made(folder).fit()
    return folder


def fingerprint(folder: Any, name: str) -> dict[str, Any]:
    found = facts_of(str(folder / name)).fingerprint
    assert found is not None
    return found


def test_checkpoints_have_it(run) -> None:
    found = fingerprint(run, "ep0-ba3-rank0.pt")
    assert found == fingerprint(run, "ep2-ba10-rank0.pt")
    assert found["weights"]["batch"] == found["data"]["batch"] == 0
    assert found["data"]["parts"]["dataset.datasets.0.indices"][0] == "list of 10"
    assert torch.load(run / "ep0-ba3-rank0.pt", weights_only=True)["state"]["fingerprint"] == found


def test_it_is_noted_once(monkeypatch, tmp_path) -> None:
    calls: list[str] = []
    for name in ("fingerprint_of_weights", "fingerprint_of_data", "fingerprint_of_sources"):
        original = getattr(start, name)
        monkeypatch.setattr(start, name, lambda *given, name=name, f=original: calls.append(name) or f(*given))
    trainer = made(tmp_path)
    trainer.fit(duration="3ba")
    assert sorted(calls) == ["fingerprint_of_data", "fingerprint_of_sources", "fingerprint_of_weights"]
    trainer.fit(duration="1ep")
    assert len(calls) == 3
    trainer.fit(train_dataloader=data(2), duration="1ep")
    assert calls[3:] == ["fingerprint_of_data"]
    assert trainer.state.fingerprint is not None
    assert trainer.state.fingerprint["data"]["batch"] == 5


def test_training_is_the_same(monkeypatch, tmp_path) -> None:
    weights: list[torch.Tensor] = []
    for is_noted in (True, False):
        if not is_noted:
            monkeypatch.setattr("composer.trainer.fit.note_start", lambda run: None)
        trainer = made(tmp_path / str(is_noted))
        trainer.fit()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.state.model.parameters()]))
    assert torch.equal(*weights)


def test_a_resumed_run_keeps_the_start(run, tmp_path) -> None:
    trainer = made(tmp_path, load_path=str(run / "ep0-ba3-rank0.pt"))
    trainer.fit()
    assert trainer.state.fingerprint == fingerprint(run, "ep0-ba3-rank0.pt")
    other = made(tmp_path / "other", data(2), load_path=str(run / "ep0-ba3-rank0.pt"))
    other.fit()
    assert other.state.fingerprint is not None
    assert (other.state.fingerprint["weights"]["batch"], other.state.fingerprint["data"]["batch"]) == (0, 3)
    # A replay of a step before cannot tell which data the run had then, and one after it can.
    made(None, save_folder=None).replay(1, tmp_path / "other")
    with pytest.raises(RunChangedError, match="indices"):
        made(None, save_folder=None).replay(7, tmp_path / "other")


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize("kind", ["split", "concat", "weights", "rows"])
def test_data_of_the_run_and_other_data(tmp_path, kind, step) -> None:
    made(tmp_path, data(1, kind)).fit()
    made(tmp_path, data(1, kind)).replay(step)
    with pytest.raises(RunChangedError, match=r"(?s)is not that of the run: .*(dataset|sampler).*allow_changes"):
        made(tmp_path, data(2, kind)).replay(step)
    with pytest.warns(ComposerWarning, match="is not that of the run"):
        made(tmp_path, data(2, kind)).replay(step, allow_changes=True)


def test_other_initial_weights(run) -> None:
    with pytest.raises(RunChangedError, match=r"from seed 7; different: module\..*manual_seed.*checkpoint at batch 3"):
        made(run, model_seed=4).replay(2)
    with pytest.raises(RunChangedError):
        made(run, model_seed=4).blame(2)
    with pytest.raises(RunChangedError):
        made(run, model_seed=4).checkpoint_at(2, run / "never.pt")
    assert not (run / "never.pt").exists()
    with pytest.warns(ComposerWarning, match="initial weights are not those"):
        made(run, model_seed=4).blame(2, allow_changes=True)
    assert made(run, model_seed=4).replay(3).start.endswith("ep0-ba3-rank0.pt")  # a checkpoint restores them


def on_ranks(folder: str) -> list[str]:
    arguments: dict[str, Any] = {"parallelism_config": {"fsdp": {}}, "save_interval": "2ba"}
    trainer = made(folder, **arguments)
    trainer.fit()
    errors: list[str] = []
    for seed, model_seed, step in ((1, 3, 1), (1, 4, 1), (2, 3, 3)):
        again = made(folder, data(seed), model_seed, **arguments)
        try:
            again.replay(step)
        except RunChangedError as error:
            errors.append(str(error))
    return errors


def test_sharded_weights(two_ranks, tmp_path) -> None:
    first, second = two_ranks.run(on_ranks, str(tmp_path))
    assert first == second
    assert "different: module.weight, module.bias." in first[0]
    assert "indices (list of 10) has other elements" in first[1]
    assert len(first) == 2


def test_forks_are_only_warned(run, tmp_path) -> None:
    fork = made(tmp_path, data(2), run_name="fork")
    fork.fork(3, run)
    with pytest.warns(ComposerWarning, match="is not that of the run"):
        fork.fit()
    for changes, loader in (((), data()), (("train_dataloader",), data(2))):
        same = made(tmp_path / str(len(changes)), loader, run_name="same")
        same.fork(3, run, changes=changes)
        same.fit()


def test_checkpoints_of_earlier_versions(run, tmp_path) -> None:
    content = read_checkpoint(run / "ep0-ba3-rank0.pt")
    del content["state"]["fingerprint"]
    torch.save(content, tmp_path / "ep0-ba3-rank0.pt")
    with pytest.warns(ComposerWarning, match=r"^Whether the data are those of the run cannot be told") as warned:
        made(tmp_path, data(2)).replay(4)
    assert len(warned) == 1
    with pytest.warns(ComposerWarning, match="Whether the initial weights and the data"):
        made(tmp_path, model_seed=4).replay(2)
    with pytest.warns(ComposerWarning, match="cannot be told"):
        fork = made(tmp_path.parent / "fork", run_name="fork")
        fork.fork(3, tmp_path)
    fork.fit()


def test_data_of_a_later_call_of_fit(tmp_path) -> None:
    """It is not compared with that of a checkpoint at the end of the call before."""
    calls: list[dict[str, Any]] = [{"duration": "3ba"}, {"duration": "4ba", "train_dataloader": data(5)}]
    trainer = made(tmp_path, max_duration=None)
    for arguments in calls:
        trainer.fit(**arguments)
    for step, starts_in_second in ((4, True), (6, True), (2, False)):
        trainer = made(tmp_path, max_duration=None)
        replay = Replay(trainer, trainer._run, step, str(tmp_path))  # pyright: ignore[reportPrivateUsage]
        replay.load()
        record = replay.train(trainer.fit, **calls[0])
        if starts_in_second:
            assert record is None
            record = replay.train(trainer.fit, **calls[1])
        assert record is not None and record.step == step


@pytest.mark.parametrize(("seed", "message"), [(2, "trains on other data than before: .*indices"), (1, "")])
def test_a_resumed_run_warns_of_another_split(tmp_path, seed: int, message: str) -> None:
    made(tmp_path, max_duration="1ep").fit()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made(tmp_path, data(seed), autoresume=True).fit()
    texts = [str(one.message) for one in caught if "other data" in str(one.message)]
    assert bool(texts) == bool(message)
    assert all(re.search(message, text) for text in texts)
