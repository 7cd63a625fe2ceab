"""Tensors that are removed from caches."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import torch

from composer.memory.cached_tensors import remove_from_caches

MASK: torch.Tensor | None = None


def test_a_function_cache_is_cleared_also_inside_of_containers() -> None:
    @functools.lru_cache
    def masks(size: int) -> dict[str, tuple[torch.Tensor, ...]]:
        return {"causal": (torch.ones(size), torch.zeros(size))}

    remove_from_caches([masks(3)["causal"][1]])
    assert masks.cache_info().currsize == 0
    assert len(masks(3)["causal"]) == 2  # the value itself is whole, too


def test_entries_attributes_and_global_variables() -> None:
    module = sys.modules[__name__]
    module.MASK = torch.ones(2)
    kept = torch.ones(2)
    cache, holder = {4: torch.ones(4), 5: kept}, SimpleNamespace(mask=torch.ones(3), other=kept)
    remove_from_caches([module.MASK, cache[4], holder.mask])
    assert module.MASK is None
    assert list(cache) == [5]
    assert holder.mask is None
    assert holder.other is kept
