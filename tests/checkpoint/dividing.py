"""Small runs whose weights are divided among processes, for tests of checkpoints; called in those processes."""

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
    """All processes as a mesh, in a row by default."""
    names = ("tensor",) if not sizes else ("replicate", "shard")
    return init_device_mesh("cpu", sizes or (torch_dist.get_world_size(),), mesh_dim_names=names)


def network(seed: int = 0) -> nn.Sequential:
    """Rows that divide unevenly, fewer of them than processes, and buffers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def run(seed: int = 0, how: str = "fsdp", steps: int = 2, *, folders: bool = False) -> State:
    """A run after some steps on the same data everywhere, so that what it has become does not depend on the number."""
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
        if how == "tensor":  # the layers behind it would have to be divided to fit
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        else:
            model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return state


def full(tensor: Any) -> Tensor:
    """A tensor as a whole."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def weights(state: State) -> dict[str, Tensor]:
    """Everything in the model, whole."""
    return {name: full(value) for name, value in state.model.state_dict().items()}


def moments(state: State) -> dict[str, Tensor]:
    """Everything that the optimizer keeps, whole."""
    kept = state.optimizers[0].state_dict()["state"]
    return {f"{number}.{name}": full(value) for number, values in kept.items() for name, value in values.items()}


def kinds(state: State) -> dict[str, str]:
    """How everything that the optimizer keeps is divided."""
    kept = state.optimizers[0].state_dict()["state"]
    return {
        f"{number}.{name}": str(getattr(value, "placements", None))
        for number, values in kept.items()
        for name, value in values.items()
    }


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether names and values are the same."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
