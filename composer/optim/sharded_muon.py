"""Muon for sharded matrices (FSDP, tensor parallelism): all-gather, orthogonalize, broadcast.

The Muon update needs full matrices. They are all-gathered a few at a time, in bfloat16. Each rank orthogonalizes one of
them and broadcasts the result, so the work is split among the ranks like the weights.
Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.optim import Muon, Optimizer

from composer import dist
from composer.dist.dtensor import is_dtensor, local_tensors
from composer.optim.muon import MuonAdamW
from composer.optim.wrapped_optimizer import unwrapped

__all__ = ["step_sharded"]


def step_sharded(optimizer: Optimizer) -> None:
    """Add hooks to a :class:`torch.optim.Muon` or :class:`.MuonAdamW` that update sharded matrices.

    They are updated before the other parameters, with the same result as for full matrices.

    Args:
        optimizer: The optimizer, or a wrapper of it such as :class:`.SAMOptimizer`, which evaluates gradients before it
            steps the wrapped one; an optimizer of another class is left unchanged.

    >>> step_sharded(Muon([torch.nn.Parameter(torch.ones(2, 2))]))
    """
    optimizer = unwrapped(optimizer)
    if not isinstance(optimizer, (Muon, MuonAdamW)):
        return
    stepped: list[tuple[Tensor, Tensor]] = []

    def before(*unused: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("muon", True):
                matrices = [p for p in group["params"] if p.grad is not None and is_dtensor(p)]
                _step(optimizer, group, matrices)
                stepped.extend((matrix, matrix.grad) for matrix in matrices)
        for matrix, _ in stepped:
            matrix.grad = None  # so that the optimizer skips it

    def after(*unused: Any) -> None:
        for matrix, gradient in stepped:
            matrix.grad = gradient
        stepped.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


@torch.no_grad()
def _step(optimizer: Optimizer, group: dict[str, Any], matrices: Sequence[Any]) -> None:
    """Update the matrices of a group, as many at a time as there are ranks."""
    lr, momentum = float(group["lr"]), group["momentum"]
    meshes = {matrix.device_mesh: None for matrix in matrices}
    for mesh in meshes:
        on_mesh = [matrix for matrix in matrices if matrix.device_mesh == mesh]
        ranks: list[int] = mesh.mesh.flatten().tolist()
        for start in range(0, len(on_mesh), len(ranks)):
            chunk = on_mesh[start : start + len(ranks)]
            moves = _directions(optimizer, group, chunk, mesh, ranks, momentum)
            for matrix, move in zip(chunk, moves, strict=True):
                rate = lr * _adjustment(group["adjust_lr_fn"], *matrix.shape)
                weight = local_tensors([matrix])[0]
                weight.mul_(1 - lr * group["weight_decay"]).add_(move, alpha=-rate)


def _directions(
    optimizer: Optimizer, group: dict[str, Any], chunk: Sequence[Any], mesh: Any, ranks: Sequence[int], momentum: float
) -> list[Tensor]:
    """Return the local shard of each matrix's update direction."""
    from torch.distributed.tensor import distribute_tensor

    here = dist.get_global_rank()
    splits_work = len(ranks) > 1 and (mesh.ndim == 1 or len(ranks) == dist.get_world_size())
    full_matrices: list[Tensor] = []
    for index, matrix in enumerate(chunk):
        full_matrix = _momentum(optimizer, matrix, momentum, nesterov=group["nesterov"]).full_tensor()
        if not splits_work or ranks[index] == here:
            full_matrix = _orthogonal(full_matrix, group["ns_coefficients"], group["ns_steps"], group["eps"])
        full_matrices.append(full_matrix.contiguous())
    if splits_work:
        process_group = mesh.get_group() if mesh.ndim == 1 else None
        for index, full_matrix in enumerate(full_matrices):
            torch_dist.broadcast(full_matrix, ranks[index], group=process_group)
    return [
        local_tensors([distribute_tensor(full_matrix, mesh, matrix.placements, src_data_rank=None)])[0]
        for full_matrix, matrix in zip(full_matrices, chunk, strict=True)
    ]


def _momentum(optimizer: Optimizer, matrix: Any, momentum: float, *, nesterov: bool) -> Any:
    """Update the momentum buffer with the current gradient, and return the momentum, sharded, in bfloat16."""
    state: dict[str, Any] = optimizer.state[matrix]
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(matrix.grad, memory_format=torch.preserve_format)
    buffer = state["momentum_buffer"]
    buffer.lerp_(matrix.grad, 1 - momentum)
    return (matrix.grad.lerp(buffer, momentum) if nesterov else buffer).bfloat16()


def _orthogonal(matrix: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """Orthogonalize by Newton-Schulz iteration: X <- a X + (b A + c A^2) X with A = X X^T."""
    a, b, c = coefficients
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)  # singular values of at most one, so that the iteration converges
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _adjustment(name: str | None, rows: int, columns: int) -> float:
    """Return the learning-rate factor for a shape, by the optimizer's ``adjust_lr_fn``."""
    if name == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
