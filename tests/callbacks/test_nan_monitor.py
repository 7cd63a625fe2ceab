"""NaNMonitor: when it raises, and that on an accelerator no step waits for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer import ComposerModel, Engine, State
from composer.callbacks import NaNMonitor
from composer.callbacks._async_readback import Readback
from composer.core.timestamp import Timestamp
from tests.callbacks.cases import Case, run_with
from tests.common import labeled_data, weights_of

CASE = Case(make=lambda folder: NaNMonitor())

NAN, FINE = torch.tensor(float("nan")), torch.tensor(1.0)


def check(loss: object) -> None:
    state = State(torch.nn.Linear(1, 1))
    state.timestamp = Timestamp(epoch=2, batch=7)
    state.loss = loss
    Engine(state, callbacks=NaNMonitor()).run_event("after_loss")


@pytest.mark.parametrize(
    "loss",
    [NAN, torch.tensor([1.0, float("nan")]), NAN.bfloat16(), [FINE, NAN], (NAN, FINE), {"a": FINE, "total": NAN}],
)
def test_raises_for_nan_and_names_the_batch(loss) -> None:
    with pytest.raises(RuntimeError, match=r"batch 7 \(epoch 2\) is NaN"):
        check(loss)


@pytest.mark.parametrize("loss", [FINE, torch.tensor(float("inf")), torch.ones(3), [FINE, FINE], {"a": FINE}])
def test_lets_numbers_pass(loss) -> None:
    check(loss)


@pytest.mark.parametrize("loss", [None, 1.0, "loss", [], {}, [1.0], {"a": FINE, "b": 2.0}])
def test_refuses_an_invalid_loss(loss) -> None:
    with pytest.raises(TypeError, match="must be a tensor"):
        check(loss)


def test_stops_a_run_in_the_batch_of_the_nan() -> None:
    data = labeled_data(4)
    data[2] = (data[2][0] * float("nan"), data[2][1])
    run = run_with(NaNMonitor(), data=data)
    with pytest.raises(RuntimeError, match=r"batch 2 \(epoch 0\)") as caught:
        run.trainer.fit()
    assert run.trainer.state.timestamp.batch == 2
    assert "Raised by NaNMonitor" in caught.value.__notes__[0]


class Masked(ComposerModel):
    """Its loss averages over labels that are not -100: 0 / 0 if there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, batch):
        return self.scale * batch["x"]

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


@pytest.mark.parametrize("size", [None, 1])
def test_batches_and_microbatches_without_targets_pass(size) -> None:
    labels = torch.tensor([[1, -100], [-100, -100], [2, 3], [-100, -100], [-100, -100], [-100, -100]])
    data = [{"x": torch.randn(2, 2, 5), "labels": part} for part in labels.split(2)]
    model = Masked()
    run = run_with(NaNMonitor(), data=data, model=model, device_train_microbatch_size=size)
    run.trainer.fit()
    assert run.trainer.state.timestamp.batch == 3
    assert model.scale.isfinite().all()


@pytest.mark.parametrize("size", [None, 1])
def test_raises_before_the_step(size) -> None:
    data = labeled_data(1)
    data[0][0][-1] = torch.nan
    run = run_with(NaNMonitor(), data=data, device_train_microbatch_size=size)
    before = weights_of(run.trainer.state.model)
    with pytest.raises(RuntimeError, match=r"batch 0 \(epoch 0\)"):
        run.trainer.fit()
    assert torch.equal(weights_of(run.trainer.state.model), before)


class Late(Readback):
    """Values arrive only on a wait."""

    def arrived(self, wait: bool = False):
        return super().arrived() if wait else []


@pytest.mark.parametrize(
    ("event", "raises"), [("after_loss", False), ("epoch_end", True), ("eval_before_all", True), ("fit_end", True)]
)
def test_waits_at_the_end_of_epochs_and_before_evaluations_only(event, raises) -> None:
    monitor = NaNMonitor()
    monitor._readback = Late()
    state = State(torch.nn.Linear(1, 1))
    engine = Engine(state, callbacks=monitor)
    state.loss = NAN
    engine.run_event("after_loss")
    state.loss = FINE
    if not raises:
        engine.run_event(event)
        return
    with pytest.raises(RuntimeError, match="batch 0"):
        engine.run_event(event)
    engine.run_event(event)  # said once


def test_readback_keeps_the_order() -> None:
    readback = Readback()
    for label in range(3):
        readback.put(label, torch.tensor(label * 2))
    assert readback.arrived() == [(0, 0), (1, 2), (2, 4)]
    assert readback.arrived(wait=True) == []


@pytest.mark.gpu
def test_reads_from_the_device_without_waiting() -> None:
    if torch.accelerator.current_accelerator().type != "cuda":
        pytest.skip("torch.cuda.set_sync_debug_mode needs CUDA")
    state = State(torch.nn.Linear(1, 1).cuda())
    engine = Engine(state, callbacks=NaNMonitor())
    losses = [torch.ones((), device="cuda"), NAN.cuda()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        state.loss = losses[0]
        for _ in range(20):
            engine.run_event("after_loss")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    state.loss = losses[1]
    with pytest.raises(RuntimeError, match="is NaN"):
        engine.run_event("after_loss")
        engine.run_event("epoch_end")
