"""A replayed step is bit for bit the step of the run; what cannot be exact is an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, WeightedRandomSampler

from composer import Callback, ComposerModel, DataSpec, Trainer, dist
from composer.algorithms import EMA, SAM, GradientClipping, LabelSmoothing, MixUp
from composer.loggers import InMemoryLogger
from composer.optim import CosineAnnealingWithWarmupScheduler
from composer.trainer.replay import ReplayedStep
from composer.warnings import ComposerWarning
from tests.common import Received, Regression, classifier, labeled_data, regression_data, trainer_of

FEATURES, CLASSES, SAMPLES = 4, 3, 22


class Noisy(Dataset[Any]):
    """Samples (x, class, index) with noise from the generators of the process that fetches them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = torch.arange(FEATURES) * (index - 10) / 20 + torch.randn(FEATURES) + random.random() + np.random.rand()
        return x.float(), index % CLASSES, index


class Net(ComposerModel):
    """A network with random numbers in the forward pass, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, CLASSES))

    def forward(self, batch: Any) -> Any:
        return self.body(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(outputs, batch[1])


class Seen(Callback):
    """Keeps what each step computes."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}

    def after_train_batch(self, state, logger):
        gradients = [p.grad.clone() for p in state.model.parameters() if p.grad is not None]
        self.steps[state.timestamp.batch.value] = {"gradients": gradients}

    def batch_end(self, state, logger):
        step = self.steps[state.timestamp.batch.value - 1]
        step["loss"] = float(state.total_loss_dict["loss/train/total"])
        step["state"] = [value.clone() for value in state.model.state_dict().values()]
        step["indices"] = state.batch[2].tolist() if len(state.batch) == 3 else None


def loader(workers: int = 0, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=4, num_workers=workers, **arguments)


def trainer(folder: Any, callbacks: Any = (), data: Any = None, **arguments: Any) -> Trainer:
    torch.manual_seed(5)
    model = Net()
    given: dict[str, Any] = {
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
        "train_dataloader": loader(shuffle=True) if data is None else data,
        "max_duration": "4ep",
        "save_interval": "5ba",
        "save_folder": str(folder),
        "seed": 11,
        "progress_bar": False,
    }
    if callable(optimizer := arguments.pop("optimizer", None)):
        given["optimizers"] = optimizer(model)
    return Trainer(model=model, callbacks=list(callbacks), **{**given, **arguments})


def methods(folder: Any, callbacks: Any = ()) -> Trainer:
    """Several epochs, methods with state and random numbers, evaluation in between."""
    algorithms = [MixUp(0.3), EMA(half_life="7ba"), GradientClipping("norm", 0.8)]
    evaluation = {"eval_dataloader": loader(), "eval_interval": "3ba"}
    return trainer(folder, callbacks, algorithms=algorithms, **evaluation)


def workers(folder: Any, callbacks: Any = ()) -> Trainer:
    """Data workers with random transforms, a schedule, microbatches."""
    return trainer(
        folder,
        callbacks,
        loader(1, shuffle=True),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        schedulers=CosineAnnealingWithWarmupScheduler("5ba"),
        device_train_microbatch_size=2,
        algorithms=LabelSmoothing(0.1),
    )


def weighted(folder: Any, callbacks: Any = ()) -> Trainer:
    """A sampler with replacement, a closure that computes gradients twice, and checkpoints between epochs only."""
    sampler = WeightedRandomSampler([1.0 + i for i in range(SAMPLES)], 18)
    return trainer(folder, callbacks, loader(sampler=sampler), algorithms=SAM(0.1), save_interval="1ep")


def fetched_again(folder: Any, callbacks: Any = ()) -> Trainer:
    """Batches without indices, which a resumed run fetches again; LBFGS, whose step evaluates a closure."""
    data = DataSpec(labeled_data(6, 4))
    return trainer(
        folder,
        callbacks,
        data,
        optimizer=lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3),
        max_duration="20ba",
        save_interval="7ba",
    )


