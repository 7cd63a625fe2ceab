"""The microbatch sizes that "auto" has found, as they are saved in checkpoints and restored from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import dist
from composer.checkpoint.rank_values import values_of_ranks
from composer.core.microbatch_sizes import TRAIN_SIZES, MicrobatchSizes

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["get_microbatch_sizes", "set_microbatch_sizes"]


def get_microbatch_sizes(state: State) -> list[dict[str, Any]] | None:
    """Return the sizes of each rank, which depend on the shapes of its batches; None without "auto".

    With other microbatches, sums would be rounded otherwise. All ranks must call this.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> get_microbatch_sizes(State(model=torch.nn.Linear(1, 1))) is None
    True
    """
    if not (state.auto_microbatching or any(evaluator.auto_microbatching for evaluator in state.evaluators)):
        return None
    found = {
        name: sizes.state_dict()
        for name, sizes in state.microbatch_sizes.items()
        if name != TRAIN_SIZES or state.auto_microbatching
    }
    return values_of_ranks(found)


def set_microbatch_sizes(state: State, saved: Any) -> None:
    """Restore the sizes of this rank; on another number of ranks, they are searched again.

    Args:
        state: The state of the run.
        saved: What :func:`get_microbatch_sizes` returned.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> set_microbatch_sizes(state, [{"train": MicrobatchSizes(start=4).state_dict()}])
    >>> state.microbatch_sizes["train"].choose(((3,),), samples=8)
    4
    """
    state.microbatch_sizes = {}
    if len(saved) != dist.get_world_size():
        return
    for name, sizes in saved[dist.get_global_rank()].items():
        state.microbatch_sizes[name] = MicrobatchSizes()
        state.microbatch_sizes[name].load_state_dict(sizes)
