"""Trainer setup: seeds, names, logging modes, precision, logged hyperparameters."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import composer
from composer import Algorithm, Callback, Evaluator, Event, Trainer
from composer._cpus import cpus_of_node
from composer.algorithms import LabelSmoothing, MixUp
from composer.devices import DeviceCPU
from composer.loggers import ConsoleLogger, InMemoryLogger, ProgressBarLogger
from composer.trainer.extract_hparams import describe
from tests.common import (
    At,
    Received,
    Recorder,
    Regression,
    classifier,
    labeled_data,
    regression_data,
    trainer_of,
    weights,
)


class Noisy(Regression):
    """Dropout makes the result depend on the generator."""

    def forward(self, batch):
        return self.linear(nn.functional.dropout(batch[0], 0.5, self.training))


# ---------------------------------------------------------------------------------------------------- seeds


def train_noisy(seed: int | None, before: int = 0) -> torch.Tensor:
    torch.manual_seed(before)
    model = Noisy()
    nn.init.ones_(model.linear.weight)
    trainer = trainer_of(model, seed=seed, max_duration="2ep")
    assert trainer.state.seed == trainer.state.rank_zero_seed
    trainer.fit()
    return weights(trainer)


def test_a_seed_repeats_a_run() -> None:
    first, again, other = train_noisy(1, before=4), train_noisy(1, before=4), train_noisy(2, before=4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_without_a_seed_torch_manual_seed_is_enough() -> None:
    first, again, other = train_noisy(None, before=4), train_noisy(None, before=4), train_noisy(None, before=5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_state_used_in_setup_does_not_change_training() -> None:
    class Draws(Callback):
        def init(self, state, logger):
            torch.rand(10)

    def first_dropout(**more):
        seen = At("after_forward", lambda state: state.outputs.detach().clone())
        torch.manual_seed(0)
        trainer_of(Noisy(), seed=3, callbacks=[seen, *more.pop("callbacks", [])]).fit()
        return seen.found[0]

    assert torch.equal(first_dropout(), first_dropout(callbacks=[Draws()]))


def test_deterministic_mode(monkeypatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    assert not torch.are_deterministic_algorithms_enabled()
    trainer_of(deterministic_mode=True).fit()
    assert torch.are_deterministic_algorithms_enabled()


# ---------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("spelling", ["amp_bf16", "AMP_BF16", "bf16", composer.core.Precision.AMP_BF16])
def test_bfloat16_on_the_cpu(spelling) -> None:
    dtypes = {name: At(name, lambda s: s.outputs.dtype) for name in ("after_forward", "eval_after_forward")}
    log = Received()
    trainer = trainer_of(
        classifier(),
        labeled_data(4, 8),
        precision=spelling,
        callbacks=list(dtypes.values()),
        loggers=log,
        eval_dataloader=labeled_data(1),
    )
    trainer.fit()
    assert {dtype for at in dtypes.values() for dtype in at.found} == {torch.bfloat16}
    assert all(parameter.dtype == torch.float32 for parameter in trainer.state.model.parameters())
    assert trainer.state.scaler is None
    losses = Received()
    torch.manual_seed(0)
    trainer_of(classifier(), labeled_data(4, 8), loggers=losses).fit()
    torch.manual_seed(0)
    half = Received()
    trainer_of(classifier(), labeled_data(4, 8), loggers=half, precision=spelling).fit()
    values, half_values = ([v for _, v in log.series("loss/train/total")] for log in (losses, half))
    assert values != half_values
    assert half_values == pytest.approx(values, rel=2e-2)


def test_float32_disables_an_outer_autocast() -> None:
    dtypes = At("after_forward", lambda state: state.outputs.dtype)
    trainer = trainer_of(callbacks=dtypes, precision="fp32")
    trainer.fit()
    assert set(dtypes.found) == {torch.float32}
    assert trainer.state.precision == "fp32"


def test_device_objects() -> None:
    trainer = trainer_of(device=DeviceCPU())
    assert trainer.state.device.name == "cpu"
    trainer.fit()


# ---------------------------------------------------------------------------------------------------- construction


def test_the_order_of_construction() -> None:
    """At INIT there is no data yet but a model and its optimizers, and what changes the model is seen by all after."""
    seen = {}

    class Surgery(Algorithm):
        def init(self, state, logger):
            seen["init"] = (state.train_dataloader, len(state.optimizers))
            state.model.linear = nn.Linear(4, 1, bias=False)

        def after_load(self, state, logger):
            seen["after_load"] = (state.train_dataloader is not None, len(state.schedulers), state.precision)

    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer_of(
        model, algorithms=Surgery(), optimizers=optimizer, schedulers=torch.optim.lr_scheduler.StepLR(optimizer, 1)
    )
    assert seen == {"init": (None, 1), "after_load": (True, 1, "fp32")}
    assert model.linear.bias is None


def test_algorithms_are_ordered_by_passes() -> None:
    order = []

    class Note(Algorithm):
        def __init__(self, name):
            self.name = name

        def batch_start(self, state, logger):
            order.append(self.name)

    algorithms = [Note("a"), Note("b"), Note("c")]
    trainer_of(algorithms=algorithms, max_duration="1ba").fit()
    trainer_of(algorithms=algorithms, max_duration="1ba", algorithm_passes=lambda found, event: found[::-1]).fit()
    swap = [lambda found, event: found[::-1], (lambda found, event: [*found[1:], *found[:1]], 0)]
    trainer_of(algorithms=algorithms, max_duration="1ba", algorithm_passes=swap).fit()
    assert "".join(order) == "abccbaacb"


def test_two_loss_mixing_algorithms_warn() -> None:
    class Other(MixUp):
        pass

    with pytest.warns(composer.warnings.ComposerWarning, match="MixUp and Other both claim 'loss_mix'"):
        trainer_of(
            classifier(), labeled_data(), algorithms=[MixUp(interpolate_loss=True), Other(interpolate_loss=True)]
        )


# ---------------------------------------------------------------------------------------------------- loggers


def test_requested_destinations(capsys) -> None:
    def kinds(**arguments):
        trainer = Trainer(model=Regression(), **arguments)
        return [type(destination) for destination in trainer.logger.destinations]

    assert kinds() == [ProgressBarLogger]
    assert kinds(progress_bar=False) == []
    assert kinds(progress_bar=False, log_to_console=True) == [ConsoleLogger]
    own = InMemoryLogger()
    assert kinds(loggers=own) == [InMemoryLogger, ProgressBarLogger]
    assert kinds(loggers=[ProgressBarLogger()]) == [ProgressBarLogger]
    assert kinds(progress_bar=False, log_to_console=True, loggers=ConsoleLogger()) == [ConsoleLogger]


def test_console_lines(capsys) -> None:
    trainer = trainer_of(log_to_console=True, console_stream="stdout", console_log_interval="2ba")
    trainer.fit()
    trainer.close()
    output = capsys.readouterr()
    assert [line for line in output.out.splitlines() if line.startswith("[epoch")][:3] == [
        f"[epoch=1][batch={batch}/4]:"
        for batch in (1, 2, 4)  # the first one, and every second
    ]
    assert not output.err


def test_a_progress_bar_in_a_file(tmp_path) -> None:
    path = tmp_path / "progress"
    model = Regression()
    with path.open("w") as stream:
        Trainer(
            model=model,
            train_dataloader=regression_data(),
            max_duration="2ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            console_stream=stream,
        ).fit()
    assert len(path.read_text().splitlines()) >= 2


def test_traces_of_algorithms() -> None:
    class Traced(Received):
        def __init__(self):
            super().__init__()
            self.traces = {}

        def log_traces(self, traces):
            self.traces.update(traces)

    log = Traced()
    trainer_of(classifier(), labeled_data(), algorithms=LabelSmoothing(0.1), log_traces=True, loggers=log).fit()
    assert log.traces["algorithm_traces/LabelSmoothing/before_loss"] == 1


def test_hyperparameters_of_the_run_and_of_the_arguments() -> None:
    log = Received()
    trainer_of(loggers=log, seed=5)
    assert log.hyperparameters == {
        "composer_version": composer.__version__,
        "num_nodes": 1,
        "num_cpus_per_node": cpus_of_node(),
        "rank_zero_seed": 5,
    }
    log = Received()
    trainer_of(
        classifier(),
        labeled_data(),
        loggers=log,
        algorithms=[LabelSmoothing(0.25)],
        auto_log_hparams=True,
        lr=0.5,
        max_duration="3ep",
        eval_dataloader=Evaluator(label="test", dataloader=labeled_data(1)),
    )
    found = log.hyperparameters
    assert found["max_duration"] == "3ep"
    assert found["algorithms"] == [{"class": "LabelSmoothing", "smoothing": 0.25, "target_key": 1}]
    assert (found["optimizers"]["class"], found["optimizers"]["lr"]) == ("SGD", 0.5)
    assert found["model"]["class"] == "ComposerClassifier"
    assert found["eval_dataloader"]["label"] == "test"
    assert not {"self", "unknown", "device", "load_path"} & set(found)


def test_descriptions_are_plain() -> None:
    found = describe({"a": None, "b": [1, ("x", None)], "c": {"d": nn.Linear(2, 3)}, "e": 1.5, "f": len})
    assert found["b"] == [1, ["x", None]]
    assert found["c"]["d"]["class"] == "Linear"
    assert found["c"]["d"]["in_features"] == 2
    assert found["f"] == "len"
    assert "a" not in found


def test_python_log_level() -> None:
    logger, root = logging.getLogger("composer"), logging.getLogger()
    level, handlers = logger.level, root.handlers[:]
    try:
        trainer_of(python_log_level="debug")
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(level)
        root.handlers[:] = handlers


# ---------------------------------------------------------------------------------------------------- events by hand


def test_no_train_data_is_needed_to_evaluate_and_predict() -> None:
    recorder = Recorder()
    trainer = Trainer(model=Regression(), callbacks=recorder, progress_bar=False)
    trainer.eval(regression_data(1))
    assert len(trainer.predict(regression_data(2))) == 2
    assert Event.EVAL_STANDALONE_END in recorder.events


def test_fit_accepts_everything_it_needs() -> None:
    model = Regression()
    trainer = Trainer(model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), progress_bar=False)
    trainer.fit(train_dataloader=regression_data(), duration="3ba")
    assert trainer.state.timestamp.batch == 3
