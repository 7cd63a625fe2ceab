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
from composer.checkpoint.named_states import as_named, class_of, name_of
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


def of_replica(state: State, saved: Sequence[Mapping[str, Any]], algorithms: Any = ()) -> dict[str, Any]:
    """Return the states that the replica of this rank resumes with, by the names of the entries of a checkpoint.

    On the saved number of replicas, and if the saved state of the method that synchronizes them is loaded, these are
    its own. Otherwise the weights are the average of all replicas: no rank may start a round from its own. The other
    states are those of the replica of its index modulo the saved number.

    Args:
        state: The state of the run.
        saved: The entry of a checkpoint.
        algorithms: The entry ``"algorithms"`` of that checkpoint.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1, bias=False))
    >>> of_replica(
    ...     state, [{"model": {"weight": torch.ones(1, 1)}}, {"model": {"weight": torch.zeros(1, 1)}}]
    ... )
    {'model': {'weight': tensor([[0.5000]])}}
    """
    count, index = _place(state)
    own = dict(saved[index % len(saved)])
    if "model" in own and (count != len(saved) or not _continues_round(state, algorithms)):
        own["model"] = _average([one["model"] for one in saved])
    return own


def warn_of_other_replicas(state: State, saved: Sequence[Mapping[str, Any]], algorithms: Any = ()) -> None:
    """Warn if the run has another number of replicas than a checkpoint, or does not continue its round.

    Args:
        state: The state of the run.
        saved: The entry of the checkpoint.
        algorithms: The entry ``"algorithms"`` of that checkpoint.

    >>> from composer import State
    >>> warn_of_other_replicas(State(model=torch.nn.Linear(1, 1)), [{}])
    """
    count, _ = _place(state)
    if count != len(saved):
        message = (
            f"The checkpoint was saved by {plural(len(saved), 'replica')}, but there {'is' if count == 1 else 'are'} "
            f"now {count}: training continues from the average of their weights."
        )
    elif count > 1 and "model" in saved[0] and not _continues_round(state, algorithms):
        method = " and ".join(name_of(one) for one in _methods(state))
        message = (
            f"The checkpoint was saved in the middle of a round, but without a state of {method} that could continue "
            f"it: training continues from the average of the weights of its {len(saved)} replicas."
        )
    else:
        return
    if dist.get_global_rank() == 0:
        warnings.warn(message, ComposerWarning, stacklevel=2)


def _place(state: State) -> tuple[int, int]:
    """Return the number of replicas of the run, and the index of that of this rank."""
    return (1, 0) if state.replicas is None else (state.replicas.count, state.replicas.index)


def _methods(state: State) -> list[Any]:
    """Return the algorithms that synchronize the replicas."""
    return [one for one in state.algorithms if one.replica_size is not None]


def _continues_round(state: State, algorithms: Any) -> bool:
    """Return whether the saved state of the method that synchronizes the replicas is loaded into that of the run."""
    saved = {class_of(name) for name in as_named(algorithms)}
    return any(name_of(one) in saved for one in _methods(state))


def _average(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the average of state dicts; integers are those of the first."""

    def mean(name: str, first: Any) -> Any:
        if not isinstance(first, Tensor) or not (first.is_floating_point() or first.is_complex()):
            return first
        wide = torch.promote_types(first.dtype, torch.float32)
        total = torch.stack([cast(Tensor, one[name]).to(wide) for one in states]).mean(0)
        return total.to(first.dtype)

    return {name: mean(name, first) for name, first in states[0].items()}
