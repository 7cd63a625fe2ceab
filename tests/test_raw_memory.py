"""Views of memory at an address."""

from __future__ import annotations

import torch

from composer._raw_memory import memory_at


def test_a_view_follows_the_memory_and_writes_it() -> None:
    tensor = torch.arange(4, dtype=torch.uint8)
    memory = memory_at(tensor.data_ptr() + 1, 2)
    tensor.add_(5)
    assert bytes(memory) == bytes([6, 7])
    memory[:] = bytes([0, 9])
    assert tensor.tolist() == [5, 0, 9, 8]
