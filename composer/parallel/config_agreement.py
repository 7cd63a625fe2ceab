"""Checking, before they train together, that all processes have the same run in mind."""

from __future__ import annotations

import hashlib
import platform
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from composer import dist
from composer._version import __version__
from composer.dist.same_on_all_ranks import disagreements

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["check_agreement"]

_SHOWN = 5


def check_agreement(state: State) -> None:
    """Refuse to train where processes differ in what has to be the same, which would hang or train nonsense.

    That is: names, shapes and dtypes of the parameters, which of them are trained, the optimizers and how they group
    parameters, the algorithms in their order, ``max_duration``, the precision, the seed, and the versions of composer,
    torch and Python. All processes call this, once; it costs one exchange of objects. With one process it does nothing.

    Args:
        state: The state of the run, with the model and the optimizers that it will have.

    Raises:
        ValueError: Processes differ; names which ranks have what, for all that differs at once.
        AbsentRankError: Others did not come in time.

    >>> from composer import State
    >>> check_agreement(State(model=nn.Linear(1, 1), max_duration="1ep"))
    """
    if dist.get_world_size() == 1:
        return
    found = disagreements(dist.all_gather_object(_described(state)))
    if not found:
        return
    if "parameters" in found:
        # All know by now that they differ, so that all send what fills more than a line.
        found["parameters"] = _different_parameters(state.model)
    lines = "\n".join(f"- {name}: {which}" for name, which in found.items())
    raise ValueError(f"All processes must have the same, but they differ in:\n{lines}")


def _described(state: State) -> dict[str, Any]:
    """What has to be the same, in short."""
    parameters = "\n".join(f"{name} {what}" for name, what in _parameters(state.model).items())
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "parameters": hashlib.sha256(parameters.encode()).hexdigest()[:12],
        "optimizers": [_optimizer(optimizer) for optimizer in state.optimizers],
        "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
        "max_duration": None if state.max_duration is None else str(state.max_duration),
        "precision": str(state.precision),
        "seed": state.rank_zero_seed,
        "versions": f"composer {__version__}, torch {torch.__version__}, Python {python}",
    }


def _optimizer(optimizer: torch.optim.Optimizer) -> str:
    """The class, and how many parameters each group has."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} of {', '.join(map(str, sizes))} parameters"


def _parameters(model: nn.Module) -> dict[str, str]:
    """What each parameter is, by name."""
    return {
        name: f"{tuple(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}"
        + ("" if parameter.requires_grad else ", not trained")
        for name, parameter in model.named_parameters()
    }


def _different_parameters(model: nn.Module) -> str:
    """Say of the first parameters that differ which ranks have what; of those in another order, that it is so."""
    everyone = dist.all_gather_object(_parameters(model))
    found = [f"{name} ({which})" for name, which in disagreements(everyone).items()]
    if not found:
        return f"their order ({disagreements([{'': list(one)[:_SHOWN]} for one in everyone]).get('', 'further down')})"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
