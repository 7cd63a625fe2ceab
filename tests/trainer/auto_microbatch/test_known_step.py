"""What a step costs whose microbatch size is known, over a step with a fixed size: counted, not timed."""

from __future__ import annotations

import sys

import pytest
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.common import Regression, regression_data, trainer_of

STEPS = 10
MODELS = {
    "plain": lambda: [nn.Linear(4, 4)],
    "norm": lambda: [nn.Linear(4, 4), nn.BatchNorm1d(4)],
    "24 layers": lambda: [nn.Linear(4, 4) for _ in range(24)],
}


class Operators(TorchDispatchMode):
    """Counts operators; a copy of a random state or of a buffer would be one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def counts(layers, size) -> tuple[float, float]:
    """Return the number of operators and the number of calls, of Python and of C, in a step after others."""

    class Layers(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers(), self.linear)

        def forward(self, batch):
            return self.layers(batch[0])

    trainer = trainer_of(Layers(), regression_data(4, 8), max_duration="8ba", device_train_microbatch_size=size)
    trainer.fit()
    with Operators() as operators:
        trainer.fit(duration=f"{STEPS}ba")
    calls = 0

    def profile(frame, event, argument) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        trainer.fit(duration=f"{STEPS}ba")
    finally:
        sys.setprofile(None)
    trainer.close()
    return operators.count / STEPS, calls / STEPS


@pytest.mark.parametrize(("model", "most"), [("plain", 13), ("norm", 17), ("24 layers", 13)])
def test_a_known_step_does_little_more_than_one_of_a_fixed_size(model, most) -> None:
    """It was 18 calls, and 36 with buffers, when each generator and each buffer was copied by calls of its own.

    One call copies the containers of the batch, so that a retry gets it without edits of the attempt before.
    """
    fixed, auto = counts(MODELS[model], 8), counts(MODELS[model], "auto")
    assert auto[0] == fixed[0]
    assert 0 < auto[1] - fixed[1] <= most
