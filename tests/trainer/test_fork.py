"""A fork shares the past of a run bit for bit, and trains on with the settings that its trainer was made with."""

from __future__ import annotations

import copy
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from composer import Algorithm, Callback, ComposerModel, Trainer
from composer.algorithms import EMA, SAM, SqueezeExcite
from composer.checkpoint.at_step import history_of
from composer.loggers import CSVLogger
from composer.optim import ConstantScheduler, CosineAnnealingWithWarmupScheduler, LinearScheduler
from composer.warnings import ComposerWarning

SAMPLES = 22


class Numbered(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.arange(4) * (index - 10) / 20 + torch.randn(4), index % 3, index


class Net(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, batch: Any) -> Any:
        return self.body(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(outputs, batch[1])


class Seen(Callback):
    """Keeps the weights after each step, the learning rate and the samples of the step."""

    def __init__(self) -> None:
        self.weights: dict[int, list[torch.Tensor]] = {}
        self.rates: dict[int, float] = {}
        self.samples: dict[int, list[int]] = {}

    def before_train_batch(self, state, logger):
        self.rates[state.timestamp.batch.value] = state.optimizers[0].param_groups[0]["lr"]
        self.samples[state.timestamp.batch.value] = state.batch[2].tolist()

    def batch_end(self, state, logger):
        values = [value.clone() for value in state.model.state_dict().values()]
        self.weights[state.timestamp.batch.value - 1] = values


def made(folder: Any, *callbacks: Any, lr: float = 0.05, size: int = 4, **arguments: Any) -> Trainer:
    """The trainer of a run of 3 epochs with 6 steps each, which saves at batches 5, 10, 15 and 18."""
    torch.manual_seed(5)
    model = Net()
    given: dict[str, Any] = {
        "optimizers": torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3),
        "train_dataloader": DataLoader(Numbered(), batch_size=size, shuffle=True),
        "max_duration": "3ep",
        "save_interval": "5ba",
        "save_folder": str(folder),
        "seed": 11,
        "progress_bar": False,
        "run_name": Path(folder).name,
    }
    return Trainer(callbacks=list(callbacks), **{"model": model, **given, **arguments})


def same(one: Seen, other: Seen, steps: range) -> bool:
    return all(torch.equal(a, b) for step in steps for a, b in zip(one.weights[step], other.weights[step], strict=True))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def losses(path: Path) -> dict[int, str]:
    """The losses in a log, by step."""
    with path.open() as file:
        return {int(row["step"]): row["loss/train/total"] for row in csv.DictReader(file) if row["loss/train/total"]}


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> tuple[Path, Seen]:
    """A run with a schedule, weight averages and a log."""
    folder, seen = tmp_path_factory.mktemp("runs") / "night", Seen()
    with made(folder, seen, **methods(), loggers=CSVLogger(f"{folder}/{{run_name}}.csv")) as run:
        run.fit()
    return folder, seen


def methods() -> dict[str, Any]:
    return {"schedulers": CosineAnnealingWithWarmupScheduler("4ba"), "algorithms": EMA(half_life="7ba")}


def test_without_changes_it_is_the_run(night, tmp_path):
    folder, seen = night
    before, again = files_of(folder), Seen()
    with made(folder, **methods()) as run:
        state = run.checkpoint_at(13, tmp_path / "state.pt")
    assert state == str(tmp_path / "state.pt")
    log = CSVLogger(str(tmp_path / "{run_name}.csv"))
    with made(tmp_path / "fork", again, **methods(), loggers=log) as run:
        run.fork(13, state)
        run.fit()
        origin = run.state.forked_from
    assert origin == {"run_name": "night", "step": 13, "path": state, "changes": []}
    assert sorted(again.weights) == list(range(13, 18))
    assert same(again, seen, range(13, 18))
    assert again.rates == {step: rate for step, rate in seen.rates.items() if step >= 13}
    # Both logs are on one axis.
    logged, other = (losses(path) for path in (folder / "night.csv", tmp_path / "fork.csv"))
    assert sorted(other) == list(range(13, 18)) and sorted(logged) == list(range(18))
    assert other == {step: logged[step] for step in other}
    assert files_of(folder) == before
    facts = history_of(str(tmp_path / "fork")).before
    assert facts is not None and (facts.run_name, facts.forked_from) == ("fork", origin)
    with pytest.raises(ValueError, match="is the state at batch 10 already"):
        made(folder, **methods()).checkpoint_at(10, tmp_path / "other.pt")


@pytest.mark.parametrize("schedule", [None, CosineAnnealingWithWarmupScheduler("4ba")])
def test_a_changed_learning_rate_is_that_of_the_schedule(schedule, tmp_path):
    seen, again = Seen(), Seen()
    with made(tmp_path / "run", seen, schedulers=schedule) as run:
        run.fit()
    with made(tmp_path / "fork", again, schedulers=schedule, lr=0.005) as run:
        run.fork(10, tmp_path / "run", changes=["optimizers.lr"])
        assert run.state.forked_from == {
            "run_name": "run",
            "step": 10,
            "path": str(tmp_path / "run"),
            "changes": ["optimizers.lr=0.005"],
        }
        run.fit()
    assert again.rates == pytest.approx({step: seen.rates[step] / 10 for step in range(10, 18)})
    assert {step: again.samples[step] for step in again.rates} == {step: seen.samples[step] for step in range(10, 18)}
    assert not same(again, seen, range(10, 11))


def test_a_changed_learning_rate_is_that_of_the_schedule_of_an_optimizer_in_sam(tmp_path):
    seen, again = Seen(), Seen()

    def run_of(folder: str, callback: Seen, lr: float) -> Trainer:
        model = Net()
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)
        arguments = {"schedulers": schedule, "step_schedulers_every_batch": True, "algorithms": SAM()}
        return made(tmp_path / folder, callback, model=model, optimizers=sgd, **arguments)

    with run_of("run", seen, 0.05) as run:
        run.fit()
    with run_of("fork", again, 0.005) as run:
        run.fork(10, tmp_path / "run", changes=["optimizers.lr"])
        run.fit()
    assert again.rates == pytest.approx({step: seen.rates[step] / 10 for step in range(10, 18)})


