"""The losses that the ranks of a run average, as they are saved in checkpoints and restored from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from composer import dist
from composer._text import dtype_name
from composer.checkpoint.rank_values import values_of_ranks

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["get_loss_names", "get_new_losses", "set_loss_names", "set_new_losses"]


def get_loss_names(state: State) -> dict[str, bool] | None:
    """Return the names on which the ranks have agreed, or None if there are none.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> get_loss_names(State(model=torch.nn.Linear(1, 1))) is None
    True
    """
    return dict(state.loss_names.known) or None


def set_loss_names(state: State, saved: Any) -> None:
    """Restore the names on which the ranks have agreed.

    Args:
        state: The state of the run.
        saved: What :func:`get_loss_names` returned.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> set_loss_names(state, {"loss/train/total": False})
    >>> get_loss_names(state)
    {'loss/train/total': False}
    """
    state.loss_names.known.update(saved)  # the all-reduce of the losses has this dict, and goes by its order


def get_new_losses(state: State) -> dict[str, Any] | None:
    """Return what the ranks have not agreed on yet: without it, a resumed run would leave out other losses.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> get_new_losses(State(model=torch.nn.Linear(1, 1))) is None
    True
    """
    names = state.loss_names
    if not names.is_agreed:  # on all ranks or on none
        return None
    own = {name: dtype_name(dtype) for name, dtype in names.new.items()}
    return {"dtype": dtype_name(names.dtype), "ranks": values_of_ranks(own)}


def set_new_losses(state: State, saved: Any) -> None:
    """Restore what the ranks have not agreed on yet.

    Args:
        state: The state of the run.
        saved: What :func:`get_new_losses` returned.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> set_new_losses(state, {"dtype": "float32", "ranks": [{"loss/train/aux": "float64"}]})
    >>> state.loss_names.new
    {'loss/train/aux': torch.float64}
    """
    names, dtypes = state.loss_names, cast("dict[str, torch.dtype]", vars(torch))
    names.dtype, names.is_agreed, names.new = dtypes[saved["dtype"]], True, {}
    # With fewer ranks than before, one knows what several had.
    for of_rank in saved["ranks"][dist.get_global_rank() :: dist.get_world_size()]:
        names.new.update({name: dtypes[dtype] for name, dtype in of_rank.items()})
