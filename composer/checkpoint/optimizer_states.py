"""The state of optimizers by the names of the parameters, so that it does not depend on their order."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composer._host_optimizer_state import host_values_back
from composer._text import first_of, plural
from composer.checkpoint.sharded_tensors import Layout
from composer.warnings import ComposerWarning

__all__ = ["class_name", "optimizer_state", "set_optimizer_state"]


def class_name(optimizer: Optimizer) -> str:
    """Return the class of an optimizer, of the one inside for one that wraps another.

    Args:
        optimizer: The optimizer.

    >>> class_name(torch.optim.SGD([torch.zeros(1)]))
    'SGD'
    """
    return type(getattr(optimizer, "base_optimizer", optimizer)).__qualname__


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer with the names of the parameters in place of their numbers.

    Args:
        model: Names the parameters; those that it does not have are ``"#0"``, ``"#1"``, ... by their place.
        optimizer: The optimizer.

    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer_state(model, torch.optim.SGD(model.parameters()))["param_groups"][0]["params"]
    ['weight', 'bias']
    """
    names = _names(model, optimizer)
    state = optimizer.state_dict()
    return {
        **state,
        "state": {names[number]: value for number, value in state["state"].items()},
        "param_groups": [{**group, "params": [names[n] for n in group["params"]]} for group in state["param_groups"]],
    }


def set_optimizer_state(
    model: nn.Module, optimizer: Optimizer, saved: dict[str, Any], left_out: Collection[str] = ()
) -> None:
    """Give an optimizer what :func:`optimizer_state` returned.

    Groups and the parameters inside them may be in another order: a group gets what was saved of the group that most of
    its parameters were in. Parameters that the saved state does not know (layers that a method has put in since) begin
    without state, and a saved state of parameters that the optimizer does not have (layers that are frozen now) is left
    out; a warning tells of both.

    Args:
        model: Names the parameters.
        optimizer: The optimizer; has as many groups as the saved one.
        saved: The state; also one with numbers, as the optimizer itself gives it, for parameters in the same order.
        left_out: Names of parameters whose saved state is left out.

    Raises:
        ValueError: The groups differ in number, or the saved state has a parameter without a name that there is not.

    >>> model = torch.nn.Linear(1, 1)
    >>> saved = optimizer_state(
    ...     model, torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.5)
    ... )
    >>> optimizer = torch.optim.SGD([{"params": [model.bias]}, {"params": [model.weight]}], lr=0.1)
    >>> set_optimizer_state(model, optimizer, saved)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.5, 0.5]
    """
    names = _names(model, optimizer)
    current = optimizer.state_dict()
    saved = _by_name(saved, names)
    groups = saved["param_groups"]
    kind = class_name(optimizer)
    if len(groups) != len(current["param_groups"]):
        raise ValueError(
            f"The checkpoint has {plural(len(groups), 'parameter group')} of {kind}, but the optimizer given has "
            f"{len(current['param_groups'])}. Make it with the same groups, or leave its state out with "
            f"load_ignore_keys=['state/optimizers*']."
        )
    states = {name: value for name, value in saved["state"].items() if name not in left_out}
    known = set(saved["state"]) | {name for group in groups for name in group["params"]}
    if numbered := sorted(name for name in known - set(names) if name.startswith("#")):
        raise ValueError(
            f"The checkpoint has the state of {kind} for parameters by number, and {first_of(numbered)} is none of the "
            f"optimizer given. Give an optimizer of the same parameters, or leave its state out with "
            f"load_ignore_keys=['state/optimizers*']."
        )
    _warn(kind, "The checkpoint has no state of {kind} for {names}; these begin without.", set(names) - known)
    _warn(
        kind,
        "The state of {kind} in the checkpoint is left out for {names}, whose weights are not loaded either; these "
        "begin without.",
        set(saved["state"]) & set(names) & set(left_out),
    )
    _warn(
        kind,
        "The checkpoint has the state of {kind} for parameters that the optimizer given does not have: {names}; it is "
        "left out.",
        set(states) - set(names),
    )
    states = {name: value for name, value in states.items() if name in names}
    states = Layout(model).placed(states, ("optimizers",))
    numbers = {name: number for number, name in enumerate(names)}
    present = [[names[number] for number in group["params"]] for group in current["param_groups"]]
    groups = [groups[place] for place in _places([group["params"] for group in groups], present)]
    optimizer.load_state_dict(
        {
            **saved,
            "state": {numbers[name]: value for name, value in states.items()},
            "param_groups": [
                {**old, "params": now["params"]} for old, now in zip(groups, current["param_groups"], strict=True)
            ],
        }
    )
    host_values_back(optimizer)


def _warn(kind: str, message: str, names: set[str]) -> None:
    if names:
        text = message.format(kind=kind, names=first_of(sorted(names)))
        warnings.warn(text, ComposerWarning, stacklevel=3)


def _by_name(saved: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The same with names, where it has numbers as torch gives them."""
    name_of = dict(enumerate(names))

    def name(key: Any) -> str:
        return name_of.get(key, f"#{key}") if isinstance(key, int) else key

    return {
        **saved,
        "state": {name(key): value for key, value in saved["state"].items()},
        "param_groups": [
            {**group, "params": [name(key) for key in group["params"]]} for group in saved["param_groups"]
        ],
    }


def _places(saved: list[list[str]], present: list[list[str]]) -> list[int]:
    """The saved group for each present one: that of most of its parameters, by its place where these do not tell."""
    group_of = {name: place for place, names in enumerate(saved) for name in names}
    votes = [Counter(group_of[name] for name in names if name in group_of) for names in present]
    found = [vote.most_common(1)[0][0] if vote else None for vote in votes]
    told = [place for place in found if place is not None]
    if len(set(told)) < len(told):
        return list(range(len(saved)))  # they were divided in another way
    left = iter([place for place in range(len(saved)) if place not in told])
    return [next(left) if place is None else place for place in found]


def _names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The name of each parameter of the optimizer, by its number."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [names.get(id(parameter), f"#{number}") for number, parameter in enumerate(parameters)]
