"""The state of a run as a dict, as scripts read and write it."""

from __future__ import annotations

import io
import subprocess
import sys

import torch

from composer.algorithms import EMA
from tests.common import Regression, trainer_of, weights
from tests.design import ROOT


def test_script_that_writes_its_own_checkpoint() -> None:
    """As llm-foundry does: it takes parts out, and puts others in their place."""
    trainer = trainer_of(algorithms=EMA(half_life="2ba"), seed=3)
    trainer.fit()
    saved = trainer.state.state_dict()
    assert {"model", "optimizers", "algorithms", "callbacks", "timestamp", "metadata"} <= saved.keys()
    saved.pop("model")
    saved["model"] = trainer.state.model.state_dict()
    file = io.BytesIO()
    torch.save({"state": saved}, file)
    file.seek(0)
    again = trainer_of(Regression(), algorithms=EMA(half_life="2ba"), seed=4)
    loaded = torch.load(file, weights_only=True)["state"]
    names = sorted(loaded)
    again.state.load_state_dict(loaded, again.logger, strict=True)
    assert sorted(loaded) == names
    assert torch.equal(weights(again), weights(trainer))
    assert again.state.timestamp == trainer.state.timestamp
    averages = [one.state.algorithms[0].state_dict()["averages"] for one in (trainer, again)]
    torch.testing.assert_close(*averages)


def test_error_names_the_import() -> None:
    program = (
        "import torch\nfrom composer.core.state import State\n"
        "try:\n    State(model=torch.nn.Linear(1, 1)).state_dict()\nexcept RuntimeError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert "require composer.trainer; import it first" in found.stdout, found.stderr
