"""ActivationMonitor: its statistics against an independent computation, their names, and compiled models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from composer import Callback
from composer.callbacks import ActivationMonitor
from composer.callbacks.activation_monitor import compute_kurtosis
from composer.models import ComposerClassifier
from tests.callbacks.cases import Case, Run, run_with
from tests.common import CLASSES, FEATURES, Received, labeled_data

CASE = Case(
    make=lambda folder: ActivationMonitor("2ba", only_log_wandb=False),
    logs=("activations/l2_norm/*", "activations/average/*", "activations/kurtosis/*", "activations/max/*"),
)


def network() -> ComposerClassifier:
    torch.manual_seed(5)
    layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    return ComposerClassifier(layers, num_classes=CLASSES)


def run_of(monitor: ActivationMonitor, model: Any = None, **arguments: Any) -> Run:
    run = run_with(monitor, model=network() if model is None else model, **arguments)
    run.trainer.fit()
    return run


def names_of(run: Run, statistic: str = "max") -> set[str]:
    prefix = f"activations/{statistic}/"
    return {name.removeprefix(prefix) for name in run.log.data if name.startswith(prefix)}


def test_statistics_of_a_layer() -> None:
    data = labeled_data(1, 6)
    model = network()
    layer = model.module[0]
    with torch.no_grad():
        x, y = data[0][0].double().numpy(), layer(data[0][0]).double().numpy()
    run = run_of(ActivationMonitor("1ba", only_log_wandb=False), model, data=data)
    for side, values in (("input", x), ("output", y)):
        centered = values - values.mean(-1, keepdims=True)
        expected = {
            "l2_norm": np.sqrt((values**2).sum(-1)).mean(),
            "average": values.mean(),
            "max": values.max(-1).mean(),
            "kurtosis": ((centered**4).mean(-1) / (centered**2).mean(-1) ** 2).mean(),
        }
        for statistic, value in expected.items():
            found = run.values(f"activations/{statistic}/module.0_{side}.0")
            assert found == [pytest.approx(value, rel=1e-5)], statistic


def test_inputs_and_outputs_of_every_module_are_named() -> None:
    run = run_of(ActivationMonitor("1ba", only_log_wandb=False))
    layers = {f"module.{i}_{side}.0" for i in range(4) for side in ("input", "output")}
    model_names = {"module_input.0", "module_output.0", "_input.0.0", "_output.0"}
    # The loss and metrics of the classifier are not part of the forward pass.
    assert names_of(run) == layers | model_names
    assert names_of(run) == names_of(run, "kurtosis") == names_of(run, "average") == names_of(run, "l2_norm")


@pytest.mark.parametrize(
    ("ignored", "left_out"), [(["dropout"], {"module.2"}), (["module.3", "ReLU"], {"module.3", "module.1"})]
)
def test_ignores_modules_by_name_and_class(ignored, left_out) -> None:
    every = names_of(run_of(ActivationMonitor("1ba", only_log_wandb=False)))
    some = names_of(run_of(ActivationMonitor("1ba", ignored, only_log_wandb=False)))
    assert some == {name for name in every if name.partition("_")[0] not in left_out} != every


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 1}])
@pytest.mark.parametrize(("interval", "steps"), [("3ba", [0, 3, 6]), (4, [0, 4]), ("1ep", [0, 4])])
def test_logs_once_in_an_interval(interval, steps, more) -> None:
    run = run_of(ActivationMonitor(interval, only_log_wandb=False), max_duration="2ep", **more)
    assert run.steps("activations/max/module.0_input.0") == steps


def test_nested_outputs_and_numbers_without_features() -> None:
    class Several(nn.Module):
        def forward(self, x, scale, *, mask=None):
            return {"a": x * scale, "b": [x, x.argmax(1)], "c": "text"}

    monitor = ActivationMonitor(only_log_wandb=False)
    monitor.record("m_output", (Several()(torch.ones(2, 3), torch.tensor(2.0)),))
    found = {name.rpartition("/")[2] for name in monitor._found}
    assert found == {"m_output.0.a", "m_output.0.b.0"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_kurtosis(dtype) -> None:
    torch.manual_seed(0)
    normal = torch.randn(50, 4000, dtype=torch.float64).to(dtype)
    assert compute_kurtosis(normal).item() == pytest.approx(3.0, abs=0.05)
    two = torch.tensor([[-2.0, 2.0, -2.0, 2.0]], dtype=dtype)
    assert compute_kurtosis(two).item() == pytest.approx(1.0)
    assert compute_kurtosis(torch.cat([two, torch.full_like(two, 7.0)])).item() == pytest.approx(1.0)
    assert compute_kurtosis(torch.zeros(3, 2, dtype=dtype)).isnan()
    # One outlier among n: k = (n - 1) + 1 / (n - 1) - 1.
    outlier = torch.zeros(1, 10, dtype=dtype)
    outlier[0, 3] = 5.0
    assert compute_kurtosis(outlier).item() == pytest.approx(8 + 1 / 9, rel=1e-2)


class WandBLogger(Received):
    """Stands in for the W&B logger."""


def test_only_wandb_receives_them_by_default() -> None:
    tracker, other = WandBLogger(), Received()
    run_with(ActivationMonitor("1ba"), model=network(), loggers=[tracker, other]).trainer.fit()
    assert len(tracker.series("activations/max/module.0_input.0")) == 4
    assert all("activations" not in name for _, metrics in other.metrics for name in metrics)
    steps = [step for step, _ in tracker.metrics]
    assert steps == sorted(steps)


def test_computes_nothing_without_a_destination() -> None:
    monitor = ActivationMonitor("1ba")
    run_of(monitor)
    assert not monitor._found


def test_detaches_after_an_error_in_the_forward_pass() -> None:
    model = network()

    class Fail(Callback):
        def before_forward(self, state, logger):
            state.batch = (torch.ones(2, 99), state.batch[1])

    monitor = ActivationMonitor("1ba", only_log_wandb=False)
    run = run_with(monitor, Fail(), model=model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run.trainer.fit()
    run.trainer.close()
    assert not any(module._forward_hooks for module in model.modules())
    compiled = torch.compile(lambda x: torch.compiler.is_compiling(), backend="eager")
    assert compiled(torch.ones(1)), "the compiler must be at work again"


def test_compiled_model() -> None:
    run = run_of(ActivationMonitor("2ba", only_log_wandb=False), compile_config={"backend": "eager"})
    assert run.steps("activations/max/module.0_input.0") == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"interval": "10tok"}, ValueError, "interval must be in batches or epochs"),
        ({"interval": "0ba"}, ValueError, "positive number of batches or epochs"),
        ({"ignore_module_types": "dropout"}, TypeError, r"Write \['dropout'\]"),
    ],
)
def test_refuses_invalid_arguments(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        ActivationMonitor(**arguments)
