"""Loss weights that travel with the counts of the step: as few collectives as possible, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from composer import Algorithm, Callback, dist
from tests.common import Received, Regression, regression_data, trainer_of
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered


class Collectives:
    """Counts the all-reduces that Python code starts: all but those of DDP and FSDP."""

    def __init__(self) -> None:
        self.count = 0
        self._original = torch_dist.all_reduce

    def __enter__(self):
        torch_dist.all_reduce = self._called
        return self

    def __exit__(self, *_):
        torch_dist.all_reduce = self._original

    def _called(self, *args, **kwargs):
        self.count += 1
        return self._original(*args, **kwargs)


class Editor(Algorithm):
    """Removes the last row of each batch, from a step on, on some ranks."""

    def __init__(self, ranks: tuple[int, ...] = (0, 1), first: int = 0) -> None:
        self.ranks, self.first = ranks, first

    def after_dataloader(self, state, logger):
        if dist.get_global_rank() in self.ranks and state.timestamp.batch >= self.first:
            state.batch = tuple(part[:-1] for part in state.batch)


def num_collectives(steps: int, arguments: dict[str, Any]) -> int:
    arguments = {name: make() if callable(make) else make for name, make in arguments.items()}
    rank = dist.get_global_rank()
    data = [(x[rank::2], y[rank::2]) for x, y in regression_data(steps, 8)]
    trainer = trainer_of(data=data, **arguments)
    with Collectives() as collectives:
        trainer.fit()
    trainer.close()
    return collectives.count


def edits() -> Editor:
    return Editor()


def edits_on_one_rank() -> Editor:
    return Editor((1,))


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "bare": ({}, 1),
    "fsdp": ({"parallelism_config": {"fsdp": {}}}, 1),
    "microbatches under fsdp": ({"parallelism_config": {"fsdp": {}}, "device_train_microbatch_size": 1}, 1),
    "a logger": ({"loggers": Received}, 2),
    "an algorithm that may edit": ({"algorithms": edits}, 2),
    "and a logger": ({"algorithms": edits, "loggers": Received}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_number_of_collectives_of_a_step(two_ranks: Ranks, case: str) -> None:
    arguments, expected = CASES[case]
    few = two_ranks.run(num_collectives, 5, arguments)
    many = two_ranks.run(num_collectives, 25, arguments)
    assert [(b - a) / 20 for a, b in zip(few, many, strict=True)] == [expected] * 2


class Joins(Callback):
    """Adds an algorithm in the middle of the run."""

    def __init__(self, algorithm: Algorithm, at: int) -> None:
        self.algorithm, self.at = algorithm, at

    def batch_end(self, state, logger):
        if int(state.timestamp.batch) == self.at:
            state.algorithms.append(self.algorithm)
        if int(state.timestamp.batch) == self.at + 3:
            state.algorithms.remove(self.algorithm)


def ragged(size: int) -> list[list[Any]]:
    """The batches of both ranks: of 5 and 3 rows."""
    batches = regression_data(8, 8, dtype=torch.float64)
    return [[(x[:5], y[:5]) for x, y in batches], [(x[5:], y[5:]) for x, y in batches]][:size]


class Gradients(Callback):
    """Keeps the gradient of each step, and listens to nothing else."""

    def __init__(self) -> None:
        self.found: list[list[float]] = []

    def after_train_batch(self, state, logger):
        grads = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in state.model.parameters()]
        self.found.append(torch.cat([grad.flatten() for grad in grads]).tolist())


def first_model() -> Regression:
    model = Regression(dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
    return model


def gradients_with_an_editor_from_step_2_to_4(way: dict[str, Any]) -> list[list[float]]:
    found = Gradients()
    callbacks = [found, Joins(Editor(), 2)] if dist.get_global_rank() == 1 else [found]
    trainer = trainer_of(first_model(), ragged(2)[dist.get_global_rank()], callbacks=callbacks, **way)
    trainer.fit()
    trainer.close()
    return found.found


def gradients_of_one_process() -> list[list[float]]:
    first, second = ragged(2)
    data = []
    for step, ((x, y), (v, w)) in enumerate(zip(first, second, strict=True)):
        rows = slice(None, -1) if 2 <= step < 5 else slice(None)
        data.append((torch.cat([x, v[rows]]), torch.cat([y, w[rows]])))
    found = Gradients()
    trainer = trainer_of(first_model(), data, callbacks=found)
    trainer.fit()
    trainer.close()
    return found.found


WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "microbatches": {"device_train_microbatch_size": 2},
    "fsdp": {"parallelism_config": {"fsdp": {}}},
    "fsdp, microbatches": {"parallelism_config": {"fsdp": {}}, "device_train_microbatch_size": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_algorithm_that_joins_on_one_rank_only(two_ranks: Ranks, way: str) -> None:
    """The ranks learn of it only within the step, by the counts; the gradient is that of the rows that are left."""
    expected = gradients_of_one_process()
    assert len(expected) == 8
    for found in two_ranks.run(gradients_with_an_editor_from_step_2_to_4, WAYS[way]):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-6)


def last_losses(duration: str) -> float:
    """The loss after a run that nothing watches."""
    rank = dist.get_global_rank()
    trainer = trainer_of(
        data=[ragged(2)[rank][0]] * 3, lr=0.0, max_duration=duration, model=Regression(dtype=torch.float64)
    )
    trainer.fit()
    trainer.close()
    return trainer.state.total_loss_dict["loss/train/total"].item()


@pytest.mark.parametrize("duration", ["1ep", "2ba"])
def test_losses_that_nothing_read_are_averaged_after_training(two_ranks: Ranks, duration: str) -> None:
    first, second = two_ranks.run(last_losses, duration)
    assert first == second


class Listens(Callback):
    """Might edit the batch, as a script's callback may."""

    def after_dataloader(self, state, logger):
        pass


def uneven(more: dict[str, Any], *, listens: bool) -> list[list[float]]:
    gradients = Gradients()
    loader: Any = DataLoader(Numbered(11), batch_size=2)
    callbacks = [gradients, Listens()] if listens else [gradients]
    trainer = trainer_of(first_model(), loader, callbacks=callbacks, seed=7, device="cpu", **more)
    trainer.fit()
    trainer.close()
    return gradients.found


def both_ways(more: dict[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    return uneven(more, listens=False), uneven(more, listens=True)


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 1}])
def test_gradients_do_not_depend_on_where_the_weights_are_counted(two_ranks: Ranks, more: dict[str, Any]) -> None:
    """With 11 samples on two ranks the last step has one that is smaller than the other."""
    for with_counts, in_the_step in two_ranks.run(both_ways, more):
        assert len(with_counts) == 3
        assert with_counts == in_the_step
