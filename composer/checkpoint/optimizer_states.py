"""Save and load optimizer state by parameter name, so that it does not depend on the order of the parameters."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composer import trees
from composer._host_optimizer_state import host_values_back
from composer._text import first_of, plural
from composer.checkpoint.quantized_states import dequantized_parts, quantized_from_parts
from composer.checkpoint.sharded_tensors import Layout
from composer.dist.dtensor import is_dtensor
from composer.optim.unfinished_lbfgs import restart_unfinished
from composer.optim.wrapped_optimizer import unwrapped
from composer.warnings import ComposerWarning

__all__ = ["class_name", "is_by_parameter", "optimizer_state", "set_optimizer_state"]

# The values in the state of an optimizer that belong to no parameter; apart, since their names may be those of one.
_OTHERS = "other_state"
_SKIP = "load_ignore_keys=['state/optimizers*']"


def class_name(optimizer: Optimizer) -> str:
    """Return the class name of an optimizer; for a wrapper, that of the wrapped optimizer.

    Args:
        optimizer: The optimizer.

    >>> class_name(torch.optim.SGD([torch.zeros(1)]))
    'SGD'
    """
    return type(unwrapped(optimizer)).__qualname__


def is_by_parameter(state: Mapping[str, Any]) -> bool:
    """Return whether a state dict has the entries of ``torch.optim.Optimizer``; those of wrappers may have others.

    Args:
        state: What ``state_dict`` of an optimizer returned.

    >>> is_by_parameter(torch.optim.SGD([torch.zeros(1)]).state_dict()), is_by_parameter({"slow": []})
    (True, False)
    """
    return "state" in state and "param_groups" in state


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the state dict of an optimizer with parameter names instead of indices.

    Quantized states of torchao (``AdamW8bit``) are dicts of their parts, plain tensors. The state of a wrapper that has
    another format is returned as it is.

    Args:
        model: Provides the names; parameters that it does not have are ``"#0"``, ``"#1"``, ... by their index.
        optimizer: The optimizer.

    Raises:
        ValueError: A sharded tensor is in a part of the state that does not belong to a parameter.

    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer_state(model, torch.optim.SGD(model.parameters()))["param_groups"][0]["params"]
    ['weight', 'bias']
    """
    state = optimizer.state_dict()
    if not is_by_parameter(state):
        _require_unsharded(optimizer, state)
        return dict(state)
    names = _names(model, optimizer)
    others = {key: value for key, value in state["state"].items() if not isinstance(key, int)}
    _require_unsharded(optimizer, others)
    return {
        **state,
        "state": {
            names[number]: dequantized_parts(value, names[number])
            for number, value in state["state"].items()
            if number not in others
        },
        "param_groups": [{**group, "params": [names[n] for n in group["params"]]} for group in state["param_groups"]],
        **({_OTHERS: others} if others else {}),
    }


def set_optimizer_state(
    model: nn.Module, optimizer: Optimizer, saved: dict[str, Any], excluded: Collection[str] = ()
) -> None:
    """Load what :func:`optimizer_state` returned into an optimizer.

    Parameter groups, and the parameters in them, may be in another order: each group is matched with the saved group
    that most of its parameters were in. Parameters without saved state (layers that an algorithm has inserted since)
    start without state. Saved state of parameters that the optimizer does not have (layers that are frozen now) is
    ignored. Both cases give a warning. The state of a wrapper that has another format is loaded as it is: the
    optimizer must then have the same parameters in the same order.

    Args:
        model: Provides the names of the parameters.
        optimizer: The optimizer; must have as many parameter groups as the saved one.
        saved: The state; may have indices as in ``Optimizer.state_dict()``, for parameters in the same order.
        excluded: Names of parameters whose saved state is not loaded.

    Raises:
        ValueError: The number of groups differs, the saved state has an unnamed parameter that the optimizer lacks, or
            the saved state is by parameter and that of the optimizer is not, or vice versa.

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
    # A part of a state by parameter, of which patterns have excluded the rest, is rejected by the caller.
    if not is_by_parameter(current) or (saved and not saved.keys() & {"state", "param_groups"}):
        _load_unchanged(optimizer, current, saved, set(names) & set(excluded))
        return
    others = saved.get(_OTHERS, {})
    saved = _by_name({key: value for key, value in saved.items() if key != _OTHERS}, names)
    groups = saved["param_groups"]
    optimizer_name = class_name(optimizer)
    if len(groups) != len(current["param_groups"]):
        raise ValueError(
            f"The checkpoint has {plural(len(groups), 'parameter group')} of {optimizer_name}, but the given "
            f"optimizer has {len(current['param_groups'])}. Create it with the same groups, or skip its state with "
            f"{_SKIP}. Groups that were added during training are added again if they consist of parameters of the "
            f"model that no optimizer has."
        )
    states = {name: value for name, value in saved["state"].items() if name not in excluded}
    known = set(saved["state"]) | {name for group in groups for name in group["params"]}
    if numbered := sorted(name for name in known - set(names) if name.startswith("#")):
        raise ValueError(
            f"The checkpoint has the state of {optimizer_name} by parameter index, and the given optimizer has no "
            f"{first_of(numbered)}. Pass an optimizer of the same parameters, or skip its state with "
            f"{_SKIP}."
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
            "state": {**{numbers[name]: value for name, value in states.items()}, **_on_device(others, optimizer)},
            "param_groups": [
                {**old, "params": now["params"]} for old, now in zip(groups, current["param_groups"], strict=True)
            ],
        }
    )
    host_values_back(optimizer)
    restart_unfinished(optimizer)


def _load_unchanged(
    optimizer: Optimizer, current: Mapping[str, Any], saved: dict[str, Any], excluded: set[str]
) -> None:
    """Load a state that is not by parameter."""
    if is_by_parameter(current) or is_by_parameter(saved):
        raise ValueError(
            f"The checkpoint has the entries {first_of(sorted(map(str, saved)))} for {class_name(optimizer)}, but the "
            f"state_dict of the given optimizer has {first_of(sorted(map(str, current)))}. Create the optimizer as in "
            f"the run that was saved, with or without a wrapper, or skip its state with {_SKIP}."
        )
    if excluded:
        raise ValueError(
            f"The weights of {first_of(sorted(excluded))} are not loaded, but {class_name(optimizer)} has a state_dict "
            f"of its own, which cannot be loaded without them. Skip its state with {_SKIP}."
        )
    optimizer.load_state_dict(saved)


def _require_unsharded(optimizer: Optimizer, state: Any) -> None:
    if any(map(is_dtensor, trees.leaves(state))):
        raise ValueError(
            f"The state of {class_name(optimizer)} has sharded tensors that are not in the state of a parameter, as "
            f"torch.optim.Optimizer.state_dict() returns it, so that they cannot be loaded again. Skip the state "
            f"with save_ignore_keys=['state/optimizers*'], or do not shard the model."
        )


def _on_device(values: Any, optimizer: Optimizer) -> Any:
    """Return values with their tensors on the device of the parameters, where torch leaves them on the host."""
    parameters = _parameters(optimizer)
    if not parameters:
        return values
    device = parameters[0].device
    return trees.map_tensors(lambda tensor: tensor.to(device), values)


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
