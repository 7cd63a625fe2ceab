"""Training in one process and in several, to be compared: the same global batches, divided among the ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader

from composer import Callback, ComposerModel, Trainer, dist, trees

# By what a trainer of several processes differs from one of a single process.
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"parallelism_config": {"fsdp": {}}},
    "hsdp": {"parallelism_config": {"fsdp": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2}}},
}


@dataclass(frozen=True)
class Trained:
    """What training led to.

    Attributes:
        losses: The loss of each batch.
        outcome: Tensors by name, whole; the weights, unless something else was asked for.
    """

    losses: list[float]
    outcome: dict[str, Tensor]

    def check(self, other: Trained, tolerance: float = 1e-5) -> None:
        """Raise unless another training led to the same, up to rounding."""
        torch.testing.assert_close(self.losses, other.losses, rtol=tolerance, atol=tolerance)
        assert self.outcome.keys() == other.outcome.keys()
        for name, value in self.outcome.items():
            found = other.outcome[name]
            torch.testing.assert_close(value, found, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")

    def check_exactly(self, other: Trained) -> None:
        """Raise unless another training led to the same bit for bit."""
        assert self.losses == other.losses
        assert self.outcome.keys() == other.outcome.keys()
        assert all(torch.equal(value, other.outcome[name]) for name, value in self.outcome.items())


class Losses(Callback):
    """Keeps the loss of each batch, of all processes together."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def batch_end(self, state, logger):
        self.values.append(float(state.total_loss_dict["loss/train/total"]))


def enlarged(batches: Any, times: int = 4) -> Any:
    """Data whose batches have every sample several times, so that there is something for each of many processes."""
    if isinstance(batches, DataLoader):
        assert batches.batch_size is not None
        return DataLoader(ConcatDataset([batches.dataset] * times), batches.batch_size * times)
    return [trees.map_tensors(lambda tensor: torch.cat([tensor] * times), batch) for batch in batches]


def share(batches: Any) -> Any:
    """The part of each batch that this process has, as even as can be."""
    rank, size = dist.get_global_rank(), dist.get_world_size()
    if isinstance(batches, DataLoader):
        assert batches.batch_size is not None
        data: Any = batches.dataset
        return DataLoader(data, batches.batch_size // size, sampler=dist.get_sampler(data))

    def part(tensor: Tensor) -> Tensor:
        number = len(tensor)
        return tensor[rank * number // size : (rank + 1) * number // size].clone()

    return [trees.map_tensors(part, batch) for batch in batches]


def alike_on_parts(model: Any) -> Any:
    """Take out of a model what makes the parts of a batch differ from the whole: dropout, and statistics of batches."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(2, child.num_features))
    return model


def whole(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors that may be divided among processes as whole ones."""
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in tensors.items()}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model, whole."""
    return {name: tensor.detach().clone() for name, tensor in whole(model.state_dict()).items()}


def trained(
    model: ComposerModel,
    batches: Any,
    outcome: Callable[[nn.Module], Mapping[str, Any]] = weights,
    callbacks: Sequence[Callback] = (),
    **arguments: Any,
) -> Trained:
    """Train a model on this process's part of the batches."""
    losses = Losses()
    if arguments.get("optimizers") is None:
        arguments["optimizers"] = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments.setdefault("max_duration", "1ep")
    with (
        warnings.catch_warnings(),
        Trainer(
            model=model,
            train_dataloader=share(batches),
            callbacks=[*callbacks, losses],
            progress_bar=False,
            seed=3,
            device="cpu",
            **arguments,
        ) as trainer,
    ):
        # Of what a last linear layer returns, which nobody edits in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        trainer.fit()
        return Trained(losses.values, {n: t.detach().clone() for n, t in whole(outcome(trainer.state.model)).items()})
