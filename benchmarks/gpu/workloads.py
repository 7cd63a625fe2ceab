"""What is trained: GPT-2 and ResNet-50, with their optimizers and data, in full size and tiny."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu import gpt2, resnet


@dataclass(frozen=True)
class Workload:
    """What is trained; under bfloat16 autocast, with weights and optimizer in float32.

    Attributes:
        title: How reports name it.
        unit: What is counted, "tokens" or "images".
        batch_size: Number of sequences or images in a batch.
        units: Number of what is counted in a batch.
        num_batches: Number of different batches that are trained on, in turn.
        flops: Floating-point operations of a training step for each unit.
        module: Makes the model, the same weights each time.
        loss: The loss of a module on a batch.
        logits: The logits of a module on a batch, for loops that ask for both in turn.
        loss_of: The loss of the logits of a batch.
        optimizer: Makes the optimizer of a model.
        batches: Makes so many batches, the same each time.
    """

    title: str
    unit: str
    batch_size: int
    units: int
    num_batches: int
    flops: float
    module: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    logits: Callable[[nn.Module, Any], Tensor]
    loss_of: Callable[..., Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[int], list[Any]]


def gpt2_workload(shape: gpt2.Shape, size: int) -> Workload:
    """Return the training of a GPT-2.

    Args:
        shape: Its sizes.
        size: Number of sequences in a batch.
    """
    return Workload(
        title=f"GPT-2 with {shape.num_layers} layers of {shape.width}, vocabulary {shape.vocabulary}, "
        f"batches of {size} x {shape.sequence} tokens, AdamW (fused)",
        unit="tokens",
        batch_size=size,
        units=size * shape.sequence,
        num_batches=64,
        flops=gpt2.flops(shape),
        module=lambda: _seeded(partial(gpt2.GPT2, shape)),
        loss=lambda module, batch: module(batch["input_ids"], batch["labels"]),
        logits=gpt2.logits_of,
        loss_of=gpt2.loss_of,
        # All parameters in one group, as all loops can have it.
        optimizer=lambda module: torch.optim.AdamW(
            module.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        ),
        batches=partial(gpt2.batches, shape, size),
    )


def _resnet(shape: resnet.Shape, size: int) -> Workload:
    return Workload(
        title=f"ResNet of {shape.blocks} blocks, width {shape.width}, batches of {size} x 3 x {shape.extent} x "
        f"{shape.extent}, channels last, SGD with momentum (fused)",
        unit="images",
        batch_size=size,
        units=size,
        num_batches=4,  # 77 MB each in full size
        flops=resnet.flops(shape),
        module=lambda: _seeded(partial(resnet.ResNet, shape)).to(memory_format=torch.channels_last),
        loss=lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]),
        logits=lambda module, batch: module(batch[0]),
        loss_of=lambda logits, batch: F.cross_entropy(logits, batch[1]),
        optimizer=lambda module: torch.optim.SGD(
            module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
        ),
        batches=partial(resnet.batches, shape, size),
    )


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def workload(name: str, tiny: bool, size: int | None = None) -> Workload:
    """Return a workload.

    Args:
        name: "gpt2" or "resnet50".
        tiny: Whether it takes milliseconds a step on a CPU.
        size: Number of sequences or images in a batch, if another than usual.
    """
    if name == "gpt2":
        return gpt2_workload(gpt2.TINY, size or 4) if tiny else gpt2_workload(gpt2.Shape(), size or 16)
    return _resnet(resnet.TINY, size or 8) if tiny else _resnet(resnet.Shape(), size or 128)