def compare(make: Callable[..., Trainer], folder: Any, num_steps: int, seed: int) -> list[ReplayedStep]:
    """Run, replay random steps, and compare each bit for bit; return the records."""
    seen = Seen()
    with make(folder, [seen]) as run:
        run.fit()
    chosen = random.Random(seed).sample(sorted(seen.steps), num_steps)
    records: list[ReplayedStep] = []
    for step in chosen:
        again = Seen()
        with make(folder, [again]) as replaying:
            record = replaying.replay(step)
        expected, found = seen.steps[step], again.steps[step]
        assert found["loss"] == record.loss == expected["loss"]
        assert found["indices"] == expected["indices"]
        for name in ("gradients", "state"):
            assert len(found[name]) == len(expected[name]) > 0
            assert all(torch.equal(one, other) for one, other in zip(found[name], expected[name], strict=True))
        norms = [float(gradient.norm()) for gradient in expected["gradients"]]
        assert record.gradient_norms is not None
        assert list(record.gradient_norms.values()) == pytest.approx(norms)
        assert record.timestamp.batch.value == record.step == step
        if expected["indices"] is not None and record.sample_indices is not None:
            assert record.sample_indices == expected["indices"]
        records.append(record)
    return records


@pytest.mark.parametrize(("make", "num_steps"), [(methods, 21), (workers, 6), (weighted, 20), (fetched_again, 20)])
def test_replayed_steps_are_those_of_the_run(make, num_steps, tmp_path):
    records = compare(make, tmp_path, num_steps, seed=1)
    starts = {record.start for record in records}
    assert "seed 11" in starts and any(start.endswith("-rank0.pt") for start in starts)
    has_indices = make is not fetched_again
    assert all((record.sample_indices is not None) is has_indices for record in records)


def sharded_steps(folder: str) -> list[str]:
    """Parameters, optimizer state and checkpoints are sharded (FSDP)."""

    def made(callbacks: Any = ()) -> Trainer:
        return trainer(folder, callbacks, parallelism_config={"fsdp": {}}, max_duration="2ep")

    class Loss(Callback):
        def __init__(self) -> None:
            self.found: dict[int, tuple[float, Any]] = {}

        def batch_end(self, state, logger):
            weights = [p.to_local().clone() for p in state.model.parameters()]
            self.found[state.timestamp.batch.value - 1] = float(state.total_loss_dict["loss/train/total"]), weights

    seen, starts = Loss(), list[str]()
    with made([seen]) as run:
        run.fit()
    for step in (2, 5):
        again = Loss()
        with made([again]) as replaying:
            record = replaying.replay(step)
        assert again.found[step][0] == seen.found[step][0] == record.loss
        assert all(map(torch.equal, again.found[step][1], seen.found[step][1]))
        assert record.gradient_norms is not None and min(record.gradient_norms.values()) > 0
        starts.append(record.start.rpartition("/")[2])
    return starts


def test_sharded_parameters(two_ranks, tmp_path):
    first, _ = two_ranks.run(sharded_steps, str(tmp_path))
    assert first[0] == "seed 11" and first[1].startswith("ep1-ba5")


def on_ranks(folder: str) -> list[list[int] | None]:
    records = compare(methods, folder, 11, seed=2)
    with methods(folder) as again:
        assert again.replay(3).rank == dist.get_global_rank()
    return [record.sample_indices for record in records]


def test_two_ranks(two_ranks, tmp_path):
    first, second = two_ranks.run(on_ranks, str(tmp_path))
    assert all(set(one).isdisjoint(other) for one, other in zip(first, second, strict=True))
    assert all(one for one in first)
    with pytest.raises(ValueError, match=r"was saved by 2 ranks, but there are 1.*composer -n 2"):
        methods(tmp_path).replay(7)


