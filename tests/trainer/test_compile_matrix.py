"""CompileMatrix: every algorithm, eager and compiled, together with EMA, saved and resumed."""

from __future__ import annotations

import collections
import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.algorithms import EMA
from composer.checkpoint.file_format import read
from composer.warnings import ComposerWarning
from tests.algorithms.cases import Case, all_cases

CASES = all_cases()
pytestmark = pytest.mark.slow


def build(case: Case, compiled: bool, **arguments: Any) -> Trainer:
    """A run of a method and EMA over the case's four batches."""
    torch.compiler.reset()
    torch.manual_seed(3)
    model = case.model()
    if hasattr(model, "seen"):
        model.seen = collections.deque(maxlen=0)  # a list that grows would be compiled again in each step
    method = case.make()
    return Trainer(
        model=model,
        train_dataloader=case.batches(),
        max_duration="1ep",
        optimizers=case.optimizer(model),
        algorithms=[method] if isinstance(method, EMA) else [method, EMA(half_life="2ba")],
        precision=case.precision,
        compile_config={"backend": lambda graph, inputs: graph.forward} if compiled else None,
        progress_bar=False,
        seed=3,
        **arguments,
    )


@contextlib.contextmanager
def quiet() -> Any:
    """Let methods say that they compose badly with EMA, or replay data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)
        yield


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """A state with lists of names as keys, which `assert_close` compares; it has no rule for other texts."""
    return {
        key: dict.fromkeys(value, 0)
        if isinstance(value, list) and all(isinstance(one, str) for one in value)
        else value
        for key, value in state.items()
    }


def state_of(trainer: Trainer) -> dict[str, Any]:
    state = trainer.state
    return {
        "model": {name: value.clone() for name, value in state.model.state_dict().items()},
        "algorithms": [_comparable({**algorithm.state_dict(), "repr": 0}) for algorithm in state.algorithms],
    }


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_CompileMatrix_with_an_average_and_a_checkpoint(case, compiled, tmp_path: Path) -> None:
    with quiet():
        straight = build(case, compiled, save_folder=str(tmp_path), save_interval="1ba")
        straight.fit()
        path = next(tmp_path.glob("ep0-ba2-*.pt"))
        resumed = build(case, compiled, load_path=str(path))
        resumed.fit()
    found, expected = state_of(resumed), state_of(straight)
    if case.name == "ScheduleFree":
        # Its statistics of batch normalization come from the last batches, of which a resumed run has seen fewer.
        found, expected = ({n: v for n, v in one["model"].items() if "running" not in n} for one in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    content = read(path)["state"]
    assert not [name for name in content["model"] if "_orig_mod" in name]
    assert not [name for state in content["optimizers"].values() for name in state["state"] if "_orig_mod" in name]
