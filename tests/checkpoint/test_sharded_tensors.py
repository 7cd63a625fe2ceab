"""Sharded tensors, unsharded and sharded again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from composer.checkpoint.sharded_tensors import (
    Layout,
    has_sharded_tensors,
    is_dtensor,
    shard_bounds,
    shard_like,
    unshard,
)
from tests.checkpoint.sharding import full, mesh, run

SHAPES = [(4, 2), (3, 2), (1, 2), (5,), (0, 3), (2, 3, 2)]


def round_trip(dim: int) -> list[Any]:
    found = []
    for shape in SHAPES:
        tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        placement = Shard(dim) if dim < len(shape) else Replicate()
        divided = distribute_tensor(tensor, mesh(), [placement])
        again = shard_like(tensor.double(), divided)
        held: Any = again
        found.append(
            (
                shard_bounds(divided),
                again.dtype,
                held.placements == divided.placements,
                torch.equal(held.to_local().float(), divided.to_local()),
                torch.equal(full(again), tensor.double()),
            )
        )
    return found


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_are_slices_of_the_full_tensor(dim, two_ranks) -> None:
    answers = two_ranks.run(round_trip, dim)
    for shape, *ranks in zip(SHAPES, *answers, strict=True):
        for _, dtype, same_place, same_part, same_whole in ranks:
            assert dtype is torch.float64
            assert same_place and same_part and same_whole
        length = shape[dim] if dim < len(shape) else 0
        if dim < len(shape):
            assert sum(part[1][dim] for part, *_ in ranks) == length
            assert ranks[1][0][0][dim] == ranks[0][0][1][dim] or not length


def gathered() -> Any:
    state = run()
    weight = state.model.get_parameter("0.weight").detach()
    plain = torch.ones(2)
    content = {"a": weight, "b": [weight, (plain, 1)], "c": {"buffer": plain}, "d": torch.empty(0)}
    result = unshard(content)
    plain.zero_()
    return result, full(weight), has_sharded_tensors(content), has_sharded_tensors(result)


def test_rank_zero_gets_a_copy(two_ranks) -> None:
    (first, weight, before, after), (other, *_) = two_ranks.run(gathered)
    assert before and not after
    assert torch.equal(first["a"], weight)
    assert first["b"][0].data_ptr() == first["a"].data_ptr()  # what was one tensor is one
    assert first["b"][1][0].tolist() == [1, 1]
    assert first["c"]["buffer"].tolist() == [1, 1]
    assert first["d"].shape == (0,)
    assert other["a"].numel() == other["c"]["buffer"].numel() == 0


def test_single_process_gets_a_copy_too() -> None:
    weight = torch.ones(2)
    copy = unshard({"a": weight, "b": weight, "c": torch.ones(2)})
    weight.zero_()
    assert copy["a"] is copy["b"] and copy["a"] is not copy["c"]
    assert copy["a"].tolist() == [1, 1]
    assert not is_dtensor(weight)


def gathered_without_a_collective() -> Any:
    """Unshard tensors of which each rank holds all elements, then change them in place, as training does."""
    grid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard"))
    held: dict[str, Any] = {
        "replicated": distribute_tensor(torch.ones(3), mesh(), [Replicate()]),
        "sharded over one rank": distribute_tensor(torch.ones(3), grid, [Replicate(), Shard(0)]),
    }
    copy = unshard(held)
    for tensor in held.values():
        tensor.to_local().zero_()
    return {name: tensor.tolist() for name, tensor in copy.items()}


def test_tensors_that_need_no_collective_are_copied(two_ranks) -> None:
    first, _ = two_ranks.run(gathered_without_a_collective)
    assert first == {"replicated": [1, 1, 1], "sharded over one rank": [1, 1, 1]}


def layouts() -> Any:
    layout = Layout(run().model)
    weight: Any = layout.empty(("state", "optimizers", 0, "0.weight", "exp_avg"), (5, 3), torch.float64, None)
    rows: Any = layout.empty(("0.weight", "row"), (5, 1), torch.float32, (0,))
    shard = layout.shard(
        {
            "model": {"0.weight": torch.ones(5, 3), "1.running_mean": torch.ones(5)},
            "other": [(torch.ones(5, 3), 2)],
            "0.weight": {"step": torch.tensor(1.0), "mask": torch.ones(2)},
        }
    )
    factor = layout.shard({"0.weight": {"row": torch.ones(5, 1), "step": torch.tensor(1.0)}}, ("optimizers",))
    return {
        "moment": (weight.dtype, str(weight.placements)),
        "rows": (tuple(rows.shape), str(rows.placements)),
        "of another shape": is_dtensor(layout.empty(("0.weight", "x"), (2,), torch.float32, None)),
        "unknown": is_dtensor(layout.empty(("x",), (5, 3), torch.float32, (0,))),
        "on other axes": str(getattr(layout.empty(("0.weight",), (5, 1), torch.float32, (0, None)), "placements", "")),
        "weight": is_dtensor(shard["model"]["0.weight"]),
        "buffer": is_dtensor(shard["model"]["1.running_mean"]),
        "by chance": is_dtensor(shard["other"][0][0]),
        "step": is_dtensor(shard["0.weight"]["step"]),
        "mask": is_dtensor(shard["0.weight"]["mask"]),
        "factor": str(factor["0.weight"]["row"].placements),
        "its step": is_dtensor(factor["0.weight"]["step"]),
        "whole": layout.is_unsharded,
    }


def test_tensor_layouts(two_ranks) -> None:
    for answer in two_ranks.run(layouts):
        assert answer == {
            "moment": (torch.float64, str((Shard(0),))),
            "rows": ((5, 1), str((Shard(0),))),
            "of another shape": False,
            "unknown": False,
            "on other axes": str((Replicate(),)),
            "weight": True,
            "buffer": False,
            "by chance": False,
            "step": False,
            "mask": False,
            "factor": str((Replicate(),)),
            "its step": False,
            "whole": False,
        }


def test_unsharded_model_is_not_sharded() -> None:
    layout = Layout(nn.Linear(2, 1))
    tree = {"weight": torch.ones(1, 2)}
    assert layout.shard(tree) is tree
    assert layout.empty(("weight",), (1, 2), torch.float64, (0,)).dtype is torch.float64
