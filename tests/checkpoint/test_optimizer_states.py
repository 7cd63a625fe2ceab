"""Optimizer states by parameter name."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.checkpoint.optimizer_states import class_name, optimizer_state, set_optimizer_state
from composer.warnings import ComposerWarning
from tests.checkpoint.content import same


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))


NAMES = ["0.weight", "0.bias", "2.weight"]
KINDS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "LBFGS": lambda groups: torch.optim.LBFGS(groups, lr=0.1, max_iter=2),
}


def optimizer_of(module: nn.Module, groups: list[list[str]], kind: str = "AdamW", **rates: float) -> Any:
    """Groups of parameters by name; the rate of a group is that of its first parameter."""
    by_name = dict(module.named_parameters())
    described = [{"params": [by_name[name] for name in names]} for names in groups]
    for group, names in zip(described, groups, strict=True):
        if names and names[0] in rates:
            group["lr"] = rates[names[0]]
    return KINDS[kind](described)


def train(module: nn.Module, optimizer: Any, steps: int = 3, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(5, 3, generator=generator)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = module(x).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


def by_name(module: nn.Module, optimizer: Any) -> dict[str, Any]:
    names = {parameter: name for name, parameter in module.named_parameters()}
    return {names[parameter]: state for parameter, state in optimizer.state.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_bit_for_bit(kind) -> None:
    groups = [["0.weight", "0.bias", "2.weight"]]
    module = model()
    optimizer = optimizer_of(module, groups, kind)
    train(module, optimizer)
    saved = copy.deepcopy(optimizer_state(module, optimizer))
    weights = copy.deepcopy(module.state_dict())
    train(module, optimizer, seed=2)
    again = model()
    again.load_state_dict(weights)
    other = optimizer_of(again, groups, kind)
    set_optimizer_state(again, other, saved)
    train(again, other, seed=2)
    assert same(again.state_dict(), module.state_dict())


def partitions() -> st.SearchStrategy[list[list[str]]]:
    """Every partition of the parameters into ordered groups."""

    def shard_checkpoint(drawn: tuple[list[str], list[int]]) -> list[list[str]]:
        order, cuts = drawn
        places = sorted({0, *cuts, len(order)})
        return [order[a:b] for a, b in itertools.pairwise(places)]

    return st.tuples(st.permutations(NAMES), st.lists(st.integers(1, 2), max_size=2)).map(shard_checkpoint)


@given(partitions(), st.randoms(use_true_random=False))
def test_states_are_matched_by_name_in_any_order(groups, chance) -> None:
    rates = {"0.weight": 0.1, "0.bias": 0.2, "2.weight": 0.3}
    module = model()
    optimizer = optimizer_of(module, groups, **rates)
    train(module, optimizer)
    saved = optimizer_state(module, optimizer)
    assert {name for group in saved["param_groups"] for name in group["params"]} == set(NAMES)

    reordered = [chance.sample(group, len(group)) for group in chance.sample(groups, len(groups))]
    again = model()
    other = optimizer_of(again, reordered)
    set_optimizer_state(again, other, saved)
    assert same(by_name(again, other), by_name(module, optimizer))
    lr_of = {name: group["lr"] for group in saved["param_groups"] for name in group["params"]}
    names = {parameter: name for name, parameter in again.named_parameters()}
    for group in other.param_groups:
        assert {group["lr"]} == {lr_of[names[parameter]] for parameter in group["params"]}


def test_indices_follow_position() -> None:
    """So torch itself saves, and the first versions of the predecessor."""
    groups = [["0.bias", "2.weight"], ["0.weight"]]
    module = model()
    optimizer = optimizer_of(module, groups, **{"0.bias": 0.2, "0.weight": 0.3})
    train(module, optimizer)
    again = model()
    other = optimizer_of(again, groups)
    set_optimizer_state(again, other, optimizer.state_dict())
    assert same(by_name(again, other), by_name(module, optimizer))
    assert [group["lr"] for group in other.param_groups] == [0.2, 0.3]
    smaller = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(ValueError, match="by parameter index, and the given optimizer has no #2"):
        set_optimizer_state(smaller, optimizer_of(smaller, [["0.bias"], ["0.weight"]]), optimizer.state_dict())


def test_regrouped_parameters_keep_their_positions() -> None:
    module = model()
    optimizer = optimizer_of(module, [["0.weight", "0.bias"], ["2.weight"]], **{"0.weight": 0.1, "2.weight": 0.3})
    train(module, optimizer)
    other = optimizer_of(module, [["0.weight"], ["0.bias", "2.weight"]])
    set_optimizer_state(module, other, optimizer_state(module, optimizer))
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.3]
    assert same(by_name(module, other), by_name(module, optimizer))


def test_group_without_known_parameters_gets_the_rest() -> None:
    module = model()
    optimizer = optimizer_of(module, [["0.weight", "0.bias"], ["2.weight"]], **{"0.weight": 0.1, "2.weight": 0.3})
    saved = optimizer_state(module, optimizer)
    again = model()
    again[2] = nn.Linear(4, 2, bias=False)
    saved["param_groups"][1]["params"] = []  # as of a layer that was not trained then
    other = optimizer_of(again, [["2.weight"], ["0.weight", "0.bias"]])
    with pytest.warns(ComposerWarning, match="no state of AdamW for 2.weight; these start without"):
        set_optimizer_state(again, other, saved)
    assert [group["lr"] for group in other.param_groups] == [0.3, 0.1]


def test_parameters_outside_the_model_are_matched_by_position() -> None:
    module, alone = model(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*module.parameters(), alone], lr=0.1, momentum=0.9)
    alone.grad = torch.ones(2)
    optimizer.step()
    saved = optimizer_state(module, optimizer)
    assert list(saved["state"]) == ["#3"]
    again = torch.optim.SGD([*module.parameters(), alone], lr=0.1, momentum=0.9)
    set_optimizer_state(module, again, saved)
    assert torch.equal(again.state[alone]["momentum_buffer"], torch.ones(2))


def test_tied_weights_have_one_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    saved = optimizer_state(module, torch.optim.SGD(module.parameters()))
    assert saved["param_groups"][0]["params"] == ["0.weight"]


def test_mismatches_are_reported() -> None:
    module = model()
    saved = optimizer_state(module, optimizer_of(module, [NAMES]))
    with pytest.raises(ValueError, match="has 1 parameter group of AdamW, but the given optimizer has 2"):
        set_optimizer_state(module, optimizer_of(module, [NAMES[:1], NAMES[1:]]), saved)
    smaller = nn.Sequential(nn.Linear(3, 4))
    set_optimizer_state(smaller, optimizer_of(smaller, [NAMES[:2]]), saved)  # there is no state yet to lose
    train(module, optimizer := optimizer_of(module, [NAMES]))
    saved, fewer = optimizer_state(module, optimizer), optimizer_of(smaller, [NAMES[:2]])
    with pytest.warns(ComposerWarning, match=r"that the given optimizer does not have: 2.weight; it is ignored"):
        set_optimizer_state(smaller, fewer, saved)
    assert same(by_name(smaller, fewer), {name: saved["state"][name] for name in NAMES[:2]})


def test_wrapped_optimizer_class_is_compared() -> None:
    class Wrapper:
        base_optimizer = torch.optim.SGD([torch.zeros(1)])

    assert class_name(Wrapper()) == "SGD"
