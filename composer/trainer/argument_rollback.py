"""Roll back a run if an argument of ``fit`` is invalid, so that none of the arguments takes effect."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from composer.trainer.run import Run
from composer.trainer.schedules import as_schedulers

__all__ = ["all_or_nothing"]


@contextlib.contextmanager
def all_or_nothing(run: Run, schedulers: Any = None) -> Generator[None]:
    """Restore a run if the block, which applies arguments, raises.

    Args:
        run: The run. Weights and optimizer states are not restored; the block must not change them.
        schedulers: Schedules that the block applies, and scales in place.

    >>> from composer import Engine, Logger, State
    >>> from composer.trainer.run import Run
    >>> state = State(model=torch.nn.Linear(1, 1), max_duration="1ep")
    >>> logger = Logger(state)
    >>> try:
    ...     with all_or_nothing(Run(state, Engine(state, logger), logger)):
    ...         state.max_duration = "2ep"
    ...         raise ValueError("another argument is wrong")
    ... except ValueError:
    ...     print(state.max_duration)
    1ep
    """
    state = run.state
    theirs = [entry for entry in as_schedulers(schedulers) if isinstance(entry, LRScheduler)]
    kept = [(one, dict(vars(one))) for one in (run, state, state.train_phase, *state.schedulers, *theirs)]
    # Setters of the state keep the list object and replace its entries.
    lists = [(value, list(value)) for value in vars(state).values() if isinstance(value, list)]
    metrics = dict(state.eval_metrics)
    groups = [(group, dict(group)) for optimizer in state.optimizers for group in optimizer.param_groups]
    try:
        yield
    except BaseException:
        for one, before in kept:
            vars(one).clear()
            vars(one).update(before)
        for changed, entries in lists:
            if [*map(id, changed)] != [*map(id, entries)]:
                changed[:] = entries
        for changed, before in ((state.eval_metrics, metrics), *groups):
            changed.clear()
            changed.update(before)
        raise
