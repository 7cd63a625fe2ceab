"""Add the parameter groups that the saved run had added to an optimizer during training, before its state is loaded."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composer._text import first_of

__all__ = ["add_saved_groups"]

_log = logging.getLogger(__name__)


def add_saved_groups(
    model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Any], others: Sequence[Optimizer] = ()
) -> None:
    """Add the groups that only the saved optimizer has, with their hyperparameters; otherwise change nothing.

    Each of them must consist of parameters of the model that no optimizer has. They become trainable, since groups are
    added to train what was frozen, except those without saved state in a group of which others have one.

    Args:
        model: Has the parameters.
        optimizer: The optimizer.
        saved: Its saved state, by parameter name.
        others: The other optimizers of the run.

    >>> from composer.checkpoint.optimizer_states import optimizer_state
    >>> model = torch.nn.Linear(1, 1)
    >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
    >>> saved = optimizer_state(model, torch.optim.SGD(groups, lr=0.1))
    >>> optimizer = torch.optim.SGD([model.weight], lr=0.1)
    >>> add_saved_groups(model, optimizer, saved)
    >>> optimizer.param_groups[1]["params"][0] is model.bias, optimizer.param_groups[1]["lr"]
    (True, 0.5)
    """
    groups = saved.get("param_groups", [])
    num_added = len(groups) - len(optimizer.param_groups)
    if num_added <= 0:
        return
    taken = {id(p) for one in (optimizer, *others) for group in one.param_groups for p in group["params"]}
    free = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in taken}
    added = [group for group in groups if group["params"] and free.keys() >= set(group["params"])]
    if len(added) != num_added:
        return  # loading the state raises an error that names the remedy
    for group in added:
        names, settings = list(group["params"]), {key: value for key, value in group.items() if key != "params"}
        parameters: list[Any] = [free[name] for name in names]
        if "param_names" in settings:  # the optimizer was created with named parameters
            parameters = list(zip(settings.pop("param_names"), parameters, strict=True))
        optimizer.add_param_group({**copy.deepcopy(settings), "params": parameters})
        for name in [name for name in names if name in saved.get("state", ())] or names:
            free[name].requires_grad_(True)
        _log.warning(
            "A parameter group that the saved run had added during training is added to %s, and is trainable: %s.",
            type(optimizer).__name__,
            first_of(names),
        )
