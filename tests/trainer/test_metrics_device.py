"""Metrics of a device without float64, such as MPS, are kept and updated on the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from composer.precision import widest_dtype
from composer.trainer import train_metrics
from composer.trainer.train_metrics import move_metrics
from tests.common import Regression, regression_data, trainer_of


class Seeing(Regression):
    """Notes where its metrics and what they are given lie."""

    def __init__(self) -> None:
        super().__init__(metrics=True)
        self.seen: set[str] = set()

    def update_metric(self, batch, outputs, metric):
        self.seen |= {str(tensor.device) for tensor in (*batch, outputs, metric.sum_squared_error)}


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning")
def test_metrics_receive_tensors_on_their_device(monkeypatch) -> None:
    # Meta stands for the host, and the CPU for the device.
    monkeypatch.setattr(train_metrics, "_metrics_device", lambda state: torch.device("meta"))
    monkeypatch.setattr("composer.trainer.train_metrics.compute_across_ranks", lambda *_: {})
    monkeypatch.setattr("composer.trainer.evaluate.compute_across_ranks", lambda *_: {})
    # Which refuses metrics that are on meta, as they are when it is called again.
    monkeypatch.setattr(
        "composer.trainer.evaluate.move_metrics",
        lambda found, state: {name: each.to("meta") for name, each in found.items()},
    )
    model = Seeing()
    trainer = trainer_of(model, eval_dataloader=regression_data())
    trainer.fit()
    assert model.seen == {"meta"}
    assert trainer.state.model.linear.weight.is_cpu


@pytest.mark.parametrize(
    ("kind", "has_float64", "expected"),
    [("cpu", True, "cpu"), ("cuda", True, "cuda"), ("xpu", True, "xpu"), ("xpu", False, "cpu"), ("mps", False, "cpu")],
)
def test_metrics_device(kind, has_float64, expected, monkeypatch) -> None:
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(has_fp64=has_float64))
    state = SimpleNamespace(device=SimpleNamespace(torch_device=torch.device(kind)))
    metric = SimpleNamespace(metric_state={}, to=lambda device: device)
    assert move_metrics({"one": metric}, state) == {"one": torch.device(expected)}
    assert widest_dtype(torch.device(kind)) is (torch.float64 if has_float64 else torch.float32)
