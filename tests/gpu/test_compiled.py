"""Each mode of the compiler: the losses of eager training, and each logged loss its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer import Callback
from tests.common import labelled_data
from tests.gpu.runs import all_state, losses_at_once, losses_of, network, run_of

gpu = pytest.mark.gpu
MODES: dict[str, dict[str, Any]] = {
    "graphs alone": {"backend": "aot_eager"},
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
CONFIGS = [pytest.param(name, marks=() if name == "graphs alone" else (gpu,)) for name in MODES]


def train(device: str, config: dict[str, Any] | None, **more: Any) -> tuple[list[float], list[float], dict[str, Any]]:
    """The losses as they were logged and as they were when each step ended, and the end."""
    seen = losses_at_once()
    callbacks = [seen, *more.pop("callbacks", [])]
    trainer, log = run_of(
        device, network(dropout=0.0), compile_config=config, callbacks=callbacks, max_duration="2ep", **more
    )
    trainer.fit()
    end = all_state(trainer)
    trainer.close()
    return losses_of(log), seen.found, end


class Listens(Callback):
    """Wants the outputs, so that forward and loss are graphs of their own."""

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def after_forward(self, state: Any, logger: Any) -> None:
        self.outputs.append(state.outputs)


@pytest.mark.parametrize("mode", CONFIGS)
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
@pytest.mark.parametrize("listens", [False, True], ids=["fused", "listened to"])
def test_losses_are_those_of_eager_training(mode: str, precision: str, listens: bool, accelerator: str) -> None:
    tolerance = 1e-4 if precision == "fp32" else 3e-2
    _, eager, end = train(accelerator, None, precision=precision)
    watching = [Listens()] if listens else []
    logged, seen, found = train(accelerator, MODES[mode], precision=precision, callbacks=watching)
    # With CUDA graphs the next step overwrites what a step returned, unless it was copied.
    assert logged == seen
    assert len(set(logged)) == 24
    assert seen == pytest.approx(eager, rel=tolerance, abs=tolerance)
    if precision == "fp32":
        torch.testing.assert_close(found, end, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", CONFIGS)
def test_microbatches_and_a_short_last_batch(mode: str, accelerator: str) -> None:
    data = [*labelled_data(5, 12), *labelled_data(1, 7, seed=3)]
    more: dict[str, Any] = {"data": data, "device_train_microbatch_size": 4, "precision": "fp32"}
    _, eager, _ = train(accelerator, None, **more)
    logged, seen, _ = train(accelerator, MODES[mode], **more)
    assert logged == seen == pytest.approx(eager, rel=1e-4, abs=1e-4)


@gpu
def test_outputs_that_outlive_the_step_stay_what_they_were() -> None:
    kept = Listens()
    copies: list[torch.Tensor] = []

    class Copies(Callback):
        def after_forward(self, state: Any, logger: Any) -> None:
            copies.append(state.outputs.detach().clone())

    train("cuda", MODES["reduce-overhead"], callbacks=[Copies(), kept], precision="fp32")
    assert all(torch.equal(one, other) for one, other in zip(kept.outputs, copies, strict=True))
