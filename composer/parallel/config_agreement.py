"""Check before training that all ranks have the same model, optimizers and settings, since differences cause hangs."""

from __future__ import annotations

import hashlib
import platform
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from composer import dist
from composer._version import __version__
from composer.dist.same_on_all_ranks import disagreements, have_same_digest

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["check_agreement"]

_MAX_SHOWN = 5
# In the representation of functions and objects.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def check_agreement(state: State) -> None:
    """Raise an error if ranks differ in a setting that must be the same, which would hang or give wrong results.

    Compared are the names, shapes and dtypes of the parameters, which of them are trained, the optimizers and their
    parameter groups, the algorithms in their order, the arguments of those of this library, ``max_duration``, the
    precision, the seed, and the versions of composer, torch and Python. All ranks call this once; it costs an
    all-reduce of two numbers, and all-gathers only if ranks differ. In a single process it does nothing.

    Args:
        state: The state of the run, with its final model and optimizers.

    Raises:
        ValueError: Ranks differ; the message lists all differences with the values of each rank.
        MissingRankError: Other ranks did not join before the timeout.

    >>> from composer import State
    >>> check_agreement(State(model=nn.Linear(1, 1), max_duration="1ep"))
    """
    if dist.get_world_size() == 1:
        return
    described = _describe_state(state)
    if have_same_digest(described):
        return
    found = disagreements(dist.all_gather_object(described))
    if not found:
        return
    if "algorithms" in found:
        found.pop("arguments of algorithms", None)
    if "parameters" in found:
        # All ranks know now that they differ, so all of them join this larger all-gather.
        found["parameters"] = _describe_parameter_differences(state.model)
    lines = "\n".join(f"- {name}: {which}" for name, which in found.items())
    raise ValueError(f"All ranks must have the same configuration, but they differ in:\n{lines}")


def _describe_state(state: State) -> dict[str, Any]:
    """Return a short description of everything that must be the same."""
    parameters = "\n".join(f"{name} {what}" for name, what in _describe_parameters(state.model).items())
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "parameters": hashlib.sha256(parameters.encode()).hexdigest()[:12],
        "optimizers": [_describe_optimizer(optimizer) for optimizer in state.optimizers],
        "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
        "arguments of algorithms": [
            _ADDRESS.sub("", repr(algorithm)) for algorithm in state.algorithms if _is_ours(algorithm)
        ],
        "max_duration": None if state.max_duration is None else str(state.max_duration),
        "precision": str(state.precision),
        "seed": state.rank_zero_seed,
        "versions": f"composer {__version__}, torch {torch.__version__}, Python {python}",
    }


def _is_ours(algorithm: Any) -> bool:
    """Return whether the representation of an algorithm has its arguments, and nothing of a single rank."""
    return type(algorithm).__module__.startswith("composer.algorithms.")


def _describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return the class and the number of parameters of each group."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return f"{type(optimizer).__name__} of {', '.join(map(str, sizes))} parameters"


def _describe_parameters(model: nn.Module) -> dict[str, str]:
    """Return a description of each parameter, by name."""
    return {
        name: f"{tuple(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}"
        + ("" if parameter.requires_grad else ", not trained")
        for name, parameter in model.named_parameters()
    }


def _describe_parameter_differences(model: nn.Module) -> str:
    """Describe the first parameters that differ, with the values of each rank, or else that their order differs."""
    everyone = dist.all_gather_object(_describe_parameters(model))
    found = [f"{name} ({which})" for name, which in disagreements(everyone).items()]
    if not found:
        order = disagreements([{"": list(one)[:_MAX_SHOWN]} for one in everyone]).get("", "further down")
        return f"their order ({order})"
    more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return ", ".join(found[:_MAX_SHOWN]) + more
