"""Each precision on the device: what the layers compute in, and what an overflow does."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from composer import Callback
from composer.devices import DeviceGPU
from composer.optim import LinearScheduler
from tests.common import At
from tests.gpu.runs import losses_of, network, run_of

gpu = pytest.mark.gpu
DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", pytest.param("amp_fp16", marks=gpu)])
@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 8}], ids=["whole", "microbatches"])
def test_trains(precision: str, more: dict[str, Any], accelerator: str) -> None:
    seen = At("after_forward", lambda state: (state.outputs.dtype, state.outputs.device.type))
    model = network(dropout=0.0)
    trainer, log = run_of(accelerator, model, max_duration="8ep", precision=precision, callbacks=seen, **more)
    trainer.fit()
    trainer.close()
    assert set(seen.found) == {(DTYPES[precision], accelerator)}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    losses = losses_of(log)
    assert len(losses) == 96
    assert sum(losses[-12:]) < 0.9 * sum(losses[:12])


@gpu
def test_fp8() -> None:
    engine = pytest.importorskip("transformer_engine.pytorch")
    model = network(64, dropout=0.0)
    # fp8 needs dimensions, the batch's 16 among them, that are divisible by 16.
    model.module.insert(1, engine.Linear(64, 64))
    trainer, log = run_of("cuda", model, precision="amp_fp8")
    trainer.fit()
    assert len(losses_of(log)) == 12
    trainer.close()


@gpu
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_fp8_of_linear_layers(recipe: str) -> None:
    pytest.importorskip("torchao.float8")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the GPU has no float8")
    model = network(64, dropout=0.0)
    model.module.insert(1, torch.nn.Linear(64, 64))
    trainer, log = run_of("cuda", model, precision="amp_fp8", precision_config={"recipe": recipe})
    assert type(model.module[1]).__name__ == "Float8Linear"
    trainer.fit()
    losses = losses_of(log)
    assert len(losses) == 12
    assert all(map(math.isfinite, losses))
    trainer.close()


@gpu
@pytest.mark.parametrize("allow", [True, False])
def test_tf32(allow: bool) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the GPU has no TensorFloat-32")
    a, b = (torch.randn(512, 512, dtype=torch.float64, device="cuda") for _ in range(2))
    try:
        DeviceGPU(0, allow_tf32=allow)
        assert torch.get_float32_matmul_precision() == ("high" if allow else "highest")
        error = ((a.float() @ b.float()).double() - a @ b).abs().max().item()
        image, kernel = torch.randn(4, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
        exact = torch.nn.functional.conv2d(image.double(), kernel.double())
        errors = error, (torch.nn.functional.conv2d(image, kernel).double() - exact).abs().max().item()
    finally:
        DeviceGPU(0, allow_tf32=False)
    # Sums of some 500 products of size 1: 10 bits of mantissa leave errors of about 0.02, 23 bits of 1e-5.
    assert all((each > 2e-3) == allow for each in errors), errors


class Overflow(Callback):
    """Lets the loss of one step be too large for float16's gradients."""

    def __init__(self, step: int) -> None:
        self.step = step

    def before_backward(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == self.step:
            state.loss = state.loss * 1e38


@gpu
@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 8}], ids=["whole", "microbatches"])
def test_an_overflow_leaves_the_step_out(more: dict[str, Any]) -> None:
    model = network(dropout=0.0)

    def look(state: Any) -> tuple[float, torch.Tensor, float, int]:
        weight = model.module[0].weight.detach().clone()
        return state.scaler.get_scale(), weight, state.optimizers[0].param_groups[0]["lr"], int(state.timestamp.batch)

    before, after = At("before_train_batch", look), At("batch_end", look)
    trainer, log = run_of(
        "cuda",
        model,
        precision="amp_fp16",
        schedulers=LinearScheduler(alpha_f=0.5),
        step_schedulers_every_batch=True,
        callbacks=[before, after, Overflow(4)],
        **more,
    )
    trainer.fit()
    trainer.close()
    scales = [scale for scale, *_ in before.found] + [after.found[-1][0]]
    # The first steps may overflow too, until the scale fits.
    assert scales[5] == scales[4] / 2
    assert torch.equal(before.found[4][1], before.found[5][1])
    assert not torch.equal(before.found[8][1], before.found[9][1])
    # Time goes on, and the schedule with it: the step was one, though nothing came of it.
    assert [batch for *_, batch in before.found] == list(range(12))
    rates = [rate for _, _, rate, _ in before.found]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert len(losses_of(log)) == 12
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
