"""The position in the training data, as it is saved in checkpoints and restored from them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from composer import dist, rng
from composer.checkpoint.rank_values import is_gathered_everywhere, values_of_ranks
from composer.core.epoch_iterator import EpochIterator
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.phase import Phase
    from composer.core.state import State

__all__ = ["get_data_position", "set_data_position"]

# The names in saved checkpoints.
_FIRST_BATCH_RNG = "first_draws"
_EXTRA_BATCHES = "extra_batches"


def get_data_position(state: State) -> dict[str, Any]:
    """Return the position in the training data; all ranks must call this.

    It is that of the timestamp: if the batch of the current step was fetched already, but does not count yet, the
    position is before this batch.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> get_data_position(State(model=torch.nn.Linear(1, 1)))["train"] is None
    True
    """
    phase = state.train_phase
    with _rng_of_training(state):  # finding the position may fetch the next batch
        position = _position_of(phase)
    found = {"train": position, "eval": {}, _FIRST_BATCH_RNG: values_of_ranks(_first_batch_rng(state))}
    return {**found, _EXTRA_BATCHES: phase.extra_batches} if phase.extra_batches else found


@contextlib.contextmanager
def _rng_of_training(state: State) -> Generator[None]:
    """Use the random state with which training continues, also within an evaluation, which restores it at its end."""
    if state.rng_before_evaluation is None:
        yield
        return
    with rng.preserve_rng_state():
        rng.set_local_rng_state(state.rng_before_evaluation)
        yield


def _position_of(phase: Phase) -> dict[str, Any] | None:
    """Return the position in the training data; None if it is unknown, or the data begins."""
    iterators, everywhere = phase.epoch_iterators, is_gathered_everywhere()
    if iterators is not None and isinstance(phase.iterator, EpochIterator):
        done, uncounted = int(phase.timestamp.sample_in_epoch), phase.num_fetched if phase.in_step else 0
        sized = phase.is_sized(phase.batches_loaded)
        _warn_in_step(phase, phase.iterator, uncounted)
        position = iterators.position(phase.iterator, done, uncounted=uncounted, sized=sized, everywhere=everywhere)
        return {**position, "begun": True} if _has_begun(phase, phase.iterator, uncounted) else position
    if iterators is not None and phase.last_epoch is not None and iterators.loader is phase.loader.dataloader:
        if isinstance(phase.last_epoch, dict):
            return phase.last_epoch
        sized = phase.is_sized(phase.last_epoch[2])
        return iterators.position_after(*phase.last_epoch, sized=sized, everywhere=everywhere)
    return phase.resume_position if phase.iterator is None else None  # loaded, but training has not resumed yet


def _has_begun(phase: Phase, iterator: EpochIterator, uncounted: int) -> bool:
    """Return whether an epoch resumes from the state of data before its first batch, which does not count yet.

    That state may hold more than a position, as between two epochs. Other data needs none.
    """
    is_at_start = phase.timestamp.batch_in_epoch.value == 0
    return is_at_start and iterator.has_state_dict and (not uncounted or iterator.can_step_back)


def _warn_in_step(phase: Phase, iterator: EpochIterator, uncounted: int) -> None:
    """Warn if the position before the fetched batches of the current step is unknown."""
    if not uncounted or iterator.can_step_back or phase.timestamp.batch.value == 0:
        return  # a run that resumes at batch 0 begins with new data
    what = "leaves that batch out" if phase.timestamp.batch_in_epoch.value else "begins this epoch with new data"
    message = (
        f"A checkpoint is saved within step {phase.timestamp.batch.value}, whose batch does not count yet, and the "
        f"state_dict of {iterator.stateful_name} has no position before that batch: a run that resumes from the "
        f"checkpoint {what}. Save at BATCH_END or BATCH_CHECKPOINT, or at BEFORE_DATALOADER, before it is fetched."
    )
    warnings.warn(message, ComposerWarning, stacklevel=2)


def _first_batch_rng(state: State) -> dict[str, Any]:
    """Return the random states before the first batches of this rank, by mode and label."""
    phases = {"train": state.train_phase, "eval": state.eval_phase}
    found = {
        mode: {label: first.state for label, first in phase.first_batch_rng.items()} for mode, phase in phases.items()
    }
    return {
        mode: {label: rng_state for label, rng_state in by.items() if rng_state is not None}
        for mode, by in found.items()
    }


def set_data_position(state: State, saved: Any) -> None:
    """Restore the position in the training data, at which training resumes.

    Args:
        state: The state of the run; its timestamp is restored.
        saved: What :func:`get_data_position` returned.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> set_data_position(state, get_data_position(state))
    >>> state.train_phase.resume_position is None
    True
    """
    phase = state.train_phase
    phase.iterator = None
    phase.last_epoch = None
    phase.extra_batches = int(saved.get(_EXTRA_BATCHES, 0))
    ranks = saved.get(_FIRST_BATCH_RNG, [])
    if dist.get_global_rank() < len(ranks):
        mine = ranks[dist.get_global_rank()]
        for one, mode in ((phase, "train"), (state.eval_phase, "eval")):
            for label, rng_state in mine[mode].items():
                one.first_batch_rng[label].load(rng_state)
    position = saved.get("train")
    if phase.timestamp.batch_in_epoch.value == 0:
        # Either after the previous epoch, or within the first step of this one, whose order was drawn. Without one of
        # these marks, the state of data may be that after the batch of this step.
        is_known = isinstance(position, dict) and (
            position.keys() & {"begun", "ended"} or position.get("kind") == "replay"
        )
        phase.resume_position = position if is_known else None
    elif isinstance(position, dict) and "kind" in position:
        phase.resume_position = position
    else:
        # MosaicML Composer saved the state of a dataset, or None if it fetched the earlier batches again.
        phase.resume_position = (
            {"kind": "dataset", "state": position} if position is not None else {"kind": "any", "rng": None}
        )