def test_outputs_of_the_run_are_silent(tmp_path):
    log, seen = InMemoryLogger(), Seen()
    with trainer(tmp_path, [seen]) as run:
        run.fit()
    files = sorted(tmp_path.iterdir())
    received = Received()
    with trainer(tmp_path, loggers=[log, received], save_interval="1ba") as again:
        before = len(received.metrics)
        again.replay(12)
        assert len(received.metrics) == before
        assert not log.data.get("loss/train/total")
    assert sorted(tmp_path.iterdir()) == files
    assert received.closed == 1  # it came back, to be closed


def test_module_norms_and_text(tmp_path):
    with trainer(tmp_path) as run:
        record = run.replay(0)
    norms, modules = record.gradient_norms, record.module_norms
    assert norms is not None and modules is not None
    assert modules["body.0"] == pytest.approx((norms["body.0.weight"] ** 2 + norms["body.0.bias"] ** 2) ** 0.5)
    assert modules["body"] == modules[""] == pytest.approx(sum(norm**2 for norm in norms.values()) ** 0.5)
    assert record.learning_rates == {"SGD/group0": 0.05}
    text = str(record)
    assert text.startswith("Step 0, replayed from seed 11: epoch 0, batch 0, sample 0, loss ")
    assert "body.3.weight" in text and "SGD/group0 0.05" in text and "float32[4, 3]" in text
    assert record.to_json()["sample_indices"] == record.sample_indices


class Reversed(Sampler[int]):
    def __iter__(self):
        return iter(reversed(range(SAMPLES)))

    def __len__(self):
        return SAMPLES


def test_indices_of_a_custom_sampler(tmp_path):
    with trainer(tmp_path, data=loader(sampler=Reversed())) as run:
        assert run.replay(2).sample_indices == [13, 12, 11, 10]


def test_the_step_is_not_part_of_the_run(tmp_path):
    with trainer(tmp_path, max_duration="7ba") as run:
        run.fit()
    for step in (7, 9):
        with pytest.raises(ValueError, match=f"Step {step} is not part of the run, which ends at batch 7: .* is 6"):
            trainer(tmp_path, max_duration="7ba").replay(step)
    with trainer(tmp_path, max_duration="7ba", save_folder=None) as run:
        run.fit()
        with pytest.raises(RuntimeError, match=r"has trained to batch 7\. Create another trainer"):
            run.replay(3)
    with pytest.raises(ValueError, match="step must be 0 or greater, but got -1"):
        trainer(tmp_path).replay(-1)
    with pytest.raises(ValueError, match="dry_run"):
        trainer(tmp_path, dry_run=True).replay(1)


def test_duration_of_fit(tmp_path):
    """A duration is that of the entire run, also if the replay starts in the middle."""
    schedule = {"schedulers": CosineAnnealingWithWarmupScheduler("2ba"), "max_duration": None}
    seen, again = Seen(), Seen()
    with trainer(tmp_path, [seen], **schedule) as run:
        run.fit(duration="20ba")
    with trainer(tmp_path, [again], **schedule) as run:
        record = run.replay(17, duration="20ba")
    assert record.start.endswith("ep2-ba15-rank0.pt")
    assert all(map(torch.equal, again.steps[17]["state"], seen.steps[17]["state"]))


def test_a_trainer_that_resumes_by_itself(tmp_path):
    """Its newest checkpoint is after the step, and is replaced by one before it."""
    seen, again = Seen(), Seen()
    for_night = {"autoresume": True, "run_name": "night", "algorithms": EMA(half_life="7ba")}
    with trainer(tmp_path, [seen], **for_night) as run:
        run.fit()
    with trainer(tmp_path, [again], **for_night) as run:
        assert run.state.timestamp.batch == 24
        assert run.replay(13).start.endswith("ba10-rank0.pt")
    assert all(map(torch.equal, again.steps[13]["state"], seen.steps[13]["state"]))
    with pytest.raises(ValueError, match=r"the trainer loaded .*batch 24"):
        trainer(tmp_path, **for_night).replay(2)


