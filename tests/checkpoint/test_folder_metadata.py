"""Metadata of a sharded checkpoint: exact types, and shards that tile their tensors."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest
import torch

from composer.checkpoint import DamagedCheckpointError
from composer.checkpoint.folder_metadata import check_tensor_files, read_metadata, tiles
from tests.checkpoint import hostile_folders

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def counted(shards: list, shape: tuple[int, ...]) -> bool:
    """The same by counting, element by element."""
    for offsets, sizes in shards:
        if any(at + size > length for at, size, length in zip(offsets, sizes, shape, strict=True)):
            return False
    counts = torch.zeros(shape)
    for offsets, sizes in set(shards):
        counts[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))] += 1
    return bool((counts == 1).all())


@pytest.mark.parametrize("dims", [0, 1, 2, 3])
def test_tiles_matches_brute_force_counting(dims) -> None:
    chance = random.Random(dims)
    answers = set()
    for _ in range(500):
        shape = tuple(chance.randint(1, 4) for _ in range(dims))
        cuts = [sorted({0, length, *chance.choices(range(length + 1), k=2)}) for length in shape]
        shards = [
            (tuple(begin for begin, _ in block), tuple(end - begin for begin, end in block))
            for block in itertools.product(*(list(itertools.pairwise(cut)) for cut in cuts))
        ]
        for _ in range(chance.choice([0, 0, 1, 2])):
            change = chance.randrange(3)
            if change == 0 and shards:
                shards.pop(chance.randrange(len(shards)))
            elif change == 1:
                at = tuple(chance.randrange(length) for length in shape)
                shards.append((at, tuple(chance.randint(0, 2) for _ in shape)))
            elif shards:
                at, sizes = shards.pop()
                shards.append((tuple(max(0, x + chance.randint(-1, 1)) for x in at), sizes))
        answers.add(tiles(shards, shape))
        assert tiles(shards, shape) == counted(shards, shape), (shards, shape)
    assert answers == {True, False}


def test_many_shards() -> None:
    grid = [((x, y), (1, 1)) for x in range(100) for y in range(100)]
    assert tiles(grid, (100, 100))
    assert not tiles(grid[:-1], (100, 100))
    with pytest.raises(ValueError, match="split 9 dimensions"):
        tiles([((0,) * 9, (1,) * 9)], (2,) * 9)


def test_torch_files_are_read_as_by_torch(tmp_path) -> None:
    known = hostile_folders.foreign_folder(tmp_path / "dcp")
    read = read_metadata(tmp_path / "dcp")
    assert read.state_dict_metadata == known.state_dict_metadata
    assert read.storage_data == known.storage_data
    assert read.planner_data == known.planner_data
    for name in known.state_dict_metadata:
        check_tensor_files(tmp_path / "dcp", name, read)


def test_a_file_without_a_checksum(tmp_path) -> None:
    hostile_folders.foreign_folder(tmp_path / "dcp")
    with pytest.raises(DamagedCheckpointError, match=r"'__0_0\.distcp', which has no checksum"):
        check_tensor_files(tmp_path / "dcp", "model.w", read_metadata(tmp_path / "dcp"), [".metadata"])


def test_trailing_data(tmp_path) -> None:
    hostile_folders.foreign_folder(tmp_path / "dcp")
    path = tmp_path / "dcp" / ".metadata"
    path.write_bytes(path.read_bytes() + pickle.dumps(1))
    with pytest.raises(DamagedCheckpointError, match="bytes before its end"):
        read_metadata(tmp_path / "dcp")
