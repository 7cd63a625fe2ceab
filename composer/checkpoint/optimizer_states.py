"""Save and load optimizer state by parameter name, so that it does not depend on the order of the parameters."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composer._host_optimizer_state import host_values_back
from composer._text import first_of, plural
from composer.checkpoint.quantized_states import dequantized_parts, quantized_from_parts
from composer.checkpoint.sharded_tensors import Layout
from composer.warnings import ComposerWarning

__all__ = ["class_name", "optimizer_state", "set_optimizer_state"]


def class_name(optimizer: Optimizer) -> str:
    """Return the class name of an optimizer; for a wrapper, that of the wrapped optimizer.

    Args:
        optimizer: The optimizer.

    >>> class_name(torch.optim.SGD([torch.zeros(1)]))
    'SGD'
    """
    return type(getattr(optimizer, "base_optimizer", optimizer)).__qualname__


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the state dict of an optimizer with parameter names instead of indices.

    Quantized states of torchao (``AdamW8bit``) are dicts of their parts, plain tensors.

    Args:
        model: Provides the names; parameters that it does not have are ``"#0"``, ``"#1"``, ... by their index.
        optimizer: The optimizer.

    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer_state(model, torch.optim.SGD(model.parameters()))["param_groups"][0]["params"]
    ['weight', 'bias']
    """
    names = _names(model, optimizer)
    state = optimizer.state_dict()
    return {
        **state,
        "state": {names[number]: dequantized_parts(value, names[number]) for number, value in state["state"].items()},
        "param_groups": [{**group, "params": [names[n] for n in group["params"]]} for group in state["param_groups"]],
    }


def set_optimizer_state(
    model: nn.Module, optimizer: Optimizer, saved: dict[str, Any], excluded: Collection[str] = ()
) -> None:
    """Load what :func:`optimizer_state` returned into an optimizer.

    Parameter groups, and the parameters in them, may be in another order: each group is matched with the saved group
    that most of its parameters were in. Parameters without saved state (layers that an algorithm has inserted since)
    start without state. Saved state of parameters that the optimizer does not have (layers that are frozen now) is
    ignored. Both cases give a warning.

    Args:
        model: Provides the names of the parameters.
        optimizer: The optimizer; must have as many parameter groups as the saved one.
        saved: The state; may have indices as in ``Optimizer.state_dict()``, for parameters in the same order.
        excluded: Names of parameters whose saved state is not loaded.

    Raises:
        ValueError: The number of groups differs, or the saved state has an unnamed parameter that the optimizer lacks.

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
    optimizer_name = class_name(optimizer)
    if len(groups) != len(current["param_groups"]):
        raise ValueError(
            f"The checkpoint has {plural(len(groups), 'parameter group')} of {optimizer_name}, but the given "
            f"optimizer has {len(current['param_groups'])}. Create it with the same groups, or skip its state with "
            f"load_ignore_keys=['state/optimizers*']."
        )
    states = {name: value for name, value in saved["state"].items() if name not in excluded}
    known = set(saved["state"]) | {name for group in groups for name in group["params"]}
    if numbered := sorted(name for name in known - set(names) if name.startswith("#")):
        raise ValueError(
            f"The checkpoint has the state of {optimizer_name} by parameter index, and the given optimizer has no "
            f"{first_of(numbered)}. Pass an optimizer of the same parameters, or skip its state with "
            f"load_ignore_keys=['state/optimizers*']."
        )
    _warn(
        f"The checkpoint has no state of {optimizer_name} for {{names}}; these start without state.", set(names) - known
    )
    _warn(
        f"The state of {optimizer_name} in the checkpoint is not loaded for {{names}}, whose weights are not loaded "
        f"either; these start without state.",
        set(saved["state"]) & set(names) & set(excluded),
    )
    _warn(
        f"The checkpoint has the state of {optimizer_name} for parameters that the given optimizer does not have: "
        f"{{names}}; it is ignored.",
        set(states) - set(names),
    )
    states = {name: value for name, value in states.items() if name in names}
    states = Layout(model).shard(states, ("optimizers",))
    parameters = dict(zip(names, _parameters(optimizer), strict=True))
    states = {name: quantized_from_parts(value, parameters[name], name) for name, value in states.items()}
    numbers = {name: number for number, name in enumerate(names)}
    present = [[names[number] for number in group["params"]] for group in current["param_groups"]]
    groups = [groups[index] for index in _match_groups([group["params"] for group in groups], present)]
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


def _warn(message: str, names: set[str]) -> None:
    if names:
        text = message.format(names=first_of(sorted(names)))
        warnings.warn(text, ComposerWarning, stacklevel=3)


def _by_name(saved: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return a saved state with parameter names in place of torch's indices."""
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


def _match_groups(saved: list[list[str]], present: list[list[str]]) -> list[int]:
    """Return the saved group for each current one: that of most of its parameters, or by index if unclear."""
    group_of = {name: index for index, names in enumerate(saved) for name in names}
    votes = [Counter(group_of[name] for name in names if name in group_of) for names in present]
    found = [vote.most_common(1)[0][0] if vote else None for vote in votes]
    known_groups = [index for index in found if index is not None]
    if len(set(known_groups)) < len(known_groups):
        return list(range(len(saved)))  # the parameters were grouped differently
    left = iter([index for index in range(len(saved)) if index not in known_groups])
    return [next(left) if index is None else index for index in found]


def _names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the name of each parameter of the optimizer, by index."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names.get(id(parameter), f"#{number}") for number, parameter in enumerate(_parameters(optimizer))]


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
