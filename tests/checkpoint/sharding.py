"""Small runs with sharded weights (FSDP, HSDP, tensor parallel), for checkpoint tests; called on each rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from composer import State
from composer.core.checkpoint_folders import CheckpointFolders


def mesh(*sizes: int) -> DeviceMesh:
    """A device mesh over all ranks, one-dimensional by default."""
    names = ("tensor",) if not sizes else ("replicate", "shard")
    return init_device_mesh("cpu", sizes or (torch_dist.get_world_size(),), mesh_dim_names=names)


def network(seed: int = 0) -> nn.Sequential:
    """A network with rows that shard unevenly, fewer rows than ranks, and buffers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def run(seed: int = 0, how: str = "fsdp", steps: int = 2, *, folders: bool = False) -> State:
    """A run after some steps on the same data on every rank, so that the result does not depend on the world size."""
    model = network(seed)
    if how == "tensor":
        parallelize_module(model, mesh(), {"0": ColwiseParallel()})
    elif how == "hybrid":
        fully_shard(model, mesh=mesh(2, 2))
    elif how == "fsdp":
        fully_shard(model, mesh=mesh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    state = State(model=model, optimizers=optimizer, max_duration="3ba")
    state.checkpoint_folders = CheckpointFolders() if folders else None
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        inputs = torch.randn(4, 3, generator=generator)
        if how == "tensor":  # the following layers would have to be sharded, too
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        else:
            model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return state


def full(tensor: Any) -> Tensor:
    """Return the full tensor."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def weights(state: State) -> dict[str, Tensor]:
    """Return the full state of the model."""
    return {name: full(value) for name, value in state.model.state_dict().items()}


def moments(state: State) -> dict[str, Tensor]:
    """Return the full optimizer states."""
    kept = state.optimizers[0].state_dict()["state"]
    return {f"{number}.{name}": full(value) for number, values in kept.items() for name, value in values.items()}


def placements(state: State) -> dict[str, str]:
    """Return the placements of the optimizer states."""
    kept = state.optimizers[0].state_dict()["state"]
    return {
        f"{number}.{name}": str(getattr(value, "placements", None))
        for number, values in kept.items()
        for name, value in values.items()
    }


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether names and values are equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
