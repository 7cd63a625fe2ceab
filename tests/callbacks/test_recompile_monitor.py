"""RecompileMonitor: what it counts, and the reasons that it reports."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from composer.callbacks import RecompileMonitor
from composer.models import ComposerClassifier
from tests.callbacks.cases import Case, run_with
from tests.common import labeled_data

EAGER = {"backend": "eager"}
NAMES = ("compile/compilations", "compile/recompilations", "compile/seconds")
CASE = Case(make=lambda folder: RecompileMonitor(), logs=NAMES, arguments=lambda: {"compile_config": EAGER})
# torch hides it by its function that shows warnings, which is not called where warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def blocks() -> ComposerClassifier:
    return ComposerClassifier(nn.Sequential(nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 3)), 3)


def ragged() -> list[Any]:
    """Four batches, of which the last is short."""
    *first, (x, y) = labeled_data()
    return [*first, (x[:-2], y[:-2])]


@pytest.mark.parametrize(("config", "name"), [({}, "forward_and_loss"), ({"regional": True}, "Block_0")])
def test_recompilations_are_counted_and_reported(config: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    monitor = RecompileMonitor()
    with caplog.at_level(logging.INFO, "composer"):
        run = run_with(monitor, model=blocks(), data=ragged(), compile_config={**EAGER, **config}, max_duration="2ep")
        run.trainer.fit()
    assert (monitor.compilations, monitor.recompilations) == (2, 1)
    assert [run.steps(each) for each in NAMES] == [[1, 4]] * 3
    assert run.values("compile/recompilations") == [0, 1]
    assert 0 < run.values("compile/seconds")[0] < run.values("compile/seconds")[1] == monitor.seconds
    (line,) = [record.getMessage() for record in caplog.records if "was compiled again" in record.getMessage()]
    assert line.startswith(f"{name} was compiled again, in ")
    assert "size mismatch at index 0. expected " in line


def test_evaluation_is_a_recompilation() -> None:
    monitor = RecompileMonitor()
    more = {"compile_config": {**EAGER, "regional": True}, "eval_dataloader": labeled_data()}
    run_with(monitor, model=blocks(), **more).trainer.fit()
    assert (monitor.compilations, monitor.recompilations) == (2, 1)


def test_earlier_compilations_are_not_counted() -> None:
    run_with(model=blocks(), compile_config=EAGER).trainer.fit()
    monitor = RecompileMonitor()
    run = run_with(monitor, model=blocks())
    run.trainer.fit()
    assert monitor.compilations == 0
    assert not set(NAMES) & run.names


@pytest.mark.parametrize("before", ["eval", "eval_batches_before_fit"])
def test_earlier_compilations_are_not_counted_by_an_evaluation_before_training(before: str) -> None:
    for _ in range(2):
        run_with(model=blocks(), compile_config=EAGER).trainer.fit()
    monitor = RecompileMonitor()
    more: Any = {"eval_batches_before_fit": 1} if before == "eval_batches_before_fit" else {}
    run = run_with(monitor, model=blocks(), compile_config=EAGER, eval_dataloader=labeled_data(), **more)
    if before == "eval":
        run.trainer.eval()
        assert monitor.compilations == 1
    run.trainer.fit()
    # The forward pass for the evaluation, and forward and loss for training.
    assert (monitor.compilations, monitor.recompilations) == (2, 0)


def test_backward_passes_are_no_compilations() -> None:
    monitor = RecompileMonitor()
    run_with(monitor, model=blocks(), compile_config={"backend": "aot_eager", "regional": True}).trainer.fit()
    assert (monitor.compilations, monitor.recompilations) == (1, 0)
