"""Communication among ranks is a part of a step, and the slowest rank is found."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from composer import Trainer, dist
from composer.diagnosis.communication import COMMUNICATION, WAITING, CommunicationTimer, across_ranks
from composer.diagnosis.step_clock import StepClock
from composer.diagnosis.step_split import shares_of
from composer.diagnosis.step_timer import StepTimer
from composer.diagnosis.verdict import judge
from composer.models import ComposerClassifier
from composer.trials.probe import Finished
from tests.ranks import Ranks

HEALTHY = {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.05}
FACTS: dict[str, Any] = {
    "data": {"workers": 0},
    "float64": False,
    "anomaly": False,
    "optimizers": [],
    "parameters": 2**20,
    "ranks": 2,
}


def judged(*ranks: dict[str, float]) -> Any:
    results = [{"steps": [rank, rank], "facts": FACTS, "lines": []} for rank in ranks]
    return judge(across_ranks(results))


def test_communication_of_all_ranks_is_the_verdict() -> None:
    verdict = judged({**HEALTHY, COMMUNICATION: 0.9}, {**HEALTHY, COMMUNICATION: 0.9})
    assert (verdict.cause, round(verdict.share, 2)) == ("communication", 0.49)
    assert any("4 MiB" in each for each in verdict.evidence)
    assert judged({**HEALTHY, COMMUNICATION: 0.1}, {**HEALTHY, COMMUNICATION: 0.1}).cause == "none"


def test_slow_data_of_one_rank_are_the_cause_and_not_communication() -> None:
    slow, fast = {**HEALTHY, "data": 2.0, COMMUNICATION: 0.01}, {**HEALTHY, "data": 0.0, COMMUNICATION: 2.01}
    verdict = judged(fast, slow)
    assert verdict.cause == "data"
    assert "rank 1" in verdict.text
    assert any("rank 0, which waits" in each for each in verdict.evidence)


def test_a_rank_with_more_to_compute_is_named() -> None:
    slow, fast = {**HEALTHY, "forward": 1.3, COMMUNICATION: 0.0}, {**HEALTHY, COMMUNICATION: 1.0}
    verdict = judged(slow, fast)
    assert (verdict.cause, verdict.where) == ("imbalance", "forward")
    assert "rank 0" in verdict.text


def test_ranks_that_wait_for_each_other_in_turn() -> None:
    slow, fast = {**HEALTHY, "forward": 1.3, COMMUNICATION: 0.0}, {**HEALTHY, COMMUNICATION: 1.0}
    found = across_ranks([{"steps": [slow, fast], "facts": FACTS}, {"steps": [fast, slow], "facts": FACTS}])
    assert shares_of(found)[WAITING] == pytest.approx(0.256, abs=0.001)
    assert sum(shares_of(found).values()) == pytest.approx(1)
    verdict = judge(found)
    assert verdict.cause == "imbalance"
    assert "each other" in verdict.text


def test_one_rank_has_no_hooks() -> None:
    model = ComposerClassifier(nn.Linear(2, 2), num_classes=2)
    timer = CommunicationTimer(StepClock())
    with Trainer(model=model, progress_bar=False) as trainer:
        timer.watch(trainer)
    assert not model.module.weight._post_accumulate_grad_hooks
    assert torch.distributed.Work.wait is not None and "timed" not in torch.distributed.Work.wait.__name__


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if dist.get_global_rank() == 1:
            time.sleep(0.01)
        return torch.randn(64), index % 2


def trains(config: Any) -> float:
    """Train with slow data on rank 1; return the seconds of communication of this rank."""
    clock, count = StepClock(), [0]

    def ended() -> None:
        count[0] += 1
        if count[0] == 6:
            raise Finished

    wait = torch.distributed.Work.wait
    timer = StepTimer(clock, ended)
    model = ComposerClassifier(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 2)), num_classes=2)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(Rows(), 4),
        optimizers=torch.optim.SGD(model.parameters(), 0.1),
        max_duration="9ep",
        callbacks=[timer],
        progress_bar=False,
        parallelism_config=config,
    ) as trainer:
        timer.watch(trainer)
        with contextlib.suppress(Finished):
            trainer.fit()
    assert torch.distributed.Work.wait is wait
    assert len(clock.steps) == 6
    return sum(step.get(COMMUNICATION, 0.0) for step in clock.steps)


@pytest.mark.parametrize("config", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
def test_the_fast_rank_waits_in_its_collectives(config: Any, two_ranks: Ranks) -> None:
    fast, slow = two_ranks.run(trains, config)
    assert 0 < slow < fast
    assert fast > 0.1  # rank 1 sleeps for 0.04 s a step
