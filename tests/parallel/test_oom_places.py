"""MicrobatchOOM of one rank or both, wherever it happens between two collectives: no deadlock, and the same training.

The model has buffers, which DDP would broadcast in its forward pass.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule

from composer import dist
from tests.ranks import Ranks
from tests.simulated_oom import EVENTS, Limit, train

pytestmark = pytest.mark.slow

# Of a rank that hangs, rather than one that is slow.
LIMIT = 120.0

# A batch is split once its microbatches are smaller than the full batch, which did not fit.
PLACES: list[str | tuple[str, ...]] = [
    "transform", ("forward", "split"), "samples", "tokens", "forward", "loss", "backward", "step", *EVENTS
]  # fmt: skip
FSDP = {"parallelism_config": {"fsdp": {}}}
WAYS: dict[str, dict[str, Any]] = {
    "single": {"ddp_sync_strategy": "single_auto_sync"},
    "multi": {"ddp_sync_strategy": "multi_auto_sync"},
    "forced": {"ddp_sync_strategy": "forced_sync"},
    "unused": {"find_unused_parameters": True},
    "fsdp": FSDP,
    "fsdp_last": {**FSDP, "ddp_sync_strategy": "single_auto_sync"},
}


def compare(
    places: list[tuple[Any, Any]], arguments: dict[str, Any], manual: dict[str, Any], first: int
) -> dict[str, tuple[bool, bool, int]]:
    """Run out at places of the two ranks: whether weights and sizes are those of given sizes, and how often it did."""
    gc.collect()
    gc.freeze()  # or each failure, which collects garbage, would take most of a second
    expected: dict[bool, Any] = {}
    found: dict[str, tuple[bool, bool, int]] = {}
    for place in places:
        where = place[dist.get_global_rank()]
        by_tokens = "tokens" in str(place)
        common = {"samples": 8, "batches": (first + 2, first + 2), "accumulate_train_batch_on_tokens": by_tokens}
        if by_tokens not in expected:
            expected[by_tokens] = train(Limit(), 8, sizes={first: 2}, **common, **manual)
        digest, sizes, failures = train(Limit(where, 2, since=first), "auto", **common, **arguments)
        found[str(place)] = (digest == expected[by_tokens][0], sizes == expected[by_tokens][1], len(failures))
    return found


def check(ranks: Ranks, way: str, places: list[tuple[Any, Any]], first: int) -> None:
    arguments = WAYS[way]
    # Each microbatch would round.
    manual = {"ddp_sync_strategy": "forced_sync"} if way in ("multi", "unused") else arguments
    for rank, found in enumerate(ranks.run(compare, places, arguments, manual, first, timeout=LIMIT)):
        failing = {str(place): 2 if place[rank] else 0 for place in places}
        assert found == {place: (True, True, times) for place, times in failing.items()}


@pytest.mark.parametrize(
    ("way", "first"),
    [("single", 0), ("single", 1), ("multi", 1), ("forced", 0), ("unused", 1), ("fsdp", 0), ("fsdp_last", 1)],
)
def test_MicrobatchOOM_at_each_place_of_one_rank(two_ranks: Ranks, way, first) -> None:
    """In the first batch, or in the second, before which DDP rebuilds its buckets unless they are fixed."""
    if "fsdp" in way and not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("this version of torch cannot leave the middle of a pass")
    # What optimizers make in the first step is what they need; with sharded weights they cannot be undone.
    known = [place for place in PLACES if place != "step" or (first == 0 and "fsdp" not in way)]
    failing = first % 2  # of the ranks
    check(two_ranks, way, [(None, place) if failing else (place, None) for place in known], first)


@pytest.mark.parametrize("way", ["single", "fsdp"])
def test_MicrobatchOOM_at_different_places_of_both_ranks(two_ranks: Ranks, way) -> None:
    if "fsdp" in way and not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("this version of torch cannot leave the middle of a pass")
    places = ["samples", "before_forward", "backward"]
    check(two_ranks, way, [(one, other) for one in places for other in places], 1)
