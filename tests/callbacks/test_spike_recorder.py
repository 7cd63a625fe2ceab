"""SpikeRecorder: when a step is a spike, which samples are written, and that a resumed run continues exactly."""

from __future__ import annotations

import json
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.callbacks import SpikeRecorder
from composer.callbacks.spike_recorder import _Curve
from tests.callbacks.cases import Case, run_with
from tests.common import CLASSES, FEATURES, Regression, classifier, labeled_data, regression_data


def with_a_spike(num_batches: int = 6) -> list:
    data = labeled_data(num_batches)
    data[-1] = (data[-1][0] * 1e4, data[-1][1])
    return data


CASES = [
    Case(
        make=lambda folder, watch=watch: SpikeRecorder(watch, window=4, filename=f"{folder}/spikes.jsonl"),
        logs=("spike_recorder/num_spikes",),
        batches=with_a_spike,
    )
    for watch in ("loss", "both")
]

NUM_SAMPLES, BAD = 240, 117


def dataset() -> TensorDataset:
    """Samples of which one is far off, in the loss and in the gradient."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(NUM_SAMPLES, FEATURES, generator=generator)
    x[BAD] *= 1e4
    return TensorDataset(x, torch.randint(CLASSES, (NUM_SAMPLES,), generator=generator))


def trainer_of(folder, watch: str = "loss", seed: int = 5, **arguments) -> tuple[Trainer, SpikeRecorder]:
    torch.manual_seed(seed)
    model = classifier()
    recorder = SpikeRecorder(watch, window=16, num_batches=3, filename=f"{folder}/spikes.jsonl")
    loader = DataLoader(dataset(), batch_size=4, shuffle=True)
    arguments = {"max_duration": "2ep", "optimizers": torch.optim.SGD(model.parameters(), lr=1e-6)} | arguments
    trainer = Trainer(
        model=model, train_dataloader=loader, callbacks=recorder, seed=seed, progress_bar=False, **arguments
    )
    return trainer, recorder


def lines(folder) -> list[dict]:
    path = folder / "spikes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("watch", ["loss", "norm", "both"])
def test_names_the_samples_of_the_batches_up_to_the_spike(watch, tmp_path) -> None:
    trainer, recorder = trainer_of(tmp_path, watch, seed=7)
    seen = []
    trainer.state.callbacks.append(_Seen(seen))
    trainer.fit()
    found = lines(tmp_path)
    assert len(found) == recorder.num_spikes == 2  # once in each epoch
    for spike in found:
        assert spike["z"] > 6
        assert [one["batch"] for one in spike["batches"]] == [spike["batch"] - i for i in (2, 1, 0)]
        for one in spike["batches"]:
            (indices,) = one["indices"]
            assert torch.equal(seen[one["batch"]], dataset().tensors[0][indices])
        assert BAD in spike["batches"][-1]["indices"][0]
        assert spike["watched"] == ("gradient_norm" if watch == "norm" else "loss")
        assert (spike["batches"][-1]["gradient_norm"] is None) == (watch == "loss")


class _Seen(SpikeRecorder):
    """Keeps the inputs of all batches."""

    def __init__(self, seen: list) -> None:
        super().__init__(filename="unused.jsonl")
        self._seen = seen

    def batch_start(self, state, logger):
        self._seen.append(state.batch[0].clone())

    def batch_end(self, state, logger):
        pass


def test_a_resumed_run_writes_the_same_file(tmp_path) -> None:
    whole, _ = trainer_of(tmp_path / "whole")
    whole.fit()
    spikes = [spike["batch"] for spike in lines(tmp_path / "whole")]
    assert len(spikes) == 2
    # Right before a spike, right after it, and between.
    for stop in (spikes[0], spikes[0] + 1, spikes[1] - 3):
        folder = tmp_path / str(stop)
        arguments = {"run_name": "one", "save_folder": str(folder / "saved")}
        first, _ = trainer_of(folder, save_interval=f"{stop}ba", **arguments)
        first.fit(duration=f"{stop + 20}ba")  # goes on after the checkpoint, as a run that is killed
        first.close()
        again, _ = trainer_of(folder, load_path=f"{folder}/saved/ep{stop // 60}-ba{stop}-rank0.pt", run_name="one")
        again.fit()
        assert lines(folder) == lines(tmp_path / "whole")


def test_consecutive_spikes_are_one_and_a_lasting_level_is_accepted(tmp_path) -> None:
    torch.manual_seed(1)
    data = regression_data(60)
    data[20:] = [(x, y + 100) for x, y in data[20:]]
    model = Regression()
    recorder = SpikeRecorder(window=16, filename=f"{tmp_path}/spikes.jsonl")
    run = run_with(recorder, model=model, data=data, optimizers=torch.optim.SGD(model.parameters(), lr=1e-9))
    run.trainer.fit()
    (spike,) = lines(tmp_path)
    assert spike["batch"] == 20
    assert spike["batches"][-1]["indices"] is None  # a list of batches has no indices
    assert not recorder._in_spike


def test_non_finite_values_are_spikes_from_the_first_step(tmp_path) -> None:
    data = labeled_data(6)
    data[1] = (data[1][0] * float("nan"), data[1][1])
    run = run_with(SpikeRecorder(filename=f"{tmp_path}/spikes.jsonl"), data=data)
    run.trainer.fit()
    (spike,) = lines(tmp_path)
    assert (spike["batch"], spike["value"], spike["z"]) == (1, "NaN", "Infinity")


def test_no_alarm_on_sound_curves() -> None:
    random.seed(3)
    for curve in range(20):
        values = [(2.0 * 0.99**step + 0.3) * random.lognormvariate(0, 0.1 + 0.02 * curve) for step in range(500)]
        seen = _Curve(128, 0.01)
        assert not any(seen.is_spike(value, 6.0) or seen.add(value) for value in values)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}


def spikes_of(optimizer: str, seed: int, hidden: int, bad: int | None = None) -> tuple[list[int], list[int]]:
    """The steps at which the loss and the gradient norm of a regression spike; a row of batch ``bad`` is wrong."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(256, 16, generator=generator)
    y = (x @ torch.randn(16, 1, generator=generator)).tanh() + 0.1 * torch.randn(256, 1, generator=generator)
    model = nn.Sequential(nn.Linear(16, hidden), nn.GELU(), nn.Linear(hidden, 1))
    optimize = OPTIMIZERS[optimizer](model.parameters())
    curves, found = (_Curve(32, 0.01), _Curve(32, 0.15)), ([], [])
    for step in range(160):
        chosen = torch.randint(256, (16,), generator=generator)
        batch, target = x[chosen], y[chosen]
        if step == bad:
            target[3] = 200.0
        loss = nn.functional.mse_loss(model(batch), target)
        optimize.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimize.step()
        for curve, steps, value in zip(curves, found, (loss.item(), norm.item()), strict=True):
            if curve.is_spike(value, 6.0):
                steps.append(step)
            curve.add(value)
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_planted_spikes_of_runs_are_found_and_no_others(optimizer) -> None:
    """20 ordinary runs, and the same with a wrong row."""
    for seed in range(4):
        assert spikes_of(optimizer, seed, 16 + 16 * seed) == ([], [])
        for steps in spikes_of(optimizer, seed, 16 + 16 * seed, bad=100):
            assert steps[0] == 100


