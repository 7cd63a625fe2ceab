"""Exact mode computes in float64 also where the program converts to narrower dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from composer import Trainer
from composer.trials import ForkServer
from composer.verification._float64 import InFloat64, WideFunctions
from tests.verification.parts import Classifier, build
from tests.verification.running import run_checks

WIDE = torch.tensor([1.0, 2.0], dtype=torch.float64)
NARROW = torch.tensor([0.1, 0.2], dtype=torch.float32)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.float(),
        lambda x: x.half(),
        lambda x: x.to(torch.float32),
        lambda x: x.to(dtype=torch.bfloat16),
        lambda x: x.to(NARROW),
        lambda x: x.softmax(0, dtype=torch.float32),
        lambda x: torch.ones(2, dtype=torch.float) * x.float(),
        lambda x: x @ NARROW,
        lambda x: torch.cat([x, NARROW]),
        lambda x: F.cross_entropy(x[None], torch.tensor([1]), weight=NARROW),
    ],
)
def test_conversions_and_constants_are_float64(convert: Callable[[Tensor], Tensor]) -> None:
    with WideFunctions():
        found = convert(WIDE / 3)
    assert found.dtype == torch.float64


def test_bytes_and_other_integers_are_what_they_were() -> None:
    with WideFunctions():
        pixels = torch.tensor([0, 255], dtype=torch.uint8)
        assert (pixels.float() / 255).dtype == torch.float64
        assert pixels.long().dtype == torch.int64
        assert WIDE.to(torch.int32).dtype == torch.int32


@pytest.mark.parametrize("write", [torch.Tensor.add_, torch.Tensor.copy_, lambda a, b: a.__iadd__(b)])
def test_functions_that_write_do_so_to_the_tensor_that_they_get(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    buffer = torch.zeros(2, dtype=torch.float32)
    with WideFunctions():
        write(buffer, WIDE)
        buffer[0] += WIDE[1]
    assert buffer.tolist() == [3.0, 2.0]


def test_compiled_functions_are_converted_too() -> None:
    function = torch.compile(lambda x: (x.float() / 3) @ NARROW, backend="eager", fullgraph=True)
    with WideFunctions():
        assert function(WIDE).dtype == torch.float64


def test_of_a_trainer_only_forward_and_backward_are_float64() -> None:
    trainer = build(callbacks=[InFloat64()], device_train_microbatch_size=4)
    trainer.fit()
    assert WIDE.float().dtype == torch.float32


class InFloat32(Classifier):
    """Converts its inputs to float32, as a model of bytes does, and adds up a loss with float32 weights."""

    def forward(self, batch: Any) -> Tensor:
        return super().forward((batch[0].to(torch.float32) / 2, batch[1]))

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        weight = torch.ones(outputs.shape[1], dtype=torch.float32)
        return F.cross_entropy(outputs, batch[1], weight=weight, reduction="sum")


def summed_in_float32() -> Trainer:
    return build(InFloat32)


def test_mistakes_of_programs_that_use_float32_are_found(server: ForkServer) -> None:
    report = run_checks(f"{__name__}:summed_in_float32", server, ["microbatch"])
    assert {finding.status for finding in report.findings} == {"failed"}, str(report)
    assert report.causes == {"loss_scale"}