def test_a_resumed_fork_is_the_fork(tmp_path):
    seen, again = Seen(), Seen()
    with made(tmp_path / "run", **methods(), lr=0.05) as run:
        run.fit()

    def forked(folder: str, callback: Seen) -> Trainer:
        trainer = made(tmp_path / folder, callback, lr=0.01, autoresume=True, **methods())
        trainer.fork(10, tmp_path / "run", changes=["optimizers.lr"])
        return trainer

    with forked("full", seen) as run:
        run.fit()
    with forked("cut", again) as run:

        class Cut(Callback):
            def batch_end(self, state, logger):
                if state.timestamp.batch.value == 13:
                    raise KeyboardInterrupt

        run.state.callbacks = [*run.state.callbacks, Cut()]
        with pytest.raises(KeyboardInterrupt):
            run.fit()
        run.save_checkpoint_to_save_folder()
    with forked("cut", again) as run:
        assert run.state.timestamp.batch == 13
        assert run.state.forked_from is not None and run.state.forked_from["step"] == 10
        run.fit()
    assert again.rates == seen.rates
    assert same(again, seen, range(10, 18))
    with pytest.raises(ValueError, match="was forked at batch 10, not 5"):
        made(tmp_path / "cut", autoresume=True, **methods()).fork(5, tmp_path / "run")


class Counting(Algorithm):
    """Counts the batches that it has seen."""

    @staticmethod
    def required_on_load() -> bool:
        return True

    def __init__(self) -> None:
        self.count = 0

    def batch_end(self, state, logger):
        self.count += 1

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_algorithms_added_and_removed(tmp_path):
    seen, again = Seen(), Seen()
    with made(tmp_path / "run", seen, algorithms=Counting()) as run:
        run.fit()
    kept, added = Counting(), EMA(half_life="3ba", update_interval="1ba")
    with made(tmp_path / "added", again, algorithms=[kept, added]) as run:
        run.fork(15, tmp_path / "run", changes=["algorithms"])
        run.fit()
        trained, averaged = run.state.model, added.get_ema_model(copy.deepcopy(run.state.model))
        assert any(not torch.equal(*pair) for pair in zip(trained.parameters(), averaged.parameters(), strict=True))
    assert kept.count == 18
    assert same(again, seen, range(15, 18))  # weight averages do not change the training
    with made(tmp_path / "removed") as run:  # no warning: what is named is left out on purpose
        run.fork(15, tmp_path / "run", changes=["algorithms"])
        assert run.state.algorithms == []
        run.fit()
        assert run.state.timestamp.batch == 18
    with made(tmp_path / "unnamed") as run, pytest.warns(ComposerWarning, match="Automatically adding"):
        run.fork(15, tmp_path / "run")


