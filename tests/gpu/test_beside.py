"""What runs beside what, and what waits: copies beside kernels, and no step that waits for the device."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.algorithms import cases as methods
from tests.callbacks import cases as callbacks
from tests.common import CLASSES, Received
from tests.declared_waits import WAITS
from tests.gpu.runs import run_of
from tests.trainer.test_sync_free import Step

pytestmark = pytest.mark.gpu


def waits(case: Any) -> bool:
    """Whether the class of a case waits for the device in a step, as declared, other than the first."""
    return any(declared.steps(step) for declared in WAITS.get(case.name, ()) for step in (2, 3))


METHODS = [case for case in methods.all_cases() if case.name != "NoOpModel" and not waits(case)]
CALLBACKS = [case for case in callbacks.all_cases() if not waits(case)]


@contextlib.contextmanager
def no_waiting() -> Iterator[Callable[[int | None], None]]:
    """Gives what is told the step, counted from 1; waiting in any but the first two and the fiftieth is an error."""

    def tell(step: int | None) -> None:
        torch.cuda.set_sync_debug_mode("default" if step in (None, 1, 2, 50) else "error")

    try:
        yield tell
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("case", CALLBACKS, ids=lambda case: case.name)
def test_SyncFree_with_a_callback(case: callbacks.Case, tmp_path: Path) -> None:
    with no_waiting() as tell, warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)
        arguments: dict[str, Any] = {"loggers": Received(50), "device": "gpu", "max_duration": "14ep"}
        run = callbacks.run_of(case, Step(tell), case.make(tmp_path), **(case.arguments() | arguments))
        run.trainer.fit()
        tell(None)
        run.trainer.close()


@pytest.mark.parametrize("case", METHODS, ids=lambda case: case.name)
def test_SyncFree_with_a_method(case: methods.Case) -> None:
    model = case.model()
    with no_waiting() as tell, warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)
        trainer, _ = run_of(
            "cuda",
            model,
            case.batches(),
            optimizers=case.optimizer(model) or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            algorithms=case.make(),
            callbacks=Step(tell),
            loggers=Received(50),
            max_duration="14ep",
        )
        trainer.fit()
        tell(None)
        trainer.close()


def intervals(events: list[dict[str, Any]], category: str, name: str = "") -> list[tuple[float, float]]:
    """Begin and end of what the GPU did, in microseconds."""
    found = [event for event in events if event.get("cat") == category and name in event["name"]]
    return [(event["ts"], event["ts"] + event["dur"]) for event in found]


def test_batches_are_copied_beside_the_computation(tmp_path: Path) -> None:
    """Of most copies of batches a part runs while kernels do, as the GPU's own clock says."""
    width, rows = 4096, 4096
    layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(6)], nn.Linear(width, CLASSES))
    data = [(torch.randn(rows, width).pin_memory(), torch.zeros(rows, dtype=torch.long)) for _ in range(8)]
    model = ComposerClassifier(layers, CLASSES)
    trainer, _ = run_of("cuda", model, data, precision="fp32", optimizers=torch.optim.SGD(model.parameters(), lr=1e-4))
    trainer.fit(duration="2ba")
    # torch 2.10 and 2.11 warn of any profile that does not keep the events of earlier cycles; this one has one cycle.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        trainer.fit(duration="6ba")
        torch.cuda.synchronize()
    trainer.close()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    copies = [(start, end) for start, end in intervals(events, "gpu_memcpy", "HtoD") if end - start > 500]
    kernels = intervals(events, "kernel")
    assert len(copies) >= 5, "64 MiB take more than half a millisecond"
    beside = [copy for copy in copies if any(start < copy[1] and copy[0] < end for start, end in kernels)]
    assert len(beside) >= len(copies) - 2, (copies, kernels[:20])


def test_another_device_than_the_first() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU only")
    trainer, _ = run_of("gpu:1")
    trainer.fit()
    assert {parameter.device.index for parameter in trainer.state.model.parameters()} == {1}
    trainer.close()
    torch.cuda.set_device(0)
