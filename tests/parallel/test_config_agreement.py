"""Settings that must be equal on all ranks before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from composer import State, dist
from composer.algorithms import ChannelsLast, LabelSmoothing
from composer.parallel.config_agreement import check_agreement
from tests.ranks import Ranks


def state_of(**changes: Any) -> State:
    model = changes.pop("model", None) or nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    arguments: dict[str, Any] = {
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_duration": "2ep",
        "rank_zero_seed": 17,
        "algorithms": [LabelSmoothing(), ChannelsLast()],
    }
    return State(model=model, **(arguments | changes))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    return model


def in_another_order() -> nn.Module:
    model, other = nn.Module(), nn.Linear(4, 4)
    names = ["weight", "bias"]
    for name in names if dist.get_global_rank() else reversed(names):
        model.register_parameter(name, getattr(other, name))
    return model


def two_groups() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    groups = [{"params": part.parameters()} for part in model]
    return {"model": model, "optimizers": torch.optim.SGD(groups, lr=0.1)}


# What differs on rank 1 -> the error on both ranks.
DIFFERENT: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "wider": (
        lambda: {"model": nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))},
        "- parameters: 0.weight (rank 0: '(8, 4) float32'; rank 1: '(9, 4) float32'), 0.bias (rank 0: '(8,) float32'; ",
    ),
    "deeper": (
        lambda: {"model": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(3, 3))},
        "- parameters: 2.weight (rank 0: None; rank 1: '(3, 3) float32'), 2.bias (rank 0: None; ",
    ),
    "frozen": (
        lambda: {"model": frozen()},
        "- parameters: 0.weight (rank 0: '(8, 4) float32'; rank 1: '(8, 4) float32, not trained')",
    ),
    "groups": (
        two_groups,
        "- optimizers: rank 0: ['SGD of 4 parameters']; rank 1: ['SGD of 2, 2 parameters']",
    ),
    "duration": (lambda: {"max_duration": "3ep"}, "- max_duration: rank 0: '2ep'; rank 1: '3ep'"),
    "seed": (lambda: {"rank_zero_seed": 18}, "- seed: rank 0: 17; rank 1: 18"),
    "precision": (lambda: {"precision": "amp_bf16"}, "- precision: rank 0: 'fp32'; rank 1: 'amp_bf16'"),
    "algorithms": (
        lambda: {"algorithms": [ChannelsLast(), LabelSmoothing()]},
        "- algorithms: rank 0: ['LabelSmoothing', 'ChannelsLast']; rank 1: ['ChannelsLast', 'LabelSmoothing']",
    ),
    "arguments": (
        lambda: {"algorithms": [LabelSmoothing(0.2), ChannelsLast()]},
        "- arguments of algorithms: rank 0: ['LabelSmoothing(smoothing=0.1",
    ),
}


def all_checked() -> dict[str, str]:
    """What this rank is message in each case; one exchange each, so that no more processes have to start."""
    second = dist.get_global_rank() == 1
    cases = {name: make if second else dict for name, (make, _) in DIFFERENT.items()}
    cases |= {"same": dict, "order": lambda: {"model": in_another_order()}}
    cases["two"] = lambda: {"rank_zero_seed": 18, "max_duration": "3ep"} if second else {}
    message = {}
    for name, make in cases.items():
        try:
            check_agreement(state_of(**make()))
            message[name] = ""
        except ValueError as error:
            message[name] = str(error)
    return message


@pytest.fixture(scope="module")
def message(two_ranks: Ranks) -> dict[str, str]:
    first, second = two_ranks.run(all_checked)
    assert first == second
    return first


@pytest.mark.parametrize("name", DIFFERENT)
def test_error_lists_each_ranks_value(message, name) -> None:
    head, line = message[name].split("\n", 1)
    assert head == "All ranks must have the same configuration, but they differ in:"
    assert line.startswith(DIFFERENT[name][1])


def test_equal_configs_pass(message) -> None:
    assert message["same"] == ""


def test_the_order_of_parameters_counts(message) -> None:
    assert "- parameters: their order (rank 0: ['bias', 'weight']; rank 1: ['weight', 'bias'])" in message["order"]


def test_all_differences_are_reported_together(message) -> None:
    lines = message["two"].splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == ["- max_duration", "- seed"]


def test_single_rank_always_agrees() -> None:
    check_agreement(state_of())


def test_many_differing_parameters_are_abbreviated(monkeypatch) -> None:
    one, other = (state_of(model=nn.Sequential(*[nn.Linear(1, width) for _ in range(4)])) for width in (1, 2))
    answers: list[Any] = []

    def gather(mine: Any) -> list[Any]:
        answers.append(mine)
        return [mine, theirs[len(answers) - 1]]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr("composer.parallel.config_agreement.have_same_digest", lambda mine: False)
    monkeypatch.setattr(dist, "all_gather_object", lambda mine: [mine, mine])
    check_agreement(other)
    theirs: list[Any] = []
    monkeypatch.setattr(dist, "all_gather_object", lambda mine: theirs.append(mine) or [mine, {"parameters": "other"}])
    with pytest.raises(ValueError, match="parameters"):
        check_agreement(other)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(ValueError, match=r"3\.weight|and 3 more") as caught:
        check_agreement(one)
    assert str(caught.value).endswith("and 3 more")
    assert str(caught.value).count("rank 0") == 5
