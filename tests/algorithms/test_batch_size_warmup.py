"""BatchSizeWarmup: schedules, the noise scale, learning rates; ``test_joined_batches`` has the loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback
from composer.algorithms import BatchSizeWarmup, grow_batches
from composer.callbacks import GradientNoiseScale, LRMonitor
from composer.core.time import Time, TimeUnit
from composer.datasets import Mixture
from composer.optim import LinearScheduler
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, weights
from tests.common import At, Received, regression_data, trainer_of
from tests.common import weights as weights_of_trainer


def _by_hand(batches):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in grow_batches(batches, lambda step: 1 if step < 2 else 2):
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)


CASE = Case(
    make=lambda: BatchSizeWarmup({"2ba": 2}),
    by_hand=_by_hand,
    neutral=lambda: BatchSizeWarmup({"0ba": 1}),
    batches=lambda: make_batches(6),  # in four steps
)


# ------------------------------------------------------------------------------------------------------ the function


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(0, 20))
def test_growing_keeps_all_rows_in_order(multiples, number) -> None:
    batches = [torch.tensor([2 * i, 2 * i + 1]) for i in range(number)]
    grown = list(grow_batches(iter(batches), lambda step: multiples[step] if step < len(multiples) else 3))
    assert [row for batch in grown for row in batch.tolist()] == list(range(2 * number))
    for step, batch in enumerate(grown[:-1]):
        assert len(batch) == 2 * (multiples[step] if step < len(multiples) else 3)


# ------------------------------------------------------------------------------------------------------ the schedule


def multiples(data: Any = None, algorithm: Any = None, **arguments: Any) -> list[int]:
    """The multiple in each step of a run."""
    seen = At("batch_start", lambda state: state.train_phase.batches_per_step)
    trainer = trainer_of(
        data=regression_data(12) if data is None else data, algorithms=algorithm, callbacks=seen, **arguments
    )
    trainer.fit()
    trainer.close()
    return seen.found


@pytest.mark.parametrize(
    ("milestones", "duration", "expected"),
    [
        ({"2ba": 2, "4ba": 4}, "6ba", [1, 1, 2, 2, 4, 4]),
        ({"4ba": 4, "2ba": 2}, "6ba", [1, 1, 2, 2, 4, 4]),  # in any order
        ({"0ba": 3}, "1ep", [3, 3, 3, 3]),
        ({Time(6, "sp"): 2}, "1ep", [1, 1, 1, 2, 2, 2, 2, 2]),
        ({"1ep": 6}, "2ep", [1] * 12 + [6, 6]),
        ({"0.25dur": 2, "0.5dur": 6}, "1ep", [1, 1, 1, 2, 2, 6]),  # of batches of the loader
        ({"0.5dur": 2}, "4ba", [1, 1, 2, 2]),
        ({"0.5dur": 3}, "24sp", [1, 1, 1, 1, 1, 1, 3, 3]),
    ],
)
def test_milestones(milestones, duration, expected) -> None:
    assert multiples(algorithm=BatchSizeWarmup(milestones), max_duration=duration) == expected


def test_ramp() -> None:
    assert multiples(algorithm=BatchSizeWarmup(end=4, duration="6ba"), max_duration="8ba") == [1, 1, 2, 2, 3, 3, 4, 4]
    # Half of 12 batches of the loader: after 0, 1, 3, 5, 8 and 11 of them.
    ramp = BatchSizeWarmup(start=1, end=3, duration="0.5dur")
    assert multiples(algorithm=ramp, max_duration="1ep") == [1, 1, 1, 2, 2, 3, 3]


@given(start=st.integers(1, 8), extra=st.integers(0, 8), steps=st.integers(1, 20))
def test_a_ramp_grows_in_equal_steps_from_start_to_end(start, extra, steps) -> None:
    ramp = BatchSizeWarmup(start=start, end=start + extra, duration=f"{steps}ba")
    state = loop.start(make_model(), max_duration="100ba").state
    found = []
    for batch in range(steps + 2):
        state.timestamp = state.timestamp.copy(batch=batch)
        found.append(ramp.multiple_at(state))
    assert found[0] == start
    assert found[-1] == found[-2] == start + extra
    assert found == sorted(found)
    assert all(abs(k - (start + extra * min(step / steps, 1))) < 1 for step, k in enumerate(found))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "requires one of milestones, duration and noise_factor; got none of them"),
        ({"milestones": {"1ba": 2}, "duration": "1ba", "end": 2}, "got milestones and duration"),
        ({"milestones": {}}, "milestones must map times to multiples"),
        ({"milestones": {"1ba": 0}}, r"milestones\['1ba'\] must be greater than 0, but got 0"),
        (
            {"milestones": {"10sec": 2}},
            "milestones must be in batches, samples, tokens, epochs or fractions of the run",
        ),
        ({"milestones": {"soon": 2}}, "milestones='soon' is not valid"),
        ({"milestones": {"1ba": 2}, "end": 4}, "end belongs to duration and noise_factor"),
        ({"duration": "1ba"}, "pass the largest multiple"),
        ({"duration": "0ba", "end": 2}, "duration must be"),
        ({"duration": "4ba", "start": 3, "end": 2}, "end must not be less than start"),
        ({"noise_factor": 0.0, "end": 2}, "noise_factor must be"),
        ({"noise_factor": 1.0, "end": 2, "interval": "1ep"}, "interval must be in batches, such as"),
        ({"milestones": {"1ba": 2}, "lr_scaling": "root"}, "lr_scaling"),
        ({"milestones": {"-1ba": 2}}, "'-1ba' is not a time of the run"),
        ({"milestones": {"1.5dur": 2}}, "'1.5dur' is not a time of the run"),
        ({"milestones": {"1ba": 4, "2ep": 2, "9ba": 2}}, "must not decrease, but map '1ba' to 4 and '9ba' to 2"),
        ({"milestones": {"3ba": 2, "3ba ": 4}}, "milestones has '3ba' twice, .* '3ba ', with the multiples 2 and 4"),
        ({"milestones": {"1ba": 2}, "start": 2}, "start belongs to duration .* add '0ba'"),
        ({"milestones": {"1ba": 2}, "interval": "5ba"}, "interval belongs to noise_factor, but with milestones"),
        ({"duration": "1ba", "end": 2, "interval": "5ba"}, "interval belongs to noise_factor, but with duration"),
    ],
)
def test_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        BatchSizeWarmup(**arguments)


@pytest.mark.parametrize("multiple", [1.5, True, "2"])
def test_a_multiple_must_be_whole(multiple) -> None:
    with pytest.raises(TypeError, match=rf"milestones\['1ba'\] must be an integer, but got {multiple!r}"):
        BatchSizeWarmup({"1ba": multiple})
    assert BatchSizeWarmup({"1ba": 2.0}).milestones == {Time(1, TimeUnit.BATCH): 2}


def test_a_fraction_of_an_unknown_run_is_refused() -> None:
    growth = BatchSizeWarmup({"0.5dur": 2})
    with pytest.raises(ValueError, match="the number of batches in an epoch is unknown"):
        multiples(iter(regression_data(4)), growth, max_duration="1ep")
    with pytest.raises(ValueError, match="does not say how much is trained"):
        multiples(None, growth, max_duration="10sec")


def test_a_mixture_is_refused() -> None:
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
    mixture = Mixture({"a": (DataLoader(data, 2), 0.5), "b": (DataLoader(data, 2), 0.5)})
    with pytest.raises(ValueError, match="does not work with a Mixture"):
        multiples(mixture, BatchSizeWarmup({"0ba": 2}), max_duration="2ba")


# --------------------------------------------------------------------------------------------------- the noise scale


class Scale(Callback):
    """Has a noise scale that follows a function of the number of steps."""

    def __init__(self, function: Any) -> None:
        self.function, self.noise_scale = function, None

    def batch_end(self, state, logger):
        self.noise_scale = torch.tensor(self.function(state.timestamp.batch.value))

    def state_dict(self):
        return {"noise_scale": self.noise_scale}

    def load_state_dict(self, state):
        self.noise_scale = state["noise_scale"]


def noisy_multiples(function: Any, *, batches: int = 60, duration: str = "16ba", **arguments: Any) -> list[int]:
    seen = At("batch_start", lambda state: state.train_phase.batches_per_step)
    growth = BatchSizeWarmup(noise_factor=arguments.pop("factor", 1.0), end=8, interval="4ba", **arguments)
    trainer = trainer_of(
        data=regression_data(batches), algorithms=growth, callbacks=[Scale(function), seen], max_duration=duration
    )
    trainer.fit()
    return seen.found


def test_doubles_while_the_noise_scale_exceeds_the_batch() -> None:
    # Batches of 2: 7 exceeds 2 and 4, but not 8.
    assert noisy_multiples(lambda step: 7.0) == [1] * 4 + [2] * 4 + [4] * 8
    assert noisy_multiples(lambda step: 7.0, factor=2.0) == [1] * 4 + [2] * 12
    assert noisy_multiples(lambda step: 1e9, start=3) == [3] * 4 + [6] * 4 + [8] * 8  # at most the end


@pytest.mark.parametrize("value", [-5.0, math.nan, 0.0])
def test_meaningless_estimates_do_not_grow(value) -> None:
    assert noisy_multiples(lambda step: value) == [1] * 16


def test_a_short_last_batch_of_an_epoch_does_not_grow() -> None:
    data = [*regression_data(3, batch_size=8), *regression_data(1, batch_size=1)]
    seen = At("batch_start", lambda state: state.train_phase.batches_per_step)
    growth = BatchSizeWarmup(noise_factor=1.0, end=8, interval="4ba")
    trainer_of(data=data, algorithms=growth, callbacks=[Scale(lambda step: 4.0), seen], max_duration="2ep").fit()
    assert seen.found == [1] * 8


def test_nothing_measures_the_noise_scale() -> None:
    with pytest.raises(ValueError, match=r"Pass callbacks=GradientNoiseScale\(\) to the Trainer"):
        multiples(None, BatchSizeWarmup(noise_factor=1.0, end=4), max_duration="2ba")


def test_grows_by_the_measured_noise_scale() -> None:
    """A linear function with noise, at a rate that keeps the gradient: the scale is about 25, batches are 8 and 16."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8192, 4, generator=generator)
    y = 0.5 * x.sum(1, keepdim=True) + 2 * torch.randn(8192, 1, generator=generator)
    seen = At("batch_start", lambda state: state.train_phase.batches_per_step)
    scale = GradientNoiseScale("1ba", decay=0.99)
    trainer = trainer_of(
        data=DataLoader(TensorDataset(x, y), 8),
        lr=1e-6,
        algorithms=BatchSizeWarmup(noise_factor=1.0, end=2, interval="100ba"),
        callbacks=[scale, seen],
        device_train_microbatch_size=2,
        max_duration="300ba",
    )
    trainer.fit()
    assert seen.found[:100] == [1] * 100
    assert seen.found[-1] == 2
    assert 8 < scale.noise_scale.item() < 100


