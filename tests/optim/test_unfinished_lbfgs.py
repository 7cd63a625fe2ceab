"""LBFGS whose first step was not completed, in a checkpoint or by an exception, begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, Event, State, Trainer
from composer.checkpoint import save_checkpoint
from tests.common import Regression, trainer_of, weights


class InEvaluation(Callback):
    """Calls a function in one evaluation of the loss, counted from 1, of a step."""

    def __init__(self, function: Any, step: int, number: int) -> None:
        self.function, self.place, self.count = function, (step, number), 0

    def run_event(self, event: Event, state: State, logger: Any) -> None:
        if event is Event.AFTER_LOSS and state.timestamp.batch == self.place[0]:
            self.count += 1
            if self.count == self.place[1]:
                self.function(state)


def trainer(line_search: str | None, *callbacks: Callback, **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    model = Regression()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn=line_search)
    return trainer_of(model, optimizers=optimizer, callbacks=list(callbacks), **arguments)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_a_checkpoint_saved_in_any_evaluation_resumes(line_search: Any, number: int, step: int, tmp_path: Path) -> None:
    path = str(tmp_path / "within.pt")
    saving = InEvaluation(lambda state: save_checkpoint(state, path), step, number)
    whole = trainer(line_search, saving)
    whole.fit()
    saved = torch.load(path, weights_only=True)["state"]["optimizers"]["LBFGS"]["state"]
    resumed = trainer(line_search, load_path=path)
    resumed.fit()
    assert resumed.state.timestamp.batch == 4 and bool(weights(resumed).isfinite().all())
    if number == 1:  # of the weights before the step
        assert torch.equal(weights(resumed), weights(whole))
    elif step == 0:
        assert saved["linear.weight"]["n_iter"] > 0 and "d" not in saved["linear.weight"]


def test_training_goes_on_after_an_exception_in_the_first_step() -> None:
    def fail(state: State) -> None:
        raise RuntimeError("once")

    failing = trainer(None, InEvaluation(fail, 0, 3))
    with pytest.raises(RuntimeError, match="once"), pytest.warns(UserWarning, match="while the optimizers stepped"):
        failing.fit()
    failing.fit()
    assert bool(weights(failing).isfinite().all())
