"""Metrics over several processes, of which some have had no data, or none lately."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import MeanMetric, SumMetric

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


def test_several_processes_agree(two_ranks: Ranks) -> None:
    expected = [{"mean": 2.0, "total": 4.0}, {"mean": 2.0, "total": 6.0}, {"mean": 3.0, "total": 12.0}]
    assert two_ranks.run(uneven) == [[pytest.approx(one) for one in expected]] * 2
    assert two_ranks.run(late) == [{"total": 5.0}] * 2