def test_resumes_the_decisions(tmp_path) -> None:
    found = {}
    for name, more in {
        "straight": {"save_folder": str(tmp_path), "save_interval": "1ba"},
        **{f"from {batch}": {"load_path": f"{tmp_path}/ep0-ba{batch}-rank0.pt"} for batch in (3, 4, 5, 9)},
    }.items():
        seen = At("batch_start", lambda state: (state.timestamp.batch.value, state.train_phase.batches_per_step))
        trainer = trainer_of(
            data=regression_data(60),
            algorithms=BatchSizeWarmup(noise_factor=1.0, end=8, interval="4ba"),
            callbacks=[Scale(lambda step: 7.0), seen],
            max_duration="12ba",
            run_name="run",
            **more,
        )
        trainer.fit()
        found[name] = dict(seen.found), weights_of_trainer(trainer)
        trainer.close()
    multiples, expected = found.pop("straight")
    for name, (some, resumed) in found.items():
        assert some == {batch: k for batch, k in multiples.items() if batch in some}, name
        assert torch.equal(resumed, expected), name


# ------------------------------------------------------------------------------------------------- the learning rates


def rates(algorithm: BatchSizeWarmup, *, tensor: bool = False, **arguments: Any) -> tuple[list[float], Any]:
    """The learning rate of each step as it is logged, and the trainer."""
    from tests.common import Regression

    model, log = Regression(), Received()
    rate = torch.tensor(0.1) if tensor else 0.1
    trainer = trainer_of(
        model,
        regression_data(12),
        optimizers=torch.optim.Adam(model.parameters(), lr=rate),
        algorithms=algorithm,
        callbacks=LRMonitor(),
        loggers=log,
        **arguments,
    )
    trainer.fit()
    return [value for _, value in log.series("lr-Adam/group0")], trainer


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize(("scaling", "factor"), [("sqrt", 2.0), ("linear", 4.0), (None, 1.0)])
def test_scales_the_learning_rate(scaling, factor, tensor) -> None:
    growth = BatchSizeWarmup({"2ba": 4}, lr_scaling=scaling)
    found, trainer = rates(growth, tensor=tensor, max_duration="4ba")
    assert found == pytest.approx([0.1, 0.1, 0.1 * factor, 0.1 * factor])
    before = float(torch.tensor(0.1)) if tensor else 0.1
    assert float(trainer.state.optimizers[0].param_groups[0]["lr"]) == before  # exactly


