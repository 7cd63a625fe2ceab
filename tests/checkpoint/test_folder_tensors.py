"""Read tensors of sharded checkpoints with any load planner, and nothing else."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import LoadItemType

from composer.checkpoint import UnsafeCheckpointError
from composer.checkpoint.folder_tensors import read_into
from tests.checkpoint import hostile_folders

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class ReadsBytes(dcp.DefaultLoadPlanner):
    """A planner that would unpickle."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        return replace(plan, items=[replace(item, type=LoadItemType.BYTE_IO) for item in plan.items])

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        raise AssertionError("This must not be reached.")


def test_tensors_planned_as_bytes_are_rejected(tmp_path) -> None:
    hostile_folders.foreign_folder(tmp_path / "dcp")
    with pytest.raises(UnsafeCheckpointError, match=r"'model\.w' in .* is not a tensor"):
        read_into({"model.w": torch.empty(8)}, tmp_path / "dcp", ReadsBytes())


def test_a_planner_that_transforms(tmp_path) -> None:
    class Doubles(dcp.DefaultLoadPlanner):
        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            tensor.mul_(2)

    hostile_folders.foreign_folder(tmp_path / "dcp")
    weight = torch.empty(8)
    read_into({"model.w": weight}, tmp_path / "dcp", Doubles())
    assert torch.equal(weight, 2 * torch.arange(8.0))