def test_weights_only_checkpoints(tmp_path):
    with trainer(tmp_path, save_weights_only=True) as run:
        run.fit()
    with pytest.raises(
        ValueError,
        match=r"(?s)Step 12 cannot be replayed.*lacks the state of the optimizers, .*the seed.*save_weights_only",
    ):
        trainer(tmp_path).replay(12)
    path = next(iter(tmp_path.glob("*ba10*")))
    with pytest.raises(ValueError, match="lacks the state of the optimizers"):
        trainer(tmp_path).replay(12, path)


def test_another_seed_at_the_start(tmp_path):
    with trainer(tmp_path, seed=3) as run:
        run.fit()
    with pytest.raises(ValueError, match=r"its seed was 3, and is now 11.*first complete checkpoint is at batch 5"):
        trainer(tmp_path).replay(2)
    with trainer(tmp_path) as run:  # a checkpoint has the seed
        assert run.replay(6).start.endswith("ba5-rank0.pt")


def test_a_run_that_began_from_a_checkpoint(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with trainer(first, max_duration="7ba") as run:
        run.fit()
    load_path = str(first / "ep1-ba7-rank0.pt")
    seen, again = Seen(), Seen()
    with trainer(second, [seen], load_path=load_path) as run:
        run.fit()
    with trainer(second, [again], load_path=load_path) as run:
        assert run.replay(8).start == load_path
    assert all(map(torch.equal, again.steps[8]["state"], seen.steps[8]["state"]))
    with pytest.raises(ValueError, match=r"the trainer loaded .*ep1-ba7-rank0.pt.*first complete checkpoint"):
        trainer(second, load_path=load_path).replay(3)


def test_an_iterator_without_a_position(tmp_path):
    def made() -> Trainer:
        model = Regression()
        data = DataSpec(iter(regression_data(12)))
        return trainer_of(model, data, max_duration="10ba", save_folder=str(tmp_path), save_interval="5ba", seed=1)

    with made() as run:
        run.fit()
    with pytest.raises(ValueError, match=r"The training data is an iterator.*StatefulDataLoader"):
        made().replay(7)


def test_no_checkpoints(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder or checkpoint"):
        trainer(tmp_path / "run").replay(3, tmp_path / "nowhere")
    with trainer(tmp_path / "run", save_folder=None) as run:  # nothing to compare the seed with
        assert run.replay(3).start == "seed 11"


def test_another_precision_warns(tmp_path):
    with trainer(tmp_path) as run:
        run.fit()
    with pytest.warns(ComposerWarning, match="precision fp32, now amp_bf16"):
        trainer(tmp_path, precision="amp_bf16").replay(6)


def test_a_compiled_model_warns(tmp_path):
    eager = {"compile_config": {"backend": "eager"}}
    with trainer(tmp_path, **eager) as run:
        run.fit()
    with pytest.warns(ComposerWarning, match="torch.compile makes for several shapes.*'dynamic': False"):
        trainer(tmp_path, **eager).replay(6)
    with trainer(tmp_path, **eager) as run:
        assert run.replay(1).start == "seed 11"


def test_classifier_metrics_do_not_change_the_step(tmp_path):
    """Metrics of the run are computed on other steps if loggers are left out."""

    def made(callback: Seen, **more: Any) -> Trainer:
        torch.manual_seed(0)
        folder = str(tmp_path)
        arguments = {"save_folder": folder, "save_interval": "3ba", "max_duration": "2ep", "callbacks": callback}
        return trainer_of(classifier(), labeled_data(), seed=4, **arguments, **more)

    seen, again = Seen(), Seen()
    with made(seen, loggers=InMemoryLogger()) as run:
        run.fit()
    with made(again) as run:
        run.replay(7)
    assert all(map(torch.equal, again.steps[7]["state"], seen.steps[7]["state"]))


def test_random_sampler_with_replacement(tmp_path):
    seen = Seen()
    data = loader(sampler=RandomSampler(range(SAMPLES), replacement=True, num_samples=10))
    with trainer(tmp_path, [seen], data) as run:
        run.fit()
    with trainer(tmp_path, data=data) as run:
        assert run.replay(7).sample_indices == seen.steps[7]["indices"]
