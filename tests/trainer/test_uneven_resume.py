"""Runs with uneven data resume bit for bit, also while a rank whose data has ended runs dummy batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from composer import Callback, ComposerModel, Trainer, dist, rng
from composer.algorithms import DiLoCo, LocalSGD
from composer.checkpoint import save_checkpoint
from composer.core.first_batch_rng import are_same
from tests.common import FEATURES, At
from tests.ranks import Ranks
from tests.trainer.multi_rank import Stream, whole

# Of batches of 4 samples: 3 and 5 in each of two epochs. In steps 4, 5, 9 and 10, one of two ranks is idle.
COUNTS = (10, 18)
STEPS = (2, 3, 4, 6, 8, 9)
KINDS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "microbatches": {"device_train_microbatch_size": 2, "ddp_sync_strategy": "multi_auto_sync"},
    "fsdp": {"parallelism_config": {"fsdp": {}}, "device_train_microbatch_size": 2},
    "diloco": {"algorithms": lambda: DiLoCo(sync_every=3)},
    "local_sgd": {"algorithms": lambda: LocalSGD(sync_every=4)},
}


class Noisy(ComposerModel):
    """Draws random numbers and keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)]
        self.net = nn.Sequential(*layers)

    def forward(self, batch: Any) -> Tensor:
        return self.net(batch[0])

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[1])


class SaveEach(Callback):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        save_checkpoint(state, f"{self.folder}/{{batch}}.pt")


def trained(kind: str, counts: tuple[int, int], *callbacks: Callback, **more: Any) -> tuple[dict[str, Tensor], Any]:
    """The state of the model after training, and that of the random generators."""
    torch.manual_seed(5)
    model, arguments = Noisy(), dict(KINDS[kind])
    if "algorithms" in arguments:
        arguments["algorithms"] = arguments["algorithms"]()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(Stream(counts, torch.float32), batch_size=4),
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.01),
        max_duration="2ep",
        # As any listener there, it may edit the batch, so that the ranks count their microbatches in the step.
        callbacks=[At("batch_start", lambda state: None), *callbacks],
        seed=7,
        progress_bar=False,
        device="cpu",
        **arguments,
        **more,
    )
    trainer.fit()
    trainer.close()
    return {name: whole(one).clone() for name, one in model.state_dict().items()}, rng.get_local_rng_state()


def differences(kind: str, counts: tuple[int, int], folder: str) -> dict[int, list[str]]:
    """By the step after which a run resumed, what is not as in the uninterrupted run."""
    expected, numbers = trained(kind, counts, SaveEach(folder))
    # Each rank of a replica has statistics of its own, of which those of its first are used and saved.
    has_replicas = "algorithms" in KINDS[kind]
    ignored = ("running", "num_batches") if dist.get_global_rank() and not has_replicas else ()
    found: dict[int, list[str]] = {}
    for step in STEPS:
        values, drawn = trained(kind, counts, load_path=f"{folder}/{step}.pt")
        names = [name for name in expected if not name.rpartition(".")[2].startswith(ignored)]
        found[step] = [name for name in names if not torch.equal(values[name], expected[name])]
        found[step] += [] if are_same(drawn, numbers) else ["random numbers"]
    return found


@pytest.mark.parametrize("counts", [COUNTS, COUNTS[::-1]], ids=["first rank", "second rank"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumes_bit_for_bit_while_a_rank_is_idle(kind, counts, tmp_path, two_ranks: Ranks) -> None:
    assert two_ranks.run(differences, kind, counts, str(tmp_path)) == [{step: [] for step in STEPS}] * 2
