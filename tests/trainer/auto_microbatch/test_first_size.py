"""The first size of "auto" on a simulated device with little memory."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from composer import ComposerModel
from composer.algorithms import EMA, BlurPool, GradientClipping, LabelSmoothing, MixUp, SqueezeExcite
from composer.core import microbatch_sizes as size_cache
from composer.trainer.auto_microbatch import first_size, retry
from composer.trainer.auto_microbatch.undo import ObjectSnapshot
from tests.common import At, regression_data, trainer_of, weights_of
from tests.limited_device import LimitedDevice
from tests.ranks import Ranks
from tests.simulated_oom import RunsOut, digest

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


def sgd(parameters, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=momentum)


@dataclass
class Case:
    """A model that trains."""

    model: Callable[[], nn.Module]
    data: Callable[[], list[Any]]
    optimizer: Callable[..., torch.optim.Optimizer] = sgd
    algorithms: Callable[[], list[Any]] = list
    arguments: dict[str, Any] = field(default_factory=dict)


def frozen() -> nn.Module:
    model = conv()
    model[0].requires_grad_(False)
    return model


CASES = {
    "mlp": Case(mlp, vectors),
    "mlp with momentum": Case(mlp, vectors, functools.partial(sgd, momentum=0.9)),
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
    return device, sizes.found, weights_of(model)


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


@functools.lru_cache
def mask(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(size), torch.zeros(size)


TABLES: dict[int, torch.Tensor] = {}


class Hostile(RunsOut):
    """Keeps what it computes wherever it can, and draws from all generators."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("scale", None)
        self.constant, self.calls, self.kept, self.tables = torch.ones(8), 0, [], {}
        self.order = np.arange(4)

    def forward(self, batch):
        samples = len(batch[0])
        self.steps, self.scale, self.calls = self.steps + 1, batch[0].mean().abs(), self.calls + 1
        self.tables[self.calls] = torch.arange(samples)
        if samples not in TABLES:
            TABLES[samples] = torch.ones(samples)
        self.constant.add_(1)
        np.random.shuffle(self.order)
        if not hasattr(self, "extra"):
            self.extra = torch.full((samples, 1), 2.0)
        if batch[0].isnan().any() or batch[0].sum().item() == 12345:
            raise ValueError
        outputs = super().forward(batch)
        self.kept.append(outputs)
        noise = random.random() + np.random.standard_normal() + torch.rand(()) * self.steps
        ones, zeros = mask(samples)
        return (outputs * ones[:, None] + zeros[:, None]) * TABLES[samples][:, None] * self.extra[
            :samples
        ] + 0.01 * noise


def test_the_estimate_changes_nothing(monkeypatch, caplog) -> None:
    """Bit for bit: weights, buffers, gradients, states of optimizers and generators, attributes, caches, metrics."""

    def run(free: int | None) -> list[Any]:
        torch.manual_seed(0)
        mask.cache_clear()
        TABLES.clear()
        model = Hostile()
        monkeypatch.setattr(first_size, "free_memory", lambda device: free)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        trainer = trainer_of(
            model, regression_data(3, 8), optimizers=optimizer, device_train_microbatch_size="auto", seed=7
        )
        trainer.fit()
        assert all(type(each) in (torch.Tensor, nn.Parameter) for each in (*mask(8), *TABLES.values(), *model.kept))
        drawn = random.random(), np.random.standard_normal()
        others = [model.constant, model.scale, *model.tables.values(), *model.kept]
        tensors = [each.tolist() for each in others]
        return [digest(model, optimizer), drawn, model.calls, model.order.tolist(), tensors, mask.cache_info().currsize]

    estimated = []
    estimate = first_size._estimate
    monkeypatch.setattr(first_size, "_estimate", lambda *args: estimated.append(estimate(*args)) or 0)
    assert run(10**9) == run(None)
    assert estimated == [0]  # it was not given up
    assert "FakeTensor" not in caplog.text


