"""Recover after an exception inside a step: train the batch again, and finish outstanding collectives."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch

from composer import dist
from composer.core.epoch_iterator import EpochIterator
from composer.optim.unfinished_lbfgs import restart_unfinished
from composer.trainer.run import Run
from composer.warnings import ComposerWarning

__all__ = ["reset_failed_step", "rewind_batch"]


def rewind_batch(run: Run) -> None:
    """Make the next ``fit`` train the current batch again, after an exception before the optimizers stepped.

    A ``DataLoader`` fetches the batch again; for other data the batch itself is kept. A warning is raised if the batch
    cannot be restored: the optimizers may have stepped, or data that can be read only once failed.

    Args:
        run: The run.
    """
    phase, fetched, run.fetched = run.state.train_phase, run.fetched, None
    is_complete, run.is_fetching, phase.in_step = not run.is_fetching, False, False
    if fetched is None:
        return
    run.last_fit_failed = True
    if run.uneven_inputs is not None and run.uneven_inputs.is_idle:
        return  # a dummy batch of a rank without data
    if run.gradients_ready:
        _warn(run, "was raised while the optimizers stepped, so some or all parameters may be updated")
    elif isinstance(phase.iterator, EpochIterator) and phase.epoch_iterators is not None:
        epoch, batch = int(phase.timestamp.epoch), phase.batches_loaded
        if not phase.epoch_iterators.rewind(phase.iterator, epoch, batch, fetched, is_complete=is_complete):
            _warn(run, "was raised with data that cannot be read again from that position")
    else:
        phase.iterator = None  # repeated batches, whose position is known


def reset_failed_step(run: Run) -> None:
    """Reset the state of a step that an exception interrupted; all ranks call this when training starts.

    Args:
        run: The run.

    Raises:
        RuntimeError: The ranks have trained different numbers of batches.
    """
    if run.step_sync is not None:
        run.step_sync.discard()
        batch = run.state.timestamp.batch.value
        reduced = torch.tensor([int(run.last_fit_failed), batch, -batch])
        dist.all_reduce(reduced, "MAX")
        run.last_fit_failed, largest, smallest = bool(reduced[0]), int(reduced[1]), -int(reduced[2])
        if largest != smallest:
            raise RuntimeError(
                f"The ranks have trained different numbers of batches, {smallest} to {largest}: an exception ended the "
                f"last fit after different batches. Load a checkpoint on all ranks to continue."
            )
    if not run.last_fit_failed:
        return
    run.last_fit_failed = False
    run.strategy.discard_batch(run.state)
    for optimizer in run.state.optimizers:
        restart_unfinished(optimizer)
    if run.state.scaler is not None:
        # Otherwise the gradient scaler raises an error when it unscales the gradients again.
        cast("Any", run.state.scaler)._per_optimizer_states.clear()


def _warn(run: Run, reason: str) -> None:
    number = run.state.train_phase.timestamp.batch.value
    message = f"An exception in batch {number} {reason}. The next fit continues with the following batch."
    warnings.warn(message, ComposerWarning, stacklevel=3)
