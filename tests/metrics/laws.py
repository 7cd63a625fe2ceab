"""What every metric promises, whatever it measures."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import Metric

Make = Callable[[], Metric]
Batches = list[tuple[Any, Any]]


class NoReads(TorchDispatchMode):
    """Fails on the operators that read values back from the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        banned = (
            "_local_scalar_dense",
            "aten.item",
            "aten.nonzero",
            "aten.equal",
            "unique",
            "masked_select",
            "bincount",
        )
        assert not any(part in str(func) for part in banned), str(func)
        return func(*args, **(kwargs or {}))


def value_of(make: Make, batches: Batches) -> torch.Tensor:
    """What a fresh metric computes of some batches."""
    metric = make()
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def reads_nothing_back(make: Make, batches: Batches) -> None:
    metric = make()
    with NoReads():
        for batch in batches:
            metric.update(*batch)
        metric.compute()


def copies_go_their_own_way(make: Make, batches: Batches) -> None:
    metric = make()
    metric.update(*batches[0])
    before = metric.compute().clone()
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert torch.equal(other.compute(), before)
        other.update(*batches[1])
        assert not torch.equal(other.compute(), before)
    metric._computed = None
    assert torch.equal(metric.compute(), before)


def reset_forgets(make: Make, batches: Batches) -> None:
    metric = make()
    metric.update(*batches[0])
    metric.reset()
    metric.update(*batches[1])
    assert torch.equal(metric.compute(), value_of(make, batches[1:2]))


def forward_gives_the_batch_and_keeps_the_total(make: Make, batches: Batches) -> None:
    metric = make()
    metric(*batches[0])
    torch.testing.assert_close(metric(*batches[1]), value_of(make, batches[1:2]))
    torch.testing.assert_close(metric.compute(), value_of(make, batches[:2]))


def inference_mode_and_outside_may_alternate(make: Make, batches: Batches) -> None:
    metric = make()
    with torch.inference_mode():
        metric.reset()
        metric.update(*batches[0])
    metric.update(*batches[1])
    with torch.inference_mode():
        metric.update(*batches[0])
    torch.testing.assert_close(metric.compute(), value_of(make, [*batches[:2], batches[0]]))


def keeps_no_graph(make: Make, batches: Batches) -> None:
    outputs, target = batches[0]
    assert not value_of(make, [(outputs.clone().requires_grad_(), target)]).requires_grad


def adds_up_ranks(make: Make, batches: Batches) -> None:
    first, second = make(), make()
    first.update(*batches[0])
    second.update(*batches[1])
    others = iter([getattr(second, name) for name in second._defaults])
    first.sync(dist_sync_fn=lambda state, group: [state, next(others)], distributed_available=lambda: True)
    value = type(first).compute(first).squeeze()
    torch.testing.assert_close(value, value_of(make, batches[:2]))


every_law = pytest.mark.parametrize(
    "law",
    [
        reads_nothing_back,
        copies_go_their_own_way,
        reset_forgets,
        forward_gives_the_batch_and_keeps_the_total,
        inference_mode_and_outside_may_alternate,
        keeps_no_graph,
        adds_up_ranks,
    ],
    ids=lambda law: law.__name__,
)
