"""Running out of a GPU's memory, truly, and what is left of it afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer import ComposerModel
from composer.callbacks import MemoryMonitor
from composer.loggers import InMemoryLogger
from tests.gpu.runs import run_of

pytestmark = pytest.mark.gpu
MIB = 2**20


class Wide(ComposerModel):
    """Needs some 100 MiB of activations for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4096), nn.Linear(4096, 1)

    def forward(self, batch: Any) -> Tensor:
        x = self.first(batch[0]).unsqueeze(1).expand(-1, 2048, -1) * 1.0
        return self.last(torch.tanh(torch.sin(x)).mean(1))

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[1])


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A gigabyte for this process, beside what it has already."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1024 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def data() -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(64, 4, generator=generator), torch.randn(64, 1, generator=generator)) for _ in range(3)]


def allocated() -> int:
    """What tensors hold, without the workspaces that cuBLAS has for each thread and stream."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_auto_finds_what_fits_and_lets_go_of_the_rest(little_memory: None) -> None:
    torch.cuda.reset_peak_memory_stats()
    before = allocated()
    trainer, _ = run_of("cuda", Wide(), data(), precision="fp32", device_train_microbatch_size="auto")
    trainer.fit()
    assert 1 <= trainer.state.device_train_microbatch_size < 64
    assert torch.cuda.memory_stats()["num_ooms"] > 0
    assert int(trainer.state.timestamp.batch) == 3
    trainer.close()
    # Weights, their moments and gradients are less than one; each activation of one sample is 32 MiB.
    assert allocated() - before < 24 * MIB, torch.cuda.memory_summary(abbreviated=True)
    del trainer
    assert allocated() - before < 24 * MIB, torch.cuda.memory_summary(abbreviated=True)


def test_the_result_is_that_of_microbatches_of_that_size(little_memory: None) -> None:
    found = []
    for size in ("auto", 2):
        torch.manual_seed(0)
        model = Wide()
        trainer, _ = run_of("cuda", model, data(), precision="fp32", device_train_microbatch_size=size)
        trainer.fit()
        trainer.close()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
        del trainer
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_an_error_that_is_not_of_memory_is_not_taken_for_one() -> None:
    class Broken(Wide):
        def forward(self, batch: Any) -> Tensor:
            return self.last(batch[0])

    trainer, _ = run_of("cuda", Broken(), data(), device_train_microbatch_size="auto")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trainer.fit()
    trainer.close()


def test_figures_of_the_memory() -> None:
    log = InMemoryLogger()
    trainer, _ = run_of("cuda", callbacks=MemoryMonitor(), loggers=log)
    trainer.fit()
    trainer.close()
    peaks = [value for _, value in log.data["memory/peak_allocated_mem"]]
    assert len(peaks) == 12
    assert all(peak > 0 for peak in peaks)