def simple(monkeypatch, free: int, model: Any = None, **arguments: Any) -> list[int]:
    """The sizes of a model that trains on batches of 256, where so many bytes are free."""
    monkeypatch.setattr(first_size, "free_memory", lambda device: free)
    sizes = At("batch_end", lambda state: state.device_train_microbatch_size)
    arguments = {"device_train_microbatch_size": "auto", "train_dataloader": regression_data(6, 256)} | arguments
    data = arguments.pop("train_dataloader")
    trainer_of(model or RunsOut(norm=False, width=64), data, callbacks=sizes, **arguments).fit()
    return sizes.found


FREE = 500_000
"""Bytes in which half of a batch fits."""


def test_size_grows_again_where_the_estimate_was_too_small(monkeypatch) -> None:
    monkeypatch.setattr(size_cache, "_PATIENCE", 2)
    assert simple(monkeypatch, FREE) == [128, 128, 256, 256, 256, 256]


def test_the_estimate_is_logged(monkeypatch, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="composer"):
        simple(monkeypatch, FREE)
    assert "The estimate says that microbatches of 128 of 256 samples fit into memory." in caplog.messages


def test_where_nothing_would_fit_the_search_begins_at_the_whole_batch(monkeypatch) -> None:
    assert simple(monkeypatch, 0) == [256] * 6


def test_a_number_and_a_resumed_run_are_not_estimated(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(first_size, "_estimate", lambda *args: pytest.fail("was estimated"))
    assert simple(monkeypatch, FREE, device_train_microbatch_size=64) == [64] * 6
    trainer = trainer_of(RunsOut(norm=False, width=64), regression_data(6, 8), device_train_microbatch_size=64)
    path = trainer.save_checkpoint(str(tmp_path / "saved.pt"))
    trainer.close()
    assert simple(monkeypatch, FREE, load_path=path) == [64] * 6


def test_models_that_are_not_estimated(monkeypatch, caplog) -> None:
    model = RunsOut(norm=False, width=64)
    with caplog.at_level(logging.DEBUG, logger="composer"):
        assert simple(monkeypatch, FREE, model, compile_config={"backend": "eager"}) == [256] * 6
        assert "the model is compiled" in caplog.text
        model = RunsOut(norm=False, width=64)
        model.blocks[0].register_forward_hook(lambda module, args, outputs: None)
        assert simple(monkeypatch, FREE, model) == [256] * 6
    assert "Block has hooks" in caplog.text


def test_a_model_that_fake_tensors_cannot_run(monkeypatch, caplog) -> None:
    class Foreign(RunsOut):
        def forward(self, batch):
            return super().forward((torch.from_numpy(batch[0].numpy().copy()), batch[1]))

    with caplog.at_level(logging.DEBUG, logger="composer"):
        assert simple(monkeypatch, FREE, Foreign(norm=False, width=64)) == [256] * 6
    assert "its memory cannot be estimated" in caplog.text


def test_free_memory_counts_cached_blocks_and_the_limit_of_the_process(monkeypatch) -> None:
    module = type("cuda", (), {"mem_get_info": staticmethod(lambda device: (1000, 8000))})
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda device: 300)
    monkeypatch.setattr(torch.accelerator, "memory_reserved", lambda device: 500)
    share = [1.0]
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share[0])
    device = torch.device("cuda", 0)
    assert first_size.free_memory(device) == 1200
    share[0] = 0.1
    assert first_size.free_memory(device) == 500
    assert first_size.free_memory(torch.device("cpu")) is None


def sizes_of_rank(free: tuple[int | None, int | None], batches: tuple[int, int]) -> list[int]:
    from composer import dist

    with pytest.MonkeyPatch.context() as patched:
        rank = dist.get_global_rank()
        data = regression_data(6, batches[rank])
        return simple(patched, free[rank], train_dataloader=data)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("free", "batches", "expected"),
    [
        ((10**9, FREE), (256, 256), ([128] * 6, [128] * 6)),
        ((None, FREE), (256, 256), ([128] * 6, [128] * 6)),
        ((10**9, 10**9), (256, 256), ([256] * 6, [256] * 6)),
    ],
)
def test_ranks_begin_with_the_size_of_the_one_with_the_least_memory(two_ranks: Ranks, free, batches, expected) -> None:
    assert tuple(two_ranks.run(sizes_of_rank, free, batches, timeout=120.0)) == expected