def test_schedule_and_duration(tmp_path):
    """A cool-down from a stable phase."""
    with made(tmp_path / "run", schedulers=ConstantScheduler()) as run:
        run.fit()
    again = Seen()
    cool_down = {"schedulers": LinearScheduler(1.0, 0.0, "20ba"), "max_duration": "20ba"}
    with made(tmp_path / "fork", again, **cool_down) as run:
        run.fork(15, tmp_path / "run", changes=["schedulers", "max_duration"])
        run.fit()
    assert again.rates == pytest.approx({step: 0.05 * (1 - step / 20) for step in range(15, 20)})


def test_the_batch_size_keeps_the_position_in_the_data(tmp_path):
    seen, again = Seen(), Seen()
    with made(tmp_path / "run", seen) as run:
        run.fit()
    with made(tmp_path / "fork", again, size=2) as run:
        run.fork(15, tmp_path / "run", changes=["train_dataloader.batch_size"])
        run.fit()
    # Batch 15 is the fourth of the epoch: 12 of 22 samples are trained.
    rest = [index for step in range(15, 18) for index in seen.samples[step]]
    assert [index for step in sorted(again.samples) for index in again.samples[step]] == rest
    assert len(again.samples) == 5


@pytest.mark.parametrize("num_groups", [1, 2])
def test_optimizers_that_start_fresh(tmp_path, num_groups):
    """A schedule goes on with their values."""
    with made(tmp_path / "run", schedulers=LinearScheduler()) as run:
        run.fit()
    model, again = Net(), Seen()
    groups = [{"params": list(model.parameters())[number::num_groups]} for number in range(num_groups)]
    optimizer = torch.optim.AdamW(groups, lr=0.2)
    with made(tmp_path / "fork", again, model=model, optimizers=optimizer, schedulers=LinearScheduler()) as run:
        run.fork(15, tmp_path / "run", changes=["optimizers"])
        run.fit()
        assert run.state.timestamp.batch == 18
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}
    assert again.rates == pytest.approx({step: 0.2 * (1 - step / 18) for step in range(15, 18)})


def test_a_setting_that_is_not_named_is_told(tmp_path):
    with made(tmp_path / "run") as run:
        run.fit()
    message = r"lr of SGD .* is 0.05.*not 0.01.*changes=\['optimizers.lr'\]"
    with made(tmp_path / "fork", lr=0.01) as run, pytest.warns(ComposerWarning, match=message):
        run.fork(15, tmp_path / "run")


@pytest.mark.parametrize(
    ("at", "changes", "more", "message"),
    [
        (12, [], {}, r"no complete checkpoint at batch 12. The nearest is at batch 10.*checkpoint_at\(12"),
        (0, [], {}, r"no complete checkpoint at batch 0.*checkpoint_at\(0, 'state.pt', run=\.\.\.\)\.\s"),
        (19, [], {}, r"has no batch 19: the run ends at batch 18. .* fork it there with a larger max_duration"),
        (10, ["optimizers.lrr"], {}, "'optimizers.lrr' is not a hyperparameter.*'lr'"),
        (10, ["optimisers.lr"], {}, "Trainer has no argument 'optimisers'.*'optimizers'"),
        (10, ["optimizers.lr=0.1"], {}, "Give the value to the Trainer"),
        (10, [], {"run_name": "night"}, "run_name='night' is the name of the run"),
        (10, [], {"save_folder": "night"}, "in the folder of the run that it forks. Use another save_folder"),
        (10, [], {"save_folder": "night/forks/one"}, "in the folder of the run that it forks"),
    ],
)
def test_errors(night, tmp_path, monkeypatch, at, changes, more, message):
    folder, _ = night
    monkeypatch.chdir(folder.parent)
    with made(tmp_path / "fork", **{**methods(), **more}) as run, pytest.raises(ValueError, match=message):
        run.fork(at, "night", changes=changes)
    assert not (folder / "forks").exists() or not any((folder / "forks").rglob("*.pt"))