def test_values_that_are_not_positive_are_compared_without_logarithms() -> None:
    seen = _Curve(16, 0.01)
    for step in range(32):
        seen.add(-3.0 + 0.1 * (step % 5))
    assert seen.median == pytest.approx(-2.8)
    assert not seen.is_spike(-2.5, 6.0)
    assert seen.is_spike(1.0, 6.0)


def test_writes_no_file_without_a_spike(tmp_path) -> None:
    run = run_with(SpikeRecorder(filename=f"{tmp_path}/a/spikes.jsonl"), data=labeled_data(8))
    run.trainer.fit()
    assert not list(tmp_path.iterdir())


def test_listens_to_backward_passes_only_for_the_norm() -> None:
    from composer.core import Event

    assert not SpikeRecorder().__listens__(Event.AFTER_BACKWARD)
    assert SpikeRecorder("norm").__listens__(Event.AFTER_BACKWARD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"watch": "los"}, "watch must be"),
        ({"window": 2}, "window must be at least 4"),
        ({"z_threshold": 0}, "z_threshold"),
        ({"num_batches": 0}, "num_batches"),
        ({"filename": "{rnak}.jsonl"}, "rnak"),
    ],
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        SpikeRecorder(**arguments)


def on_two_ranks(folder) -> None:
    from composer import dist

    trainer, _ = trainer_of(folder)
    indices = {}
    from composer import Callback
    from composer.core.sample_indices import sample_indices

    class Own(Callback):
        def after_dataloader(self, state, logger):
            indices[state.timestamp.batch.value] = sample_indices(state.train_phase).indices

    trainer.state.callbacks.append(Own())
    trainer.fit()
    everyone = dist.all_gather_object(indices)
    found = lines(folder)
    assert len(found) == 2
    for spike in found:
        for one in spike["batches"]:
            assert one["indices"] == [own[one["batch"]] for own in everyone]


def test_rank_0_writes_the_indices_of_all_ranks(two_ranks, tmp_path) -> None:
    two_ranks.run(on_two_ranks, tmp_path)
