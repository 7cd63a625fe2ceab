"""Compare the next start of training with that of a run, for a replay or a fork."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from composer.checkpoint.at_step import CheckpointFacts
from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.trainer.fingerprint.compare import differences, report_differences, warn_of_other_data
from composer.trainer.fingerprint.start import names_of_weights
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.trainer.run import Run

__all__ = ["expect_same_data", "expect_start"]


def expect_start(
    run: Run,
    known: CheckpointFacts,
    start: str,
    *,
    raises: bool = True,
    compare_data: Callable[[], bool] = lambda: True,
) -> None:
    """Let the next ``fit`` compare what it starts from with the fingerprint of another run; all ranks must call this.

    Args:
        run: The run that is about to train.
        known: A checkpoint of the other run.
        start: Where training starts, "seed 17" or the path of a checkpoint.
        raises: Whether other weights and other data are errors rather than warnings.
        compare_data: Returns whether to compare the data.

    >>> from composer import Logger, State
    >>> from composer.core.engine import Engine
    >>> from composer.trainer.run import Run
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> run = Run(state, Engine(state, Logger(state)), Logger(state))
    >>> expect_start(
    ...     run, CheckpointFacts("ep1.pt", 20, fingerprint={"sources": {}}), "ep1.pt", raises=False
    ... )
    >>> run.check_start is None
    False
    """
    state, expected = run.state, known.fingerprint
    at = int(state.timestamp.batch)
    lacks_weights = at == 0 and (expected or {}).get("weights", {}).get("batch") != 0
    if expected is None or (raises and lacks_weights):
        message = (
            f"Whether {'the initial weights and ' if at == 0 else ''}the data are those of the run cannot be told: its "
            f"checkpoints were saved by an earlier version, which did not note them."
        )
        warnings.warn(message, ComposerWarning, stacklevel=4)
    if expected is None:
        return
    advice = f"For this run, replay steps after its checkpoint at batch {known.batch}, if it still has it."

    def check(found: Mapping[str, Any]) -> None:
        names = names_of_weights(state.model)
        changed = run_on_rank_zero(
            lambda: differences(expected, found, names, at=at, compare_data=compare_data()),
            "compare the start of the run",
        )
        report_differences(changed, start, raises=raises, advice=advice)

    run.check_start = check


def expect_same_data(run: Run) -> None:
    """Let the next ``fit`` of a resumed run warn if its data has other elements; all ranks must call this.

    A ``random_split`` without a seed, for example, puts samples of the test data into the training data of the rest.

    Args:
        run: The run, after its checkpoint was loaded.

    >>> from composer import Logger, State
    >>> from composer.core.engine import Engine
    >>> from composer.trainer.run import Run
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> run = Run(state, Engine(state, Logger(state)), Logger(state))
    >>> expect_same_data(run)
    >>> run.check_start is None  # no checkpoint was loaded
    True
    """
    state, expected = run.state, run.state.fingerprint
    if expected is None:
        return
    at = int(state.timestamp.batch)

    def check(found: Mapping[str, Any]) -> None:
        warn_of_other_data(run_on_rank_zero(lambda: differences(expected, found, at=at), "compare the data"))

    run.check_start = check