@pytest.mark.parametrize(
    ("at", "changes", "error", "message"),
    [
        (2.5, (), TypeError, r"^at must be an integer, but got 2\.5"),
        (True, (), TypeError, r"^at must be an integer, but got True"),
        (-1, (), ValueError, r"^at must be 0 or greater, but got -1"),
        (10, "seed", TypeError, r"^changes must be a list of strings, but got 'seed'; write \['seed'\]"),
        (10, {"optimizers.lr": 0.1}, TypeError, r"^changes must be a list of strings, but got {'optimizers.lr': 0\.1}"),
        (10, None, TypeError, r"^changes must be a list of strings, but got None"),
        (10, [3], TypeError, r"^changes must be a list of strings, but contains 3"),
    ],
)
def test_arguments_of_other_types(tmp_path, at, changes, error, message):
    with made(tmp_path) as run, pytest.raises(error, match=message):
        run.fork(at, "night", changes=changes)


def test_steps_of_numpy(night, tmp_path):
    """Such as what argmax returns; the checkpoints of the fork have integers of Python."""
    folder, _ = night
    with made(tmp_path / "fork", **methods()) as run:
        run.fork(np.int64(10), folder, changes=(name for name in ["optimizers.lr"]))
        assert run.state.forked_from["changes"] == ["optimizers.lr=0.05"]
        assert type(run.state.forked_from["step"]) is int
    with made(folder, **methods()) as run:
        assert run.checkpoint_at(np.int64(7), tmp_path / "{batch}.pt") == str(tmp_path / "7.pt")
    with made(folder, **methods()) as run:
        assert run.replay(np.int64(6)).step == 6
    with made(folder, **methods()) as run:
        assert {row.step for row in run.blame(np.int64(6), np.int64(7)).rows} == {6, 7}
    with (
        made(folder, **methods()) as run,
        pytest.raises(TypeError, match=r"^last_step must be an integer, but got '7'"),
    ):
        run.blame(6, "7")


def test_beyond_the_end(night, tmp_path):
    folder, _ = night
    with pytest.raises(ValueError, match="Step 19 is not part of the run, which ends at batch 18"):
        made(folder, **methods()).checkpoint_at(19, tmp_path / "state.pt")


def on_ranks(folder: str) -> tuple[list[float], bool]:
    run, first, again = Path(folder), Seen(), Seen()
    with made(run / "run", first, **methods()) as trainer:
        trainer.fit()
    with made(run / "run", **methods()) as trainer:
        trainer.checkpoint_at(7, run / "state.pt")
    with made(run / "fork", again, **methods()) as trainer:
        trainer.fork(7, run / "state.pt")
        trainer.fit()
    steps = range(7, max(first.weights) + 1)
    return sorted(again.weights), same(again, first, steps) and sorted(again.weights) == list(steps)


def test_two_ranks(two_ranks, tmp_path):
    for steps, is_same in two_ranks.run(on_ranks, str(tmp_path)):
        assert is_same and steps


def test_a_removed_method_that_replaced_layers(tmp_path):
    def convolutional(folder: Path, *algorithms: Algorithm) -> Trainer:
        net = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 8, 1), nn.Flatten(), nn.Linear(32, 3))
        model = Net()
        model.body = net
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return made(folder, algorithms=list(algorithms), model=model, optimizers=optimizer)

    with convolutional(tmp_path / "run", SqueezeExcite(min_channels=1), EMA(half_life="7ba")) as run:
        run.fit()
    with convolutional(tmp_path / "kept", SqueezeExcite(min_channels=1)) as kept:
        kept.fork(10, tmp_path / "run", changes=["algorithms"])
        kept.fit()
        assert kept.state.timestamp.batch == 18
    with (
        convolutional(tmp_path / "fork") as fork,
        pytest.raises(ValueError, match="do not fit the model without SqueezeExcite, EMA, since a method"),
    ):
        fork.fork(10, tmp_path / "run", changes=["algorithms"])
