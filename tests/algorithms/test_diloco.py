from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer import State, dist
from composer.algorithms import EMA, DiLoCo, LocalSGD, apply_outer_step
from composer.core import Engine
from tests import loop
from tests.algorithms.cases import Case, make_model, weights
from tests.algorithms.low_communication import (
    Normed,
    Seen,
    differing,
    fitted,
    samples,
    trainer_with,
    weights_now,
)
from tests.common import regression_data
from tests.ranks import Ranks


def _by_hand(batches: list[Any]) -> dict[str, torch.Tensor]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parameters = list(model.parameters())
    synchronized = [one.detach().clone() for one in parameters]
    momenta = [torch.zeros_like(one) for one in parameters]
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        if step in (2, 3):  # after every third, and after the last
            apply_outer_step(parameters, synchronized, momenta, 0.5, 0.8)
    return weights(model)


CASE = Case(
    make=lambda: DiLoCo(3, outer_lr=0.5, outer_momentum=0.8),
    by_hand=_by_hand,
    neutral=lambda: DiLoCo(3, outer_lr=1.0, outer_momentum=0.0),
)


@given(
    lr=st.floats(0.1, 2),
    momentum=st.floats(0.01, 1),
    rounds=st.lists(st.lists(st.floats(-4, 4), min_size=3, max_size=3), min_size=1, max_size=4),
)
def test_outer_step_is_that_of_torch(lr: float, momentum: float, rounds: list[list[float]]) -> None:
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    synchronized, buffer = weight.clone(), torch.zeros_like(weight)
    expected = nn.Parameter(weight.clone())
    optimizer = torch.optim.SGD([expected], lr=lr, momentum=momentum, nesterov=True)
    for change in rounds:
        weight += torch.tensor(change, dtype=torch.float64)
        expected.grad = expected.detach() - weight
        optimizer.step()
        apply_outer_step([weight], [synchronized], [buffer], lr, momentum)
        torch.testing.assert_close(weight, expected.detach())
        assert torch.equal(weight, synchronized)


def two_replicas_by_hand(compression: str | None = None) -> list[Any]:
    """Train this rank by hand on its own batches: what the trainer has to do."""
    rank = dist.get_global_rank()
    torch.manual_seed(20)
    model = Normed()
    model.dropout.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    parameters = list(model.parameters())
    synchronized, momenta = [one.detach().clone() for one in parameters], [torch.zeros_like(one) for one in parameters]
    batches = regression_data(6, 4, seed=rank)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        if step % 3 == 2:
            apply_outer_step(parameters, synchronized, momenta, 0.7, 0.9, compression)
    by_hand = [one.detach().clone() for one in parameters]

    model = Normed()
    model.dropout.p = 0.0
    torch.manual_seed(20)
    model.load_state_dict(Normed().state_dict())
    seen = Seen()
    algorithm = DiLoCo(3, compression=compression)
    fitted(trainer_with(algorithm, model=model, data=batches, max_duration="1ep", callbacks=seen))
    return [by_hand, [seen.after_batch[-1][name] for name, _ in Normed().named_parameters()], seen.after_batch]


@pytest.mark.parametrize("compression", [None, "bf16", "int8", "int4"])
def test_two_replicas_train_as_by_hand(two_ranks: Ranks, compression: str | None) -> None:
    results = two_ranks.run(two_replicas_by_hand, compression)
    for by_hand, trained, _ in results:
        assert all(map(torch.equal, by_hand, trained))
    (_, _, first), (_, _, second) = results
    differ = [bool(list(differing(one, other))) for one, other in zip(first, second, strict=True)]
    assert differ == [True, True, False, True, True, False]
    # The means of the running statistics; the counts of batches are equal anyway.
    assert first[2]["norm.num_batches_tracked"] == 3
    assert not torch.equal(first[1]["norm.running_mean"], second[1]["norm.running_mean"])


