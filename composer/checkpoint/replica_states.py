"""Save and load what differs between replicas that train apart (DiLoCo, local SGD): weights and optimizer states.

Rank 0 writes the checkpoint. Its own states are in the entries of every checkpoint, so that other programs and other
numbers of ranks can load them; ``"model"`` has the last synchronized weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist, trees
from composer._text import plural
from composer.dist.hang_report import InCollective
from composer.dist.simulation import is_simulated
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["gather_replicas", "model_state", "of_replica", "warn_of_other_replicas"]


def model_state(state: State) -> dict[str, Any]:
    """Return the weights to save as those of the model: the last synchronized ones, which all replicas share.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> list(model_state(State(model=torch.nn.Linear(1, 1))))
    ['weight', 'bias']
    """
    model = state.model
    return dict(model.state_dict()) if state.replicas is None else state.replicas.synchronized_state(model)


def gather_replicas(state: State, states: Callable[[State], dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return what differs between the replicas, one entry for each, on rank 0; None on other ranks.

    Each entry has the weights as ``"model"`` unless all replicas share them, and those of other replicas than the first
    the results of ``states``.

    Args:
        state: The state of the run; all ranks call this.
        states: Returns the states of this replica by the names of the entries of a checkpoint.

    >>> from composer import State
    >>> gather_replicas(State(model=torch.nn.Linear(1, 1)), lambda state: {}) is None
    True
    """
    replicas = state.replicas
    if replicas is None or not replicas.is_first:
        return None
    own: dict[str, Any] = {} if replicas.index == 0 else states(state)
    if replicas.synchronized is not None:
        own["model"] = replicas.local_state(state.model)
    if replicas.count == 1:
        return [own] if own else None
    if is_simulated():
        return [own] * replicas.count
    gathered: list[Any] | None = [None] * replicas.count if replicas.index == 0 else None
    sent = None if replicas.index == 0 else trees.map_tensors(lambda tensor: tensor.detach().cpu(), own)
    with InCollective(replicas.first_ranks):
        torch_dist.gather_object(sent, gathered, dst=0, group=replicas.first_ranks)
    return None if gathered is None else [own, *gathered[1:]]


def of_replica(state: State, saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the states that the replica of this rank resumes with, by the names of the entries of a checkpoint.

    On the saved number of replicas these are its own. On another number, the weights are the average of all replicas,
    and the other states those of the replica of its index modulo the saved number.

    Args:
        state: The state of the run.
        saved: The entry of a checkpoint.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1, bias=False))
    >>> of_replica(
    ...     state, [{"model": {"weight": torch.ones(1, 1)}}, {"model": {"weight": torch.zeros(1, 1)}}]
    ... )
    {'model': {'weight': tensor([[0.5000]])}}
    """
    replicas = state.replicas
    count, index = (1, 0) if replicas is None else (replicas.count, replicas.index)
    own = dict(saved[index % len(saved)])
    if count != len(saved) and "model" in own:
        own["model"] = _average([one["model"] for one in saved])
    return own


def warn_of_other_replicas(state: State, saved: Sequence[Any]) -> None:
    """Warn if a checkpoint was saved with another number of replicas than the run has.

    Args:
        state: The state of the run.
        saved: The entry of the checkpoint.

    >>> from composer import State
    >>> warn_of_other_replicas(State(model=torch.nn.Linear(1, 1)), [{}])
    """
    count = 1 if state.replicas is None else state.replicas.count
    if count != len(saved) and dist.get_global_rank() == 0:
        message = (
            f"The checkpoint was saved by {plural(len(saved), 'replica')}, but there {'is' if count == 1 else 'are'} "
            f"now {count}: training continues from the average of their weights."
        )
        warnings.warn(message, ComposerWarning, stacklevel=2)


def _average(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the average of state dicts; integers are those of the first."""

    def mean(name: str, first: Any) -> Any:
        if not isinstance(first, Tensor) or not (first.is_floating_point() or first.is_complex()):
            return first
        wide = torch.promote_types(first.dtype, torch.float32)
        total = torch.stack([cast(Tensor, one[name]).to(wide) for one in states]).mean(0)
        return total.to(first.dtype)

    return {name: mean(name, first) for name, first in states[0].items()}
