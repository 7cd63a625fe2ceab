"""A decoder of the shape of Llama 3 70B; ``python -m tests.estimation.llama 64`` estimates it on 64 simulated ranks."""

from __future__ import annotations

import resource
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer, dist
from composer.dist.simulation import simulated_ranks
from composer.estimation.kernel_memory import temporary_memory
from composer.estimation.skip_compute import skip_compute
from composer.estimation.stages import Stages
from composer.memory.allocations import AllocationLog
from composer.models import ComposerClassifier
from composer.trials.probe import Finished

WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY, LENGTH = 8192, 64, 8, 28672, 128256, 4096


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS * KV_HEADS
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(WIDTH, size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.norms[0](x)
        parts = [each(y).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
                 for each in (self.query, self.key, self.value)]  # fmt: skip
        attended = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens)))).transpose(1, 2)


def estimate(ranks: int, layers: int = 80) -> AllocationLog:
    """Return the log of a rank that trains a batch of one sequence."""
    log = AllocationLog()
    with simulated_ranks(ranks):
        with torch.device("meta"):
            model = ComposerClassifier(Llama(layers), num_classes=VOCABULARY)
        tokens = torch.zeros(1, LENGTH, dtype=torch.int64).expand(4 * ranks, LENGTH)
        data = TensorDataset(tokens, tokens)
        with skip_compute(log, model.parameters(), temporary_memory):
            trainer = Trainer(
                model=model,
                train_dataloader=DataLoader(data, 1, sampler=dist.get_sampler(data)),
                optimizers=torch.optim.AdamW(model.parameters()),
                max_duration="3ba",
                precision="amp_bf16",
                parallelism_config={"fsdp": {"activation_checkpointing": True}},
                callbacks=[Stages(log, 3)],
                progress_bar=False,
                device="cpu",
            )
            try:
                trainer.fit()
            except Finished:
                trainer.close()
    return log


if __name__ == "__main__":
    start = time.perf_counter()
    peak = estimate(int(sys.argv[1])).peak()[0]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak {peak / 1e9:.1f} GB, {time.perf_counter() - start:.0f} s, CPU {time.process_time():.0f} s, "
          f"resident {resident / 1e9:.2f} GB")  # fmt: skip
