"""Metrics over several processes, of which some have had no data, or none lately."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric, MinMetric, SumMetric

from composer import dist
from composer.metrics.across_ranks import compute_across_ranks
from tests.ranks import Ranks


def test_one_process_leaves_out_what_has_seen_nothing() -> None:
    mean, total = MeanMetric(), SumMetric()
    mean.update(2.0)
    assert compute_across_ranks({"mean": mean, "total": total}) == {"mean": torch.tensor(2.0)}
    assert compute_across_ranks({}) == {}


def uneven() -> list[dict[str, float]]:
    """The first process has three values, the second one, the third kind of metric none; look after each."""
    metrics = {"mean": MeanMetric(), "total": SumMetric(), "unused": SumMetric()}
    mine = [1.0, 2.0, 6.0] if dist.get_global_rank() == 0 else [3.0]
    found = []
    for step in range(3):
        for value in mine[step : step + 1]:
            metrics["mean"].update(value)
            metrics["total"].update(value)
        found.append({name: float(value) for name, value in compute_across_ranks(metrics).items()})
    return found


def late() -> dict[str, float]:
    """Only the second process has data."""
    total = SumMetric()
    if dist.get_global_rank() == 1:
        total.update(5.0)
    return {name: float(value) for name, value in compute_across_ranks({"total": total}).items()}


METRICS = [SumMetric, MeanMetric, MaxMetric, MinMetric, CatMetric]


def reduced_and_gathered(kind: type[Metric], state_type: torch.dtype) -> tuple[list[float], list[float], bool]:
    """The value with reduced states, and as torchmetrics computes it from the states of all ranks."""
    metric = kind()
    metric.update(torch.tensor([1.0, 4.0] if dist.get_global_rank() else [-2.0, 3.0, 0.5]).to(state_type))
    reduced = compute_across_ranks({"metric": metric})["metric"]
    metric._computed = None
    return reduced.flatten().tolist(), metric.compute().flatten().tolist(), metric.dist_sync_fn is None


@pytest.mark.parametrize("state_type", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", METRICS)
def test_reduced_states_give_what_gathered_ones_give(two_ranks: Ranks, kind, state_type) -> None:
    for reduced, gathered, is_left_alone in two_ranks.run(reduced_and_gathered, kind, state_type):
        assert sorted(reduced) == sorted(gathered)
        assert is_left_alone


class Any_(Metric):
    """Whether any value is positive: a sum of booleans, which torchmetrics counts."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("found", torch.tensor(False), dist_reduce_fx="sum")

    def update(self, value: float) -> None:
        self.found = self.found | (value > 0)

    def compute(self) -> torch.Tensor:
        return torch.as_tensor(self.found).float()


def booleans() -> float:
    metric = Any_()
    metric.update(1.0)
    return float(compute_across_ranks({"any": metric})["any"])


def test_booleans_are_counted_as_torchmetrics_does(two_ranks: Ranks) -> None:
    assert two_ranks.run(booleans) == [2.0, 2.0]


def test_several_processes_agree(two_ranks: Ranks) -> None:
    expected = [{"mean": 2.0, "total": 4.0}, {"mean": 2.0, "total": 6.0}, {"mean": 3.0, "total": 12.0}]
    assert two_ranks.run(uneven) == [[pytest.approx(one) for one in expected]] * 2
    assert two_ranks.run(late) == [{"total": 5.0}] * 2
