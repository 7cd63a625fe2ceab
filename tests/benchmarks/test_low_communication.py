"""Bytes are counted on real ranks, and the goals are of the contender that they name."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as torch_dist

from benchmarks import low_communication
from benchmarks.sent_bytes import OTHER, PARAMETERS, STEP, SentBytes, sent_by
from tests.ranks import Ranks


def counted() -> dict[str, float]:
    counter = SentBytes()
    with counter:
        torch_dist.all_reduce(torch.zeros(100))
        with counter.counting_as(PARAMETERS):
            torch_dist.broadcast(torch.zeros(10, dtype=torch.float64), 0)
            torch_dist.all_to_all_single(torch.zeros(8), torch.zeros(8))
            torch_dist.all_gather([torch.zeros(3) for _ in range(2)], torch.zeros(3))
    torch_dist.all_reduce(torch.zeros(100))  # is not counted
    return counter.sent


def test_collectives_of_a_rank(two_ranks: Ranks) -> None:
    expected = {OTHER: 400.0, PARAMETERS: 40.0 + 16.0 + 12.0}
    assert two_ranks.run(counted) == [expected, expected]


def test_unknown_collectives_are_not_counted_as_nothing() -> None:
    with pytest.raises(NotImplementedError, match="new_collective"):
        sent_by("new_collective", 1, 2)


def on_two_ranks(*arguments: object) -> object:
    return low_communication.on_rank(*arguments)


def test_low_communication(two_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_communication, "ask", lambda *given: two_ranks.run(on_two_ranks, *given)[0])
    report = low_communication.measure(
        seeds=(0, 1), steps=10, contenders=(low_communication.BASELINE, low_communication.DILOCO), trained_steps=5
    )
    (_, *plain), (_, *own), trained_plain, trained_own = report.rows
    weights = sum(weight.numel() for weight in low_communication.LanguageModel().parameters())
    assert plain[4] == pytest.approx(4 * weights, rel=1e-3)  # two ranks send all gradients once a step
    # In a round, a rank sends half of the differences and half of their averages, in int8.
    assert own[4] == pytest.approx(weights * (1 + 4 / 256) / low_communication.SYNC_EVERY, rel=0.02)
    assert plain[5] == own[5] < 400
    assert plain[6] == 1 < own[6]
    assert plain[2] == 1
    assert [goal.limit for goal in report.goals] == [1.02, 1.02, 1 / 50]
    assert plain[0] > trained_plain[1] > 0  # five steps before reduce the loss
    assert own[0] > trained_own[1] > 0
    assert set(report.samples[low_communication.DILOCO]["sent"]) >= {PARAMETERS, STEP}
