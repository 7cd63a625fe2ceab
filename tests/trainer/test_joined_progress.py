"""What counts progress while steps join batches of the loader: schedules, intervals, displays, indices, other loops."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer.algorithms import BatchSizeWarmup, GyroDropout, SeqLengthWarmup
from composer.callbacks import RuntimeEstimator
from composer.core.sample_indices import sample_indices
from composer.loggers import ConsoleLogger
from composer.optim import CosineAnnealingScheduler, LinearWithWarmupScheduler, MultiStepScheduler
from tests.common import At, Received, Regression, classifier, labeled_data, regression_data, trainer_of, weights

L = 12
GROWTH = {"2ba": 2, "4ba": 3}
LOADED = [0, 1, 2, 4, 6, 9]  # of an epoch, before each of its steps
MORE = [0, 3, 6, 9]  # in later epochs


def run(duration: str, at: str, function: Any, **arguments: Any) -> list[Any]:
    seen = At(at, function)
    callbacks = [*arguments.pop("callbacks", []), seen]
    trainer = trainer_of(
        data=regression_data(L),
        algorithms=BatchSizeWarmup(GROWTH),
        callbacks=callbacks,
        max_duration=duration,
        **arguments,
    )
    trainer.fit()
    trainer.close()
    return seen.found


def lr(state) -> float:
    return state.optimizers[0].param_groups[0]["lr"]


# -------------------------------------------------------------------------------------------------------- schedules


def test_schedules_in_epochs_follow_the_data() -> None:
    found = run("2ep", "batch_start", lr, schedulers=CosineAnnealingScheduler())
    fractions = [loaded / (2 * L) for loaded in [*LOADED, *(L + loaded for loaded in MORE)]]
    assert found == pytest.approx([0.05 * (1 + math.cos(math.pi * fraction)) for fraction in fractions])


def test_milestones_in_epochs_and_fractions() -> None:
    found = run("2ep", "batch_start", lr, schedulers=MultiStepScheduler(["0.25dur", "1ep"], gamma=0.1))
    assert found == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 4)


@pytest.mark.parametrize("duration", ["8ba", "36sp"])
def test_schedules_in_steps_and_samples_follow_them(duration) -> None:
    found = run(duration, "batch_start", lr, schedulers=CosineAnnealingScheduler())
    done = range(8) if duration == "8ba" else [2 * loaded for loaded in (*LOADED, L, L + 3)]
    total = 8 if duration == "8ba" else 36
    assert found == pytest.approx([0.05 * (1 + math.cos(math.pi * step / total)) for step in done])


def test_steps_in_a_schedule_over_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'2ba' counts steps, but the number of steps in an epoch is unknown"):
        run("2ep", "batch_start", lr, schedulers=LinearWithWarmupScheduler(t_warmup="2ba"))
    assert len(run("10ba", "batch_start", lr, schedulers=LinearWithWarmupScheduler(t_warmup="2ba"))) == 10


def test_a_custom_schedule_that_converts_epochs_to_steps_is_refused() -> None:
    from composer.optim.time_conversion import convert_time

    def schedule(state, ssr=1.0):
        return 1 - state.timestamp.batch.value / convert_time("2ep", state).value

    with pytest.raises(RuntimeError, match="the number of batches in an epoch is unknown"):
        run("2ep", "batch_start", lr, schedulers=schedule)


def test_a_method_that_needs_the_number_of_steps_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    from composer.models import ComposerClassifier

    trainer = trainer_of(
        ComposerClassifier(model, num_classes=3),
        labeled_data(L),
        algorithms=[GyroDropout(0.3, 4, 2), BatchSizeWarmup(GROWTH)],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    with pytest.raises(ValueError, match="must know the number of batches"):
        trainer.fit()


# -------------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("0.25dur", [4, 6, 8, 10]),
        ("0.5dur", [6, 10]),
        ("0.1dur", [3, 4, 5, 6, 7, 8, 9, 10]),
        ("5ba", [5, 10]),
        ("6sp", [3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_evaluation_intervals(interval, expected) -> None:
    """24 batches of the loader in two epochs: after steps 1 to 6 there are 1, 2, 4, 6, 9, 12; then 15, 18, 21, 24."""
    found = run(
        "2ep",
        "eval_start",
        lambda state: state.timestamp.batch.value,
        eval_dataloader=regression_data(1),
        eval_interval=interval,
    )
    assert found == expected


def test_a_sequence_length_warmup_follows_the_data() -> None:
    """The length is that of a run of fixed batches at the same sample."""
    from tests.algorithms.text import make_text_model

    batches = [{"input_ids": torch.zeros(2, 16, dtype=torch.long), "labels": torch.zeros(2, 16, dtype=torch.long)}] * L
    by_sample = []
    for growth in ([], [BatchSizeWarmup(GROWTH)]):
        model = make_text_model()
        seen = At("batch_start", lambda state: (state.timestamp.sample.value, state.batch["input_ids"].shape[1]))
        warmup = SeqLengthWarmup(0.75, 4, 16, 4)
        trainer_of(model, batches, algorithms=[warmup, *growth], callbacks=seen).fit()
        by_sample.append(dict(seen.found))
    assert len(by_sample[1]) == 6
    assert by_sample[1].items() <= by_sample[0].items()


# ------------------------------------------------------------------------------------------- displays and estimates


def test_remaining_time_follows_the_data() -> None:
    log = Received()
    estimator = RuntimeEstimator(skip_batches=0, time_unit="seconds")
    progress: list[float] = []
    run(
        "2ep",
        "batch_end",
        lambda state: progress.append(estimator._progress(state)),
        callbacks=[estimator],
        loggers=log,
    )
    assert progress == pytest.approx([loaded / L for loaded in [1, 2, 4, 6, 9, 12, 15, 18, 21, 24]])
    assert log.series("time/remaining_estimate")[-1][1] == pytest.approx(0, abs=1e-6)


def test_the_console_counts_batches_of_the_loader() -> None:
    stream = io.StringIO()
    trainer = trainer_of(
        data=regression_data(L),
        algorithms=BatchSizeWarmup(GROWTH),
        max_duration="1ep",
        loggers=ConsoleLogger(log_interval="1ba", stream=stream),
    )
    trainer.fit()
    trainer.close()
    assert "[epoch=1][batch=9/12]" in stream.getvalue()
    assert "[epoch=1][batch=12/12]" in stream.getvalue()


def test_the_bar_of_an_epoch_is_full_at_its_end() -> None:
    from composer.loggers import ProgressBarLogger

    stream = io.StringIO()
    model = Regression()
    trainer = trainer_of(
        model,
        regression_data(L),
        algorithms=BatchSizeWarmup(GROWTH),
        max_duration="2ep",
        loggers=ProgressBarLogger(stream=stream),
    )
    trainer.fit()
    trainer.close()
    assert stream.getvalue().count("12/12") >= 2


def test_indices_of_all_samples_of_a_step() -> None:
    data = DataLoader(TensorDataset(torch.arange(22.0).unsqueeze(1).expand(22, 4), torch.zeros(22, 1)), 2, shuffle=True)
    seen = At(
        "after_dataloader", lambda state: (sample_indices(state.train_phase).indices, state.batch[0][:, 0].tolist())
    )
    trainer_of(data=data, algorithms=BatchSizeWarmup(GROWTH), callbacks=seen, max_duration="2ep", lr=1e-4).fit()
    assert [len(indices) for indices, _ in seen.found] == [2, 2, 4, 4, 6, 4, 6, 6, 6, 4]
    assert all(indices == numbers for indices, numbers in seen.found)


# ------------------------------------------------------------------------------------------------------ other loops


def test_a_learning_rate_finder_restores_the_progress() -> None:
    ends = []
    for finds in (False, True):
        torch.manual_seed(3)
        trainer = trainer_of(
            Regression(), regression_data(L), algorithms=BatchSizeWarmup(GROWTH), max_duration="8ba", seed=4
        )
        trainer.fit(duration="3ba")
        if finds:
            trainer.find_lr(num_batches=9)
        trainer.fit(duration="5ba")
        ends.append((weights(trainer), trainer.state.timestamp.sample))
    assert ends[0][1] == ends[1][1]
    assert torch.equal(ends[0][0], ends[1][0])


def test_fits_in_the_middle_of_an_epoch_continue() -> None:
    ends = []
    for parts in (["2ep"], ["3ba", "1ba", "6ba"], ["5ba", "1ep", "1ep"]):
        torch.manual_seed(3)
        trainer = trainer_of(
            Regression(), regression_data(L), algorithms=BatchSizeWarmup(GROWTH), max_duration=None, seed=4
        )
        for part in parts:
            trainer.fit(duration=part)
        ends.append((weights(trainer), trainer.state.timestamp.epoch, trainer.state.timestamp.sample))
    assert all(torch.equal(one[0], ends[0][0]) and one[1:] == ends[0][1:] for one in ends[:2])


def test_reset_time_starts_the_epoch_over() -> None:
    seen = At("batch_start", lambda state: len(state.batch[0]))
    trainer = trainer_of(
        data=regression_data(L), algorithms=BatchSizeWarmup(GROWTH), callbacks=seen, max_duration="5ba"
    )
    trainer.fit()
    trainer.fit(duration="1ep", reset_time=True)
    assert seen.found[5:] == [2, 2, 4, 4, 6, 6]


def test_a_dry_run_leaves_the_position() -> None:
    seen = At("batch_start", lambda state: state.batch[0].clone())
    data = regression_data(L)
    trainer = trainer_of(
        classifier(), labeled_data(L), algorithms=BatchSizeWarmup({"0ba": 2}), dry_run=True, max_duration="1ep"
    )
    trainer.fit()
    assert trainer.state.train_phase.extra_batches == 0
    trainer = trainer_of(data=data, algorithms=BatchSizeWarmup({"0ba": 2}), callbacks=seen)
    trainer.fit()
    assert torch.equal(torch.cat(seen.found), torch.cat([x for x, _ in data]))
