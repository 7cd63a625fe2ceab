"""A checkpoint, or a state dict, that a callback saves inside of an evaluation resumes bit for bit."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from composer import dist
from composer.algorithms import EMA, DiLoCo, LocalSGD
from tests.algorithms.low_communication import Normed, Weights, differing, fitted, samples, trainer_with
from tests.common import At, weights
from tests.ranks import Ranks
from tests.trainer.test_resume_between_epochs import EPOCH, STEPS, Onward, trainer_on
from tests.trainer.test_resume_between_epochs import samples as classified
from tests.trainer.test_resume_within_step import SaveIn

EVENTS = ["eval_start", "eval_batch_end", "eval_end"]
METHODS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "ema": lambda: EMA("6ba", None, "3ba", "3ba"),
    "diloco and ema": lambda: [DiLoCo(3), EMA("6ba", None, "3ba", "3ba")],
    "ema and local sgd": lambda: [EMA("6ba", None, "3ba", "3ba"), LocalSGD(3)],
}


def resumed_in_evaluation(folder: str, method: str, event: str, dropout: float) -> list[tuple[int, list[str]]]:
    """The weights that differ from those of the whole run, by the step after which it was saved."""

    def trainer(**more: Any) -> Any:
        model = Normed()
        model.dropout.p = dropout
        evaluated = torch.utils.data.DataLoader(samples(12), 3)
        arguments = {"max_duration": "8ba", "eval_dataloader": evaluated, "eval_interval": "1ba", **more}
        return trainer_with(METHODS[method](), model=model, **arguments)

    saved: set[int] = set()

    def save(state: Any) -> None:
        step = int(state.timestamp.batch)
        if step in (4, 6) and step not in saved:
            saved.add(step)
            whole.save_checkpoint(f"{folder}/{step}.pt")
            content = state.state_dict()
            if dist.get_global_rank() == 0:
                torch.save(content, f"{folder}/state{step}.pt")

    whole = trainer(callbacks=At(event, save))
    expected = fitted(whole)
    found: list[tuple[int, list[str]]] = []
    for step in (4, 6):
        resumed: list[Weights] = [fitted(trainer(load_path=f"{folder}/{step}.pt"))]
        if not dropout:  # the random state is not part of the state
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                other = trainer()
                other.state.load_state_dict(torch.load(f"{folder}/state{step}.pt", weights_only=True), other.logger)
                resumed.append(fitted(other))
        found += [(step, list(differing(expected, one))) for one in resumed]
    return found


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("method", ["none", "ema"])
def test_random_numbers_continue_as_before_the_evaluation(method: str, event: str, tmp_path: Path) -> None:
    assert resumed_in_evaluation(str(tmp_path), method, event, 0.1) == [(4, []), (6, [])]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("method", ["diloco and ema", "ema and local sgd"])
def test_replicas_with_averages_resume_within_and_between_rounds(
    method: str, event: str, tmp_path: Path, two_ranks: Ranks
) -> None:
    for found in two_ranks.run(resumed_in_evaluation, str(tmp_path), method, event, 0.0):
        assert found == [(4, [])] * 2 + [(6, [])] * 2


class Drawn(Onward):
    """Data without a length, whose state does not say whether an epoch is over; draws from all three generators."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in super().__iter__():
            yield x + torch.rand(1) + random.random() + float(np.random.rand()), y


def trained(*callbacks: Any, **arguments: Any) -> tuple[list[Any], torch.Tensor]:
    """The samples of each step, and the weights; each evaluation uses random numbers."""
    evaluated = DataLoader(classified(4), 2, shuffle=True)
    trainer, seen = trainer_on(Drawn(), *callbacks, eval_dataloader=evaluated, eval_interval="1ba", **arguments)
    trainer.fit()
    return seen, weights(trainer)


@pytest.mark.parametrize("event", [*EVENTS, "batch_end", "batch_checkpoint"])
def test_values_that_data_draws_do_not_depend_on_saving(event: str, tmp_path: Path) -> None:
    seen, expected = trained()
    saved, same = trained(SaveIn(event, tmp_path))
    assert saved == seen
    assert torch.equal(same, expected)
    for stop in range(1, STEPS):
        rest, resumed = trained(load_path=str(tmp_path / f"{stop}.pt"))
        assert rest == seen[stop:], stop
        assert torch.equal(resumed, expected), stop


def test_values_that_data_draws_after_saving_twice(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    seen, expected = trained(SaveIn("batch_end", folders[0]), SaveIn("batch_checkpoint", folders[1]))
    for folder in folders:
        rest, resumed = trained(load_path=str(folder / "4.pt"))
        assert rest == seen[4:]
        assert torch.equal(resumed, expected)


class DrawnSized(Drawn):
    def __len__(self) -> int:
        return EPOCH


def _values_of_a_rank(folder: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Whether data of unequal ranks is over must be looked up, whatever its length."""

    def seen(*callbacks: Any, **arguments: Any) -> list[Any]:
        evaluated = DataLoader(classified(4), 2, shuffle=True)
        more = {"eval_dataloader": evaluated, "eval_interval": "1ba", "device": "cpu", **arguments}
        trainer, found = trainer_on(DrawnSized(), *callbacks, **more)
        trainer.fit()
        return found

    return seen(), seen(SaveIn("eval_batch_end", Path(folder))), seen(load_path=f"{folder}/4.pt")


def test_values_that_data_draws_on_two_ranks(tmp_path: Path, two_ranks: Ranks) -> None:
    for alone, saved, rest in two_ranks.run(_values_of_a_rank, str(tmp_path)):
        assert saved == alone
        assert rest == alone[4:]
