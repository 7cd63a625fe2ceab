"""Rounds of local steps whose averages overlap with training, compared with a simulation in one process."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from composer import dist
from composer.algorithms import EMA, DiLoCo, LocalSGD, _background_average
from composer.algorithms._pseudo_gradients import decode, encode
from tests.algorithms.low_communication import Normed, Seen, Weights, differing, fitted, trainer_with, weights_now
from tests.common import regression_data
from tests.ranks import Ranks

BATCH = 4


def make_normed() -> Normed:
    """The weights that all replicas start from."""
    torch.manual_seed(20)
    model = Normed()
    model.dropout.p = 0.0
    return model


def make_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW would amplify rounding errors of the bias before the normalization, whose gradient is zero."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def simulated(
    num_replicas: int,
    num_steps: int,
    sync_every: int,
    overlap: int,
    lr: float,
    momentum: float,
    average: Callable[[Sequence[Tensor]], Tensor] = lambda each: sum(each[1:], each[0]) / len(each),
) -> list[list[Weights]]:
    """Train replicas one after another in this process; return the weights of each after each step."""
    models = [make_normed() for _ in range(num_replicas)]
    optimizers = [make_sgd(model) for model in models]
    data = [regression_data(num_steps, BATCH, seed=rank) for rank in range(num_replicas)]
    parameters = [name for name, _ in models[0].named_parameters()]
    names = [*parameters, "norm.running_mean", "norm.running_var"]
    shared = {name: value.detach().clone() for name, value in models[0].state_dict().items()}
    momenta = {name: torch.zeros_like(shared[name]) for name in parameters}
    seen: list[list[Weights]] = [[] for _ in models]
    pending: Weights | None = None
    since = 0

    def averages() -> Weights:
        differences = [{name: shared[name] - model.state_dict()[name] for name in names} for model in models]
        flat = average([torch.cat([each[name].flatten() for name in parameters]) for each in differences])
        sizes = [shared[name].numel() for name in parameters]
        found = {name: part.view_as(shared[name]) for name, part in zip(parameters, flat.split(sizes), strict=True)}
        for name in names[len(parameters) :]:
            found[name] = sum(each[name] for each in differences[1:]) + differences[0][name]
            found[name] /= num_replicas
        return found

    def take_outer_step(differences: Weights, kept: float) -> None:
        for name, difference in differences.items():
            if name in momenta:
                momenta[name] = momentum * momenta[name] + difference
                shared[name] -= lr * (difference + momentum * momenta[name])
            else:
                shared[name] -= difference
            for model in models:
                weight = model.state_dict()[name]
                weight.copy_(torch.lerp(weight, shared[name], 1 - kept))

    for step in range(num_steps):
        for model, optimizer, batches in zip(models, optimizers, data, strict=True):
            optimizer.zero_grad()
            model.loss(model(batches[step]), batches[step]).backward()
            optimizer.step()
        since += 1
        is_last = step == num_steps - 1
        if pending is not None and (since == overlap or is_last):
            take_outer_step(pending, 0.5)
            pending = None
        if is_last or ((step + 1) % sync_every == 0 and not overlap):
            take_outer_step(averages(), 0.0)
        elif (step + 1) % sync_every == 0:
            pending, since = averages(), 0
        for model, found in zip(models, seen, strict=True):
            found.append({name: value.clone() for name, value in model.state_dict().items()})
    return seen


def in_int8(each: Sequence[Tensor]) -> Tensor:
    size = -(-each[0].numel() // (256 * len(each))) * 256 * len(each)
    padded = [nn.functional.pad(one, (0, size - one.numel())).unsqueeze(0) for one in each]
    mean = torch.cat([decode(encode(one, "int8"), "int8") for one in padded]).mean(0, keepdim=True)
    return decode(encode(mean, "int8"), "int8").flatten()[: each[0].numel()]


def trained(algorithm: Any, num_steps: int, duration: str | None = None) -> list[Weights]:
    seen = Seen()
    fitted(
        trainer_with(
            algorithm,
            model=make_normed(),
            data=regression_data(num_steps, BATCH, seed=dist.get_global_rank()),
            optimizer=make_sgd,
            max_duration=duration or f"{num_steps}ba",
            callbacks=seen,
        )
    )
    return seen.after_batch


def check(found: list[list[Weights]], expected: list[list[Weights]], tolerance: float | None = None) -> None:
    for own, by_hand in zip(found, expected, strict=True):
        for one, other in zip(own, by_hand, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("overlap", "num_steps"), [(0, 10), (1, 10), (2, 10), (3, 10), (3, 11), (3, 12)])
def test_two_replicas_train_as_simulated(two_ranks: Ranks, overlap: int, num_steps: int) -> None:
    """The last batch is within the window, at its end, and at the end of a round."""
    found = two_ranks.run(trained, DiLoCo(4, 0.7, 0.9, overlap=overlap), num_steps)
    check(found, simulated(2, num_steps, 4, overlap, 0.7, 0.9), 1e-6)
    first, second = found
    differ = [bool(list(differing(*pair))) for pair in zip(first, second, strict=True)]
    synchronized = [num_steps] if overlap else [*range(4, num_steps, 4), num_steps]
    assert differ == [step not in synchronized for step in range(1, num_steps + 1)]


def test_overlap_changes_the_weights(two_ranks: Ranks) -> None:
    without, some, more = (two_ranks.run(trained, DiLoCo(4, overlap=overlap), 12)[0][-1] for overlap in (0, 1, 2))
    assert list(differing(without, some))
    assert list(differing(some, more))


def test_compressed_averages_overlap(two_ranks: Ranks) -> None:
    found = two_ranks.run(trained, DiLoCo(4, 0.7, 0.9, "int8", overlap=2), 10)
    check(found, simulated(2, 10, 4, 2, 0.7, 0.9, in_int8), 1e-6)
    assert list(differing(found[0][-1], two_ranks.run(trained, DiLoCo(4, 0.7, 0.9, overlap=2), 10)[0][-1]))


def test_local_sgd_overlaps(two_ranks: Ranks) -> None:
    check(two_ranks.run(trained, LocalSGD(3, overlap=2), 11), simulated(2, 11, 3, 2, 1.0, 0.0), 1e-6)


def test_four_replicas(four_ranks: Ranks) -> None:
    check(four_ranks.run(trained, DiLoCo(3, 0.7, 0.9, overlap="2ba"), 8), simulated(4, 8, 3, 2, 0.7, 0.9), 1e-5)


@pytest.mark.parametrize("method", [DiLoCo(4, 0.7, 0.9, overlap=2), LocalSGD(4, overlap=2)], ids=["DiLoCo", "LocalSGD"])
def test_a_single_replica(method: Any) -> None:
    lr, momentum = (0.7, 0.9) if isinstance(method, DiLoCo) else (1.0, 0.0)
    check([trained(method, 10)], simulated(1, 10, 4, 2, lr, momentum), 1e-6)


def test_a_run_of_epochs_ends_without_a_window(two_ranks: Ranks) -> None:
    """If training ends with the epoch in which an average starts, it is applied at once: as without overlap."""
    overlapped = two_ranks.run(trained, DiLoCo(8, overlap=2), 8, "1ep")
    plain = two_ranks.run(trained, DiLoCo(8), 8, "1ep")
    for one, other in zip(overlapped, plain, strict=True):
        assert all(not list(differing(*pair)) for pair in zip(one[:-1], other[:-1], strict=True))
    first, second = (two_ranks.run(ended, DiLoCo(8, overlap=overlap)) for overlap in (0, 2))
    for one, other in zip(first, second, strict=True):
        assert not list(differing(one, other))


def ended(algorithm: Any) -> Weights:
    data = regression_data(8, BATCH, seed=dist.get_global_rank())
    return fitted(trainer_with(algorithm, model=make_normed(), data=data, max_duration="1ep"))


def rounds_of_epochs(sync_every: str) -> list[Any]:
    seen = Seen()
    data = regression_data(3, BATCH, seed=dist.get_global_rank())
    algorithm = LocalSGD(sync_every, overlap=5)
    last = fitted(trainer_with(algorithm, model=make_normed(), data=data, max_duration="4ep", callbacks=seen))
    return [seen.after_batch, last]


def test_a_window_longer_than_the_round_ends_with_it(two_ranks: Ranks) -> None:
    """Rounds of one epoch of three batches, and of two epochs."""
    for sync_every in ("1ep", "2ep"):
        (first, last), (second, other_last) = two_ranks.run(rounds_of_epochs, sync_every)
        assert not list(differing(last, other_last))
        assert all(list(differing(*pair)) for pair in zip(first, second, strict=True))


def in_order() -> list[Any]:
    """The events of training and of a slow exchange, which ends only once a step after its start is done."""
    events: list[str] = []
    stepped = threading.Event()

    def slow(tensors: Any, replicas: Any, compression: Any) -> None:
        if not events or events[-1] != "sends":
            events.append("sends")
        assert stepped.wait(60), "no step while it sends"
        average(tensors, replicas, compression)
        events.append("sent")

    class Steps(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            events.append(f"step {int(state.timestamp.batch)}")
            if state.timestamp.batch == 4:
                stepped.set()

    average, seen = _background_average.average_over_replicas, Steps()
    with mock.patch.object(_background_average, "average_over_replicas", slow):
        fitted(trainer_with(DiLoCo(3, overlap=2), model=make_normed(), max_duration="5ba", callbacks=seen))
    return [events, seen.after_batch]


def test_a_slow_exchange_overlaps_with_steps(two_ranks: Ranks) -> None:
    for events, _ in two_ranks.run(in_order):
        without = [event for event in events if event.startswith("step")]
        assert without == [f"step {step}" for step in range(1, 6)]
        assert events.index("step 4") < events.index("sent") < events.index("step 5")


def groups_used() -> list[Any]:
    """What the process groups of collectives in the background are, and how many are left at the end."""
    used: dict[Any, str] = {}

    def watched(tensors: Any, replicas: Any, compression: Any) -> None:
        found = [one for one in (replicas.group, replicas.first_ranks) if one is not None]
        used.update({group: torch.distributed.get_backend(group) for group in found})
        average(tensors, replicas, compression)

    average = _background_average.average_over_replicas
    trainer = trainer_with(DiLoCo(2, replica_size=2, overlap=1), model=make_normed(), max_duration="6ba")
    own, groups = trainer.state.replicas, torch.distributed.distributed_c10d._world.pg_map
    before = len(groups)
    with mock.patch.object(_background_average, "average_over_replicas", watched):
        trainer.fit()
        trainer.fit(duration="3ba")
    shared = {own.group, own.first_ranks, torch.distributed.group.WORLD} & used.keys()
    trainer.close()
    return [len(used), set(used.values()), len(shared), len(groups) - before]


def test_the_exchange_has_groups_of_its_own_that_end_with_training(four_ranks: Ranks) -> None:
    """For each call of fit one of the ranks of the replica, and on its first rank one of the first ranks."""
    assert four_ranks.run(groups_used) == [[size, {"gloo"}, 0, 0] for size in (4, 2, 4, 2)]


def in_groups() -> list[Weights]:
    seen = Seen()
    algorithm = DiLoCo(3, replica_size=2, overlap=2, compression="bf16")
    fitted(trainer_with(algorithm, callbacks=seen, max_duration="8ba"))
    return seen.after_batch


def test_ranks_of_a_replica_apply_the_same_average(four_ranks: Ranks) -> None:
    first, second, third, fourth = four_ranks.run(in_groups)
    parameters = {"first.weight", "second.bias", "norm.weight"}
    for step, one in enumerate(first):
        assert not parameters & set(differing(one, second[step]))
        assert not parameters & set(differing(third[step], fourth[step]))
        assert ("first.weight" in differing(one, third[step])) == (step != 7)
    for other in (second, third, fourth):
        assert not list(differing(first[-1], other[-1]))


def evaluating(dtype: torch.dtype) -> list[Any]:
    seen = Seen()
    trainer = trainer_with(
        DiLoCo(4, overlap=2),
        model=make_normed().to(dtype),
        data=regression_data(10, BATCH, seed=dist.get_global_rank(), dtype=dtype),
        max_duration="10ba",
        eval_dataloader=regression_data(1, 6, dtype=dtype),
        eval_interval="1ba",
        callbacks=seen,
    )
    trainer.fit()
    end = weights_now(trainer.state)
    trainer.close()
    return [seen.after_batch, seen.evaluated, end]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluates_the_last_applied_average(two_ranks: Ranks, dtype: torch.dtype) -> None:
    (first, evaluated, end), (second, others, other_end) = two_ranks.run(evaluating, dtype)
    assert all(not list(differing(*pair)) for pair in zip(evaluated, others, strict=True))
    # New ones after the 6th step, when that of the 4th is applied, and after the last one.
    changes = [bool(list(differing(*pair))) for pair in itertools.pairwise(evaluated)]
    assert changes == [step in (6, 10) for step in range(2, 11)]
    assert not list(differing(evaluated[0], make_normed().to(dtype).state_dict()))
    assert not list(differing(evaluated[-1], end))
    assert not list(differing(end, other_end))
    assert all(list(differing(*pair)) for pair in zip(first[:-1], second[:-1], strict=True))
    # Training does not depend on evaluations.
    if dtype is torch.float32:
        plain = two_ranks.run(trained_with_adam)[0]
        assert all(not list(differing(*pair)) for pair in zip(first, plain, strict=True))


def trained_with_adam() -> list[Weights]:
    seen = Seen()
    data = regression_data(10, BATCH, seed=dist.get_global_rank())
    fitted(trainer_with(DiLoCo(4, overlap=2), model=make_normed(), data=data, max_duration="10ba", callbacks=seen))
    return seen.after_batch


def stopping(step: int) -> list[Any]:
    class Stop(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch == step:
                state.stop_training(everywhere=True, reason="enough")

    seen = Stop()
    trainer = trainer_with(DiLoCo(3, overlap=2), callbacks=seen)
    trainer.fit()
    stopped = weights_now(trainer.state)
    trainer.fit(duration="6ba")
    end = weights_now(trainer.state)
    trainer.close()
    return [seen.after_batch, stopped, end]


@pytest.mark.parametrize("step", [3, 4, 5])
def test_an_early_stop_ends_the_round(two_ranks: Ranks, step: int) -> None:
    """Before, in and after the steps of a window; then training continues."""
    (first, stopped, end), (second, other_stopped, other_end) = two_ranks.run(stopping, step)
    assert list(differing(first[step - 1], second[step - 1]))
    assert not list(differing(stopped, other_stopped))
    assert list(differing(stopped, end))
    assert not list(differing(end, other_end))
    assert len(first) == step + 6


def with_uneven_data(num_batches: int) -> list[Any]:
    rank = dist.get_global_rank()
    seen = Seen()
    trainer = trainer_with(
        DiLoCo(4, overlap=3),
        data=regression_data(num_batches if rank == 1 else 10, 4, seed=rank),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.5),
        max_duration="1ep",
        callbacks=seen,
    )
    return [fitted(trainer), seen.after_batch, int(trainer.state.timestamp.batch)]


@pytest.mark.parametrize("num_batches", [3, 5, 8])
def test_a_replica_without_data_takes_part_in_the_exchange(two_ranks: Ranks, num_batches: int) -> None:
    """Its data ends before, in, and at the start of a window."""
    (first, own, steps), (second, other, others_steps) = two_ranks.run(with_uneven_data, num_batches)
    assert steps == others_steps == 10
    assert not list(differing(first, second))
    parameters = {"first.weight", "norm.weight", "second.bias"}
    for step in range(num_batches + 1, 10):
        moved = parameters & set(differing(other[step - 2], other[step - 1]))
        assert moved == (parameters if step == 7 else set())
        assert parameters <= set(differing(own[step - 2], own[step - 1]))


def failing() -> list[Any]:
    def broken(*arguments: Any) -> None:
        raise OSError("no route to host")

    seen, algorithm = Seen(), DiLoCo(3, overlap=2)
    trainer = trainer_with(algorithm, callbacks=seen, max_duration="9ba")
    with mock.patch.object(_background_average, "average_over_replicas", broken), pytest.raises(OSError) as caught:
        trainer.fit()
    with pytest.raises(OSError, match="no route"):
        algorithm.state_dict()
    with pytest.raises(OSError, match="no route") as again:
        trainer.fit()
    trainer.close()
    return [str(caught.value), again.value.__notes__, len(seen.after_batch)]


def test_an_error_of_the_exchange_is_raised_when_it_is_applied(two_ranks: Ranks) -> None:
    for message, notes, steps in two_ranks.run(failing):
        assert message == "no route to host"
        assert len([note for note in notes if "overlaps with training (overlap)" in note]) == 1
        assert steps == 4


class WindowError(Exception):
    """Ends a run in a window."""


def interrupted() -> list[Any]:
    class Raise(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch == 4 and len(self.after_batch) == 4:
                raise WindowError

    seen, plain = Raise(), Seen()
    trainer = trainer_with(DiLoCo(3, overlap=2), callbacks=seen, max_duration="8ba")
    with pytest.raises(WindowError):
        trainer.fit()
    trainer.fit()
    trainer.close()
    fitted(trainer_with(DiLoCo(3, overlap=2), callbacks=plain, max_duration="8ba"))
    return [seen.after_batch[-1], plain.after_batch[-1]]


def test_training_continues_after_an_exception_in_a_window(two_ranks: Ranks) -> None:
    (first, _), (second, _) = two_ranks.run(interrupted)
    assert not list(differing(first, second))


def freezing(freeze_at: int, unfreeze_at: int) -> list[Any]:
    class Freeze(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch in (freeze_at, unfreeze_at):
                state.model.first.weight.requires_grad_(state.timestamp.batch == unfreeze_at)

    seen, model = Freeze(), make_normed()
    model.first.weight.requires_grad_(unfreeze_at > freeze_at)
    data = regression_data(12, BATCH, seed=dist.get_global_rank())
    trainer = trainer_with(
        DiLoCo(4, overlap=2), model=model, data=data, optimizer=make_sgd, max_duration="12ba", callbacks=seen
    )
    trainer.fit()
    names = sorted(trainer.state.algorithms[0].state_dict()["momenta"])
    trainer.close()
    return [[each["first.weight"] for each in seen.after_batch], names]


def test_parameters_that_are_frozen_in_a_window(two_ranks: Ranks) -> None:
    """A layer trains until the 5th step, and again after the 10th."""
    (first, _), (second, _) = two_ranks.run(freezing, 5, 10)
    # That round is over with the 8th step, and its average is applied after the 10th.
    assert [torch.equal(*pair) for pair in zip(first, second, strict=True)] == [False] * 9 + [True, False, True]
    assert not torch.equal(first[4], first[5])
    assert torch.equal(first[5], first[8])


def test_parameters_that_are_unfrozen_in_a_window(two_ranks: Ranks) -> None:
    (first, names), (second, _) = two_ranks.run(freezing, 11, 5)
    assert torch.equal(first[4], second[4])
    # The average of the 4th step leaves it alone.
    assert not torch.equal(first[5], second[5])
    assert "first.weight" in names
    assert torch.equal(first[-1], second[-1])


def with_ema() -> list[Any]:
    trainer = trainer_with(
        [EMA(smoothing=0.5, half_life=None, update_interval="3ba", ema_start="3ba"), DiLoCo(3, overlap=1)],
        model=make_normed(),
        data=regression_data(9, BATCH, seed=dist.get_global_rank()),
        max_duration="9ba",
        eval_dataloader=regression_data(1, 6),
        eval_interval="1ba",
        callbacks=(seen := Seen()),
    )
    trainer.fit()
    average = trainer.state.algorithms[0].get_ema_model(copy.deepcopy(trainer.state.model))
    found = {name: value.clone() for name, value in average.state_dict().items()}
    trainer.close()
    return [found, seen.after_batch[-1], seen.evaluated]


def test_ema_averages_the_last_synchronized_weights(two_ranks: Ranks) -> None:
    (average, last, evaluated), (other, _, others) = two_ranks.run(with_ema)
    assert not list(differing(average, other))
    assert all(not list(differing(*pair)) for pair in zip(evaluated, others, strict=True))
    (_, _, without_ema), _ = two_ranks.run(evaluating_every_step)
    # The initial weights at the 3rd step; those of the 3rd, applied at the 4th, at the 6th; and the last ones.
    name = "first.weight"
    expected = 0.5 * (0.5 * without_ema[2][name] + 0.5 * without_ema[5][name]) + 0.5 * last[name]
    torch.testing.assert_close(average[name], expected)


def evaluating_every_step() -> list[Any]:
    seen = Seen()
    fitted(
        trainer_with(
            DiLoCo(3, overlap=1),
            model=make_normed(),
            data=regression_data(9, BATCH, seed=dist.get_global_rank()),
            max_duration="9ba",
            eval_dataloader=regression_data(1, 6),
            eval_interval="1ba",
            callbacks=seen,
        )
    )
    return [None, None, seen.evaluated]


def test_arguments() -> None:
    assert DiLoCo(overlap="10ba").overlap == LocalSGD(20, overlap=10).overlap == DiLoCo("1ep", overlap=10).overlap
    assert DiLoCo().overlap.value == LocalSGD().overlap.value == 0
    assert "overlap=Time(2, TimeUnit.BATCH)" in repr(LocalSGD(4, overlap=2))
    for value, kind in ((-1, ValueError), ("1ep", ValueError), (8, ValueError), (9, ValueError), (1.5, TypeError)):
        with pytest.raises(kind, match="overlap"):
            LocalSGD(8, overlap=value)
    for value in (True, "", "soon", None):
        with pytest.raises((TypeError, ValueError), match="overlap"):
            DiLoCo(overlap=value)