@pytest.mark.parametrize("tensor", [False, True])
def test_scales_what_a_schedule_sets(tensor) -> None:
    growth = BatchSizeWarmup({"2ba": 4}, lr_scaling="sqrt")
    found, _ = rates(growth, tensor=tensor, max_duration="4ba", schedulers=LinearScheduler(1.0, 0.0))
    assert found == pytest.approx([0.1, 0.075, 0.1, 0.05])


def test_a_schedule_that_sets_the_scaled_value_by_chance() -> None:
    growth = BatchSizeWarmup({"0ba": 4}, lr_scaling="sqrt")
    found, _ = rates(growth, max_duration="3ba", schedulers=lambda state, ssr=1.0: 2.0**state.timestamp.batch.value)
    assert found == pytest.approx([0.2, 0.4, 0.8])


def test_an_exception_in_a_step_does_not_leave_rates_scaled(tmp_path) -> None:
    class Fail(Callback):
        failed = False

        def after_backward(self, state, logger):
            if state.timestamp.batch == 1 and not self.failed:
                Fail.failed = True
                raise OSError("no")

    growth, fail = BatchSizeWarmup({"0ba": 4}, lr_scaling="linear"), Fail()
    trainer = trainer_of(data=regression_data(12), algorithms=growth, callbacks=fail, max_duration="3ba")
    with pytest.raises(OSError, match="no"):
        trainer.fit()
    saved = trainer.save_checkpoint(str(tmp_path / "failed.pt"))
    trainer.fit()
    trainer.close()
    resumed = trainer_of(
        data=regression_data(12),
        algorithms=BatchSizeWarmup({"0ba": 4}, lr_scaling="linear"),
        callbacks=fail,
        max_duration="3ba",
        load_path=saved,
    )
    resumed.fit()
    for one in (trainer, resumed):
        assert one.state.optimizers[0].param_groups[0]["lr"] == 0.1
    assert torch.equal(weights_of_trainer(resumed), weights_of_trainer(trainer))


def test_logs_the_multiple() -> None:
    log = Received()
    growth = BatchSizeWarmup({"2ba": 4}, lr_scaling="sqrt")
    trainer_of(data=regression_data(12), algorithms=growth, loggers=log, max_duration="4ba").fit()
    assert [value for _, value in log.series("batch_size_warmup/multiple")] == [1, 1, 4, 4]
    assert [value for _, value in log.series("batch_size_warmup/lr_factor")] == [1.0, 1.0, 2.0, 2.0]
