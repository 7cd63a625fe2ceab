"""Training continues on multiple ranks after an exception in a step."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from composer import Callback, dist
from tests.common import At, Regression, regression_data, trainer_of
from tests.ranks import Ranks
from tests.trainer.test_failed_step import BoomError, Once


class Fragile(torch.autograd.Function):
    """The identity, whose backward pass fails once when it is asked to."""

    fails: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        if Fragile.fails:
            Fragile.fails.clear()
            raise BoomError
        return gradients[0]


class Deep(Regression):
    """Fails between the gradients of its layers, when those of the last are on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, batch):
        return self.linear(Fragile.apply(self.first(batch[0])))


def in_ranks(event: str | None, arguments: dict[str, Any]):
    torch.manual_seed(0)
    samples = [pair for batch in regression_data(7, 4) for pair in zip(*batch, strict=True)][:27]
    callbacks: list[Callback] = []
    if event == "backward":
        callbacks = [At("before_backward", lambda s: Fragile.fails.append(True) if s.timestamp.batch == 2 else None)]
    elif event is not None:
        callbacks = [Once(event)]
    trainer = trainer_of(Deep(), DataLoader(samples, batch_size=2), callbacks=callbacks, seed=1, **arguments)
    for _ in range(2):
        try:
            trainer.fit()
            break
        except BoomError:
            trainer.state.callbacks = []
    state = trainer.state
    found = [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in state.model.parameters()]
    losses = {name: loss.item() for name, loss in state.total_loss_dict.items()}
    return [p.tolist() for p in found], losses, [int(state.timestamp.batch), int(state.timestamp.sample)]


EVENTS = [
    "before_dataloader", "after_dataloader", "before_forward", "after_loss", "backward", "after_backward",
    "after_train_batch",
]  # fmt: skip
RANKS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "microbatches": {"device_train_microbatch_size": 1},
    "fsdp": {"parallelism_config": {"fsdp": {}}},
}


@pytest.mark.parametrize("way", RANKS)
def test_two_ranks_train_as_without_the_failure(two_ranks: Ranks, way: str) -> None:
    expected = two_ranks.run(in_ranks, None, RANKS[way])
    assert [counts for *_, counts in expected] == [[7, 27]] * 2
    for event in EVENTS:
        assert two_ranks.run(in_ranks, event, RANKS[way]) == expected, event


def at_different_batches():
    event = ["after_train_batch", "batch_checkpoint"][dist.get_global_rank()]
    trainer = trainer_of(callbacks=Once(event, 2 + dist.get_global_rank()))
    with pytest.raises(BoomError):
        trainer.fit()
    with pytest.raises(RuntimeError, match="different numbers of batches, 2 to 3: an exception ended the last"):
        trainer.fit()


def test_ranks_at_different_batches_raise(two_ranks: Ranks) -> None:
    two_ranks.run(at_different_batches)
