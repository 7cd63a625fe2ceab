"""A checkpoint, or a state dict, that a callback saves inside of an evaluation resumes bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import dist
from composer.algorithms import EMA, DiLoCo, LocalSGD
from tests.algorithms.low_communication import Normed, Weights, differing, fitted, samples, trainer_with
from tests.common import At
from tests.ranks import Ranks

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
