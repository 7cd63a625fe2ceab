"""Rounds of local steps whose averages overlap with training, compared with a simulation in one process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from composer import dist
from composer.algorithms import DiLoCo, LocalSGD, _background_average
from composer.algorithms._pseudo_gradients import decode, encode
from composer.warnings import ComposerWarning
from tests.algorithms.low_communication import (
    BATCH,
    Seen,
    Weights,
    differing,
    fitted,
    make_normed,
    make_sgd,
    trainer_with,
    weights_now,
)
from tests.common import At, regression_data
from tests.ranks import Ranks


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


def started_again(method: str, folder: str) -> list[Any]:
    """The weights of a run that is stopped within a round, and those of the same command, which has nothing to do."""

    def stop(state: Any) -> None:
        if state.timestamp.batch == 4:
            state.stop_training(everywhere=True, reason="enough")

    found: list[Any] = []
    for _ in range(2):
        trainer = trainer_with(
            {"DiLoCo": DiLoCo, "LocalSGD": LocalSGD}[method](3),
            callbacks=At("batch_end", stop),
            save_folder=folder,
            save_interval="1ba",
            autoresume=True,
            run_name="night",
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete", ComposerWarning)
            trainer.fit()
        found.append((int(trainer.state.timestamp.batch), weights_now(trainer.state)))
        trainer.close()
    return found


@pytest.mark.parametrize("method", ["DiLoCo", "LocalSGD"])
def test_the_last_checkpoint_of_a_stopped_run_is_after_its_last_round(method: str, tmp_path, two_ranks: Ranks) -> None:
    (first, again), (other, other_again) = two_ranks.run(started_again, method, str(tmp_path))
    assert [one[0] for one in (first, again, other, other_again)] == [4] * 4
    for one in (again, other, other_again):
        assert not list(differing(one[1], first[1]))
