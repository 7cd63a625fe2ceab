"""Train with one rank and with multiple ranks on the same global batches, sharded among the ranks, and compare."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader

from composer import Callback, ComposerModel, Trainer, dist, trees

# Trainer arguments of each distributed strategy.
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"parallelism_config": {"fsdp": {}}},
    "hsdp": {"parallelism_config": {"fsdp": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2}}},
}


@dataclass(frozen=True)
class Trained:
    """The result of a training run.

    Attributes:
        losses: The loss of each batch.
        outcome: Full tensors by name; the weights by default.
    """

    losses: list[float]
    outcome: dict[str, Tensor]

    def check(self, other: Trained, tolerance: float = 1e-5) -> None:
        """Raise unless another result is equal up to rounding."""
        torch.testing.assert_close(self.losses, other.losses, rtol=tolerance, atol=tolerance)
        assert self.outcome.keys() == other.outcome.keys()
        for name, value in self.outcome.items():
            found = other.outcome[name]
            torch.testing.assert_close(value, found, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")

    def check_exactly(self, other: Trained) -> None:
        """Raise unless another result is equal bit for bit."""
        assert self.losses == other.losses
        assert self.outcome.keys() == other.outcome.keys()
        assert all(torch.equal(value, other.outcome[name]) for name, value in self.outcome.items())


class Losses(Callback):
    """Keeps the loss of each batch, reduced over all ranks."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def batch_end(self, state, logger):
        self.values.append(float(state.total_loss_dict["loss/train/total"]))


def repeat_batches(batches: Any, times: int = 4) -> Any:
    """Repeat every sample in each batch, so that every rank has samples."""
    if isinstance(batches, DataLoader):
        assert batches.batch_size is not None
        return DataLoader(ConcatDataset([batches.dataset] * times), batches.batch_size * times)
    return [trees.map_tensors(lambda tensor: torch.cat([tensor] * times), batch) for batch in batches]


def local_shard(batches: Any) -> Any:
    """Return this rank's shard of each batch, as even as possible."""
    rank, size = dist.get_global_rank(), dist.get_world_size()
    if isinstance(batches, DataLoader):
        assert batches.batch_size is not None
        data: Any = batches.dataset
        return DataLoader(data, batches.batch_size // size, sampler=dist.get_sampler(data))

    def shard(tensor: Tensor) -> Tensor:
        number = len(tensor)
        return tensor[rank * number // size : (rank + 1) * number // size].clone()

    return [trees.map_tensors(shard, batch) for batch in batches]


def without_batch_dependence(model: Any) -> Any:
    """Remove dropout and replace BatchNorm, so that shards of a batch compute what the full batch does."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(2, child.num_features))
    return model


def full_tensors(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Unshard tensors."""
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in tensors.items()}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the full state of a model."""
    return {name: tensor.detach().clone() for name, tensor in full_tensors(model.state_dict()).items()}


def trained(
    model: ComposerModel,
    batches: Any,
    outcome: Callable[[nn.Module], Mapping[str, Any]] = weights,
    callbacks: Sequence[Callback] = (),
    **arguments: Any,
) -> Trained:
    """Train a model on this rank's shard of the batches."""
    losses = Losses()
    if arguments.get("optimizers") is None:
        arguments["optimizers"] = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments.setdefault("max_duration", "1ep")
    with (
        warnings.catch_warnings(),
        Trainer(
            model=model,
            train_dataloader=local_shard(batches),
            callbacks=[*callbacks, losses],
            progress_bar=False,
            seed=3,
            device="cpu",
            **arguments,
        ) as trainer,
    ):
        # For the output of a last linear layer, which is not edited in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        trainer.fit()
        return Trained(
            losses.values, {n: t.detach().clone() for n, t in full_tensors(outcome(trainer.state.model)).items()}
        )
