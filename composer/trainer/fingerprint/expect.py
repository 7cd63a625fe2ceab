"""Compare the next start of training with that of a run, for a replay or a fork."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.trainer.fingerprint.compare import differences, report_differences
from composer.trainer.fingerprint.start import names_of_weights
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.trainer.run import Run

__all__ = ["expect_start"]


def expect_start(
    run: Run,
    expected: Mapping[str, Any] | None,
    start: str,
    *,
    raises: bool = True,
    compare_data: bool = True,
    advice: str = "",
) -> None:
    """Let the next ``fit`` compare what it starts from with the fingerprint of a run; all ranks must call this.

    Args:
        run: The run that is about to train.
        expected: The fingerprint in a checkpoint of the other run; None if that was saved by an earlier version.
        start: Where training starts, "seed 17" or the path of a checkpoint.
        raises: Whether other weights and other data are errors rather than warnings.
        compare_data: Whether to compare the data.
        advice: How to replay the run in spite of other initial weights.

    >>> from composer import Logger, State
    >>> from composer.core.engine import Engine
    >>> from composer.trainer.run import Run
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> run = Run(state, Engine(state, Logger(state)), Logger(state))
    >>> expect_start(run, {"sources": {}}, "seed 1")
    >>> run.check_start is None
    False
    """
    state = run.state
    at = state.timestamp.batch.value
    lacks_weights = at == 0 and (expected or {}).get("weights", {}).get("batch") != 0
    if expected is None or (raises and lacks_weights):
        message = (
            f"Whether {'the initial weights and ' if at == 0 else ''}the data are those of the run cannot be told: its "
            f"checkpoints were saved by an earlier version, which did not note them."
        )
        warnings.warn(message, ComposerWarning, stacklevel=4)
    if expected is None:
        return
    known = expected

    def check(found: Mapping[str, Any]) -> None:
        names = names_of_weights(state.model)
        changed = run_on_rank_zero(
            lambda: differences(known, found, names, at=at, compare_data=compare_data), "compare the start of the run"
        )
        report_differences(changed, start, raises=raises, advice=advice)

    run.check_start = check
