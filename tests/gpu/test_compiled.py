"""Each mode of the compiler: the losses of eager training, and each logged loss its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer import Callback
from tests.common import labeled_data
from tests.gpu.runs import all_state, losses_at_once, losses_of, network, run_of

gpu = pytest.mark.gpu
MODES: dict[str, dict[str, Any]] = {
    "graphs alone": {"backend": "aot_eager"},
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
LONGEST = "max-autotune-no-cudagraphs"  # tries many kernels for each shape: for one shape and precision only
CONFIGS = [pytest.param(name, marks=() if name == "graphs alone" else (gpu,)) for name in MODES]
CASES = [
    pytest.param(*config.values, precision, listens, marks=config.marks, id=f"{config.values[0]}-{precision}-{how}")
    for config in CONFIGS
    for precision in ("fp32", "amp_bf16")
    for listens, how in ((False, "fused"), (True, "listened to"))
    if config.values != (LONGEST,) or (precision == "fp32" and not listens)
]


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
    """Wants the outputs, so that forward and loss are graphs of their own; reads them twice before their step ends."""

    def __init__(self) -> None:
        self.first: list[torch.Tensor] = []
        self.last: list[torch.Tensor] = []

    def after_forward(self, state: Any, logger: Any) -> None:
        self.first.append(state.outputs.detach().float().cpu())

    def batch_end(self, state: Any, logger: Any) -> None:
        self.last.append(state.outputs.detach().float().cpu())


@pytest.mark.parametrize(("mode", "precision", "listens"), CASES)
def test_losses_and_outputs_are_those_of_eager_training(
    mode: str, precision: str, listens: bool, accelerator: str
) -> None:
    tolerance = 1e-4 if precision == "fp32" else 3e-2
    reference, watching = ([Listens()] if listens else [] for _ in range(2))
    _, eager, end = train(accelerator, None, precision=precision, callbacks=reference)
    logged, seen, found = train(accelerator, MODES[mode], precision=precision, callbacks=watching)
    # With CUDA graphs the next step overwrites what a step returned, unless it was copied.
    assert logged == seen
    assert len(set(logged)) == 24
    assert seen == pytest.approx(eager, rel=tolerance, abs=tolerance)
    if precision == "fp32":
        torch.testing.assert_close(found, end, rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(watching, reference, strict=True):
        # Until their step ends the outputs stay what they were.
        assert len(ours.last) == 24
        assert all(torch.equal(*each) for each in zip(ours.first, ours.last, strict=True))
        if precision == "fp32":
            torch.testing.assert_close(ours.last, theirs.last, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", [case for case in CONFIGS if case.values != (LONGEST,)])
def test_microbatches_and_a_short_last_batch(mode: str, accelerator: str) -> None:
    data = [*labeled_data(5, 12), *labeled_data(1, 7, seed=3)]
    more: dict[str, Any] = {"data": data, "device_train_microbatch_size": 4, "precision": "fp32"}
    _, eager, _ = train(accelerator, None, **more)
    logged, seen, _ = train(accelerator, MODES[mode], **more)
    assert logged == seen == pytest.approx(eager, rel=1e-4, abs=1e-4)
