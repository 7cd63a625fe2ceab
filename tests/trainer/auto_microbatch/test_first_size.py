"""The first size of "auto" on a simulated device with little memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from composer import ComposerModel
from composer.algorithms import EMA, BlurPool, GradientClipping, LabelSmoothing, MixUp, SqueezeExcite
from composer.trainer.auto_microbatch import first_size, retry
from composer.trainer.auto_microbatch.undo import ObjectSnapshot
from tests.common import At, trainer_of
from tests.limited_device import LimitedDevice

SAMPLES = 16


class Classifier(ComposerModel):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch):
        return self.module(batch[0])

    def loss(self, outputs, batch):
        if outputs.ndim == 3:  # of tokens
            return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())
        return F.cross_entropy(outputs, batch[1])


class Attention(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.checkpointed = checkpointed

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)

    def block(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + F.dropout(self.mlp(x), 0.1, self.training)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def gpt(checkpointed: bool = False, blocks: int = 3) -> nn.Module:
    body = [Attention(64, checkpointed) for _ in range(blocks)]
    return nn.Sequential(nn.Embedding(100, 64), *body, nn.LayerNorm(64), nn.Linear(64, 100))


def vectors() -> list[Any]:
    return [(torch.randn(16 * SAMPLES, 64), torch.randint(10, (16 * SAMPLES,))) for _ in range(2)]


def images() -> list[Any]:
    return [(torch.randn(SAMPLES, 3, 16, 16), torch.randint(10, (SAMPLES,))) for _ in range(2)]


def tokens() -> list[Any]:
    return [tuple(torch.randint(100, (2, SAMPLES, 32))) for _ in range(2)]


@dataclass
class Case:
    """A model that trains."""

    model: Callable[[], nn.Module]
    data: Callable[[], list[Any]]
    optimizer: Callable[..., torch.optim.Optimizer] = functools.partial(torch.optim.SGD, lr=0.01)
    algorithms: Callable[[], list[Any]] = list
    arguments: dict[str, Any] = field(default_factory=dict)


def frozen() -> nn.Module:
    model = conv()
    model[0].requires_grad_(False)
    return model


CASES = {
    "mlp": Case(mlp, vectors),
    "mlp with momentum": Case(mlp, vectors, functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)),
    "mlp with EMA and clipping": Case(
        mlp, vectors, torch.optim.Adam, lambda: [EMA("2ba"), GradientClipping("norm", 1)]
    ),
    "conv": Case(conv, images),
    "conv with Adam": Case(conv, images, torch.optim.Adam),
    "conv with methods": Case(conv, images, torch.optim.Adam, lambda: [BlurPool(), SqueezeExcite(min_channels=8)]),
    "conv with mixing": Case(conv, images, algorithms=lambda: [MixUp(0.2), LabelSmoothing(0.1)]),
    "conv with a frozen layer": Case(frozen, images),
    "gpt": Case(gpt, tokens),
    "gpt with AdamW": Case(gpt, tokens, torch.optim.AdamW),
    "gpt with checkpointing": Case(lambda: gpt(True, 6), tokens, torch.optim.AdamW),
    "gpt in bfloat16": Case(gpt, tokens, torch.optim.AdamW, arguments={"precision": "amp_bf16"}),
}


def on_host(*args: Any, **kwargs: Any) -> ObjectSnapshot:
    """A snapshot, whose copies are on the host."""
    with _disable_current_modes():
        return ObjectSnapshot(*args, **kwargs)


def fit(case: Case, size: Any, monkeypatch, limit: int | None = None) -> tuple[LimitedDevice, list[int], torch.Tensor]:
    """Train two batches; return the device, the sizes and the weights."""
    torch.manual_seed(0)
    model, data = Classifier(case.model()), case.data()
    device = LimitedDevice(limit, [*model.parameters(), *model.buffers(), *(each for pair in data for each in pair)])
    monkeypatch.setattr(first_size, "free_memory", device.free)
    monkeypatch.setattr(retry, "ObjectSnapshot", on_host)
    sizes = At("batch_end", lambda state: state.device_train_microbatch_size)
    trainer = trainer_of(
        model, data, optimizers=case.optimizer(model.parameters()), algorithms=case.algorithms(), callbacks=sizes,
        device_train_microbatch_size=size, seed=7, **case.arguments,
    )  # fmt: skip
    with device:
        trainer.fit()
    return device, sizes.found, torch.cat([each.detach().flatten() for each in model.parameters()])


def test_the_first_try_mostly_fits(monkeypatch) -> None:
    """It never begins below the largest size that fits, and trains to the same bits as that size given as a number."""
    rows: list[tuple[Any, ...]] = []
    for name, case in CASES.items():
        samples = len(case.data()[0][0])
        known = {size: fit(case, size, monkeypatch) for size in (samples, samples // 2, samples // 4)}
        for share, large, small in ((0.25, samples, samples // 2), (0.75, samples // 2, samples // 4)):
            below, above = known[small][0].peak, known[large][0].peak
            device, sizes, weights = fit(case, "auto", monkeypatch, int(below + share * (above - below)))
            assert torch.equal(weights, known[small][2]) or len(set(sizes)) > 1
            rows.append((name, small, sizes, device.failures))
            assert sizes[0] >= small, rows[-1]
    fitting = [row for row in rows if not row[-1]]
    assert len(fitting) >= 0.9 * len(rows), "\n".join(map(str, rows))