def test_statistics_are_averaged(two_ranks: Ranks) -> None:
    (before, after), (other_before, _) = two_ranks.run(_statistics_around_a_round)
    torch.testing.assert_close(after, (before + other_before) / 2)
    assert not torch.equal(before, after)


def _statistics_around_a_round() -> list[torch.Tensor]:
    model, found = Normed(), list[torch.Tensor]()

    class Before(LocalSGD):
        def batch_end(self, state: Any, logger: Any) -> None:
            found.append(state.model.norm.running_var.clone())
            super().batch_end(state, logger)
            found.append(state.model.norm.running_var.clone())

    fitted(trainer_with(Before(4), model=model, max_duration="4ba"))
    return found[-2:]


class Masked(Normed):
    """A model with a constant buffer that is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))


def constant_buffers(overlap: int) -> list[Any]:
    model = Masked()
    fitted(trainer_with(DiLoCo(3, overlap=overlap), model=model, max_duration="5ba"))
    return [model.mask, model.norm.running_mean]


@pytest.mark.parametrize("overlap", [0, 1])
def test_constant_buffers_are_left_alone(two_ranks: Ranks, overlap: int) -> None:
    (mask, mean), (other, other_mean) = two_ranks.run(constant_buffers, overlap)
    assert mask.tolist() == other.tolist() == [0.0, -torch.inf]
    assert torch.equal(mean, other_mean)


def in_groups() -> list[Any]:
    seen = Seen()
    fitted(trainer_with(DiLoCo(2, replica_size=2), callbacks=seen, max_duration="4ba"))
    return seen.after_batch


def test_ranks_of_a_replica_average_their_gradients(four_ranks: Ranks) -> None:
    first, second, third, fourth = four_ranks.run(in_groups)
    for step, one in enumerate(first):
        # Statistics of batch normalization are broadcast before the next batch, as with DDP.
        parameters = {"first.weight", "second.bias", "norm.weight"}
        assert not parameters & set(differing(one, second[step]))
        assert not parameters & set(differing(third[step], fourth[step]))
        assert ("first.weight" in differing(one, third[step])) == (step % 2 == 0)
    for other in (second, third, fourth):
        assert not list(differing(first[-1], other[-1]))


def as_one_replica(replica_size: int | None) -> list[Any]:
    seen = Seen()
    algorithm = None if replica_size is None else LocalSGD(3, replica_size=replica_size)
    fitted(trainer_with(algorithm, callbacks=seen, max_duration="5ba"))
    return [seen.after_batch, seen.losses]


def test_a_single_replica_is_data_parallelism_bit_for_bit(two_ranks: Ranks) -> None:
    plain, grouped = two_ranks.run(as_one_replica, None), two_ranks.run(as_one_replica, 2)
    for (expected, losses), (found, other_losses) in zip(plain, grouped, strict=True):
        assert losses == other_losses
        # Statistics of the second rank are overwritten at each synchronization, rather than before the next batch.
        names = [name for name in expected[0] if "running" not in name]
        assert all(torch.equal(a[name], b[name]) for a, b in zip(expected, found, strict=True) for name in names)


def evaluating(dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(20)
    seen, model = Seen(), Normed(dtype)
    data = torch.utils.data.DataLoader(samples(dtype=dtype), 3, shuffle=True)
    trainer = trainer_with(
        DiLoCo(3), model=model, data=data, max_duration="6ba", eval_dataloader=data, eval_interval="1ba", callbacks=seen
    )
    trainer.fit()
    predicted = trainer.predict(data)
    after = weights_now(trainer.state)
    trainer.close()
    return [seen.after_batch, seen.evaluated, len(predicted), after]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluates_the_last_synchronized_weights(two_ranks: Ranks, dtype: torch.dtype) -> None:
    (first, evaluated, *_), (second, others, _, end) = two_ranks.run(evaluating, dtype)
    count = len(evaluated) // 6
    for step in range(6):
        for batch in range(step * count, (step + 1) * count):
            assert not list(differing(evaluated[batch], others[batch]))
            if step >= 2:
                assert not list(differing(evaluated[batch], first[2 if step < 5 else 5]))
    assert set(differing(first[3], second[3])) >= {"first.weight", "norm.running_mean"}
    # An evaluation does not change what follows.
    assert not list(differing(first[5], second[5]))
    assert not list(differing(first[5], end))


def not_evaluating() -> Any:
    seen = Seen()
    fitted(trainer_with(DiLoCo(3), max_duration="6ba", callbacks=seen))
    return seen.after_batch


def test_training_does_not_depend_on_evaluation(two_ranks: Ranks) -> None:
    evaluated = two_ranks.run(evaluating, torch.float32)
    for (after_batch, *_), expected in zip(evaluated, two_ranks.run(not_evaluating), strict=True):
        for one, other in zip(after_batch, expected, strict=True):
            assert not list(differing(one, other))


def with_uneven_data() -> list[Any]:
    rank = dist.get_global_rank()
    seen = Seen()
    trainer = trainer_with(
        DiLoCo(4),
        data=regression_data(2 if rank == 1 else 7, 4, seed=rank),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.5),
        max_duration="1ep",
        callbacks=seen,
    )
    return [fitted(trainer), seen.after_batch, int(trainer.state.timestamp.batch)]


def test_replica_without_data_does_not_step(two_ranks: Ranks) -> None:
    (first, own, steps), (second, other, others_steps) = two_ranks.run(with_uneven_data)
    assert steps == others_steps == 7
    assert not list(differing(first, second))
    parameters = ["first.weight", "norm.weight", "second.bias"]
    for before, after in ((1, 2), (4, 5), (5, 6)):
        assert not set(parameters) & set(differing(other[before], other[after]))
        assert set(parameters) <= set(differing(own[before], own[after]))
    # The synchronized weights of the fourth step are those of both, and of the last, at the end of the epoch.
    assert not list(differing(own[3], other[3]))


def stopping_early() -> list[Any]:
    class Stop(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch == 4:
                state.stop_training(everywhere=True, reason="enough")

    seen = Stop()
    trainer = trainer_with(DiLoCo(3), callbacks=seen)
    trainer.fit()
    stopped = weights_now(trainer.state)
    trainer.fit(duration="4ba")
    end = weights_now(trainer.state)
    trainer.close()
    return [seen.after_batch, stopped, end]


def test_the_end_of_training_ends_the_round(two_ranks: Ranks) -> None:
    (first, stopped, end), (second, other_stopped, other_end) = two_ranks.run(stopping_early)
    assert list(differing(first[3], second[3]))
    assert not list(differing(stopped, other_stopped))
    assert list(differing(stopped, end))
    assert not list(differing(end, other_end))


def with_ema() -> list[Any]:
    found = []
    trainer = trainer_with(
        [EMA("6ba", update_interval="3ba", ema_start="3ba"), DiLoCo(3)],
        max_duration="6ba",
        eval_dataloader=torch.utils.data.DataLoader(samples(), 3),
        eval_interval="1ba",
        callbacks=(seen := Seen()),
    )
    trainer.fit()
    average = trainer.state.algorithms[0].get_ema_model(copy.deepcopy(trainer.state.model))
    found = [seen.after_batch, seen.evaluated, {name: one.clone() for name, one in average.state_dict().items()}]
    trainer.close()
    return found


def test_ema_averages_synchronized_weights_and_is_evaluated(two_ranks: Ranks) -> None:
    (first, evaluated, average), (second, others, other_average) = two_ranks.run(with_ema)
    assert not list(differing(average, other_average))
    torch.testing.assert_close(
        average["first.weight"], 0.5**0.5 * first[2]["first.weight"] + (1 - 0.5**0.5) * first[5]["first.weight"]
    )
    count = len(evaluated) // 6
    assert not list(differing(evaluated[3 * count], first[2]))
    assert not list(differing(evaluated[-1], average))
    assert all(not list(differing(*pair)) for pair in zip(evaluated, others, strict=True))
    assert list(differing(first[4], second[4]))


def rejected(*algorithms: Any, **more: Any) -> str:
    with pytest.raises(ValueError) as caught:
        trainer_with(list(algorithms), **more).fit()
    return str(caught.value)


def test_rejects_what_it_cannot_do(two_ranks: Ranks) -> None:
    def message(*algorithms: Any, **more: Any) -> str:
        first, second = two_ranks.run(_rejected, algorithms, more)
        assert first == second
        return first

    assert "does not divide the world size, 2" in message(DiLoCo(replica_size=3))
    assert "update_interval=1ba" in message(DiLoCo(3), EMA("10ba"))
    assert "ema_start='3ba'" in message(DiLoCo(3), EMA("10ba", update_interval="3ba"))
    assert "DiLoCo requires unsharded parameters" in message(DiLoCo(), parallelism_config={"fsdp": {}})
    assert "LBFGS decides by the loss how often" in message(DiLoCo(), optimizer=_lbfgs)


def _lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


def _rejected(algorithms: Any, more: Any) -> str:
    return rejected(*algorithms, **more)


@pytest.mark.filterwarnings("ignore:DiLoCo conflicts with LocalSGD")
def test_one_algorithm_decides(two_ranks: Ranks) -> None:
    first, _ = two_ranks.run(_both)
    assert "both decide when replicas synchronize" in first


def _both() -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rejected(DiLoCo(), LocalSGD())


def test_arguments() -> None:
    assert DiLoCo("1ep").sync_every == DiLoCo("1ep", 0.7, 0.9, None, 1).sync_every
    for name, value in (
        ("sync_every", 0),
        ("sync_every", "3tok"),
        ("outer_lr", 0.0),
        ("outer_lr", float("inf")),
        ("outer_momentum", 1.5),
        ("compression", "int2"),
        ("replica_size", 0),
    ):
        with pytest.raises(ValueError, match=name):
            DiLoCo(**{name: value})
    with pytest.raises(ValueError, match="single rank"):
        loop.start(make_model(), [DiLoCo(replica_size=2)])


def test_layers_cannot_be_replaced_within_a_round() -> None:
    engine: Engine = loop.start(make_model(), [DiLoCo(3)])
    state: State = engine.state
    state.timestamp = state.timestamp.to_next_batch(samples=1)
    engine.run_event("fit_start")
    engine.run_event("batch_end")
    state.model.net[3] = nn.Conv2d(16, 16, 5, bias=False)
    state.timestamp = state.timestamp.to_next_batch(samples=1).to_next_batch(samples=1)
    with pytest.raises(ValueError, match=r"'net.3.weight'.*Replace them before training starts"):
        engine.run_event("batch_end")


def test_frozen_parameters_do_not_move() -> None:
    model = make_model()
    for parameter in model.net[0].parameters():
        parameter.requires_grad_(False)
    before = weights(model)
    engine = loop.start(model, [DiLoCo(2)], torch.optim.SGD(model.net[8].parameters(), lr=0.1))
    from tests.algorithms.cases import make_batches

    loop.fit(engine, make_batches())
    after = weights(model)
    assert {"net.8.weight"} <= set(differing(before, after))
    assert not {"net.0.weight", "net.0.bias"} & set(differing(before, after))
    assert not [name for name in engine.state.algorithms[0].state_dict()["momenta"] if name.startswith("net.0.")]


def test_an_instance_starts_anew_in_each_trainer() -> None:
    method = DiLoCo(3, outer_lr=0.5, outer_momentum=0.8)
    first, second = (fitted(trainer_with(method, max_duration="5ba")) for _ in range(2))
    assert not list(differing(first, second))
    trainer = trainer_with(method, model=Normed(torch.float64), data=[], max_duration="1ba")
    assert not method.state_dict()["momenta"]
    trainer.close()
