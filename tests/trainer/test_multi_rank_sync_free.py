"""SyncFree with two ranks: nothing is read from the device except for logging."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer import dist
from tests.accelerator import FakeAccelerator, Wait
from tests.ranks import Ranks
from tests.trainer.test_sync_free import Step, run_of_80_steps


def waits_of_a_run(more: dict[str, Any]) -> tuple[list[Wait], list[int]]:
    """In which steps the host waits; the second process has another number of loggers."""
    with FakeAccelerator() as reads:
        trainer, logs = run_of_80_steps(lambda step: setattr(reads, "step", step), **more)
        if dist.get_global_rank() == 1:
            trainer.state.callbacks.remove(logs[1])
        trainer.fit()
        trainer.close()
    return reads.found, [step for step, _ in logs[0].series("loss/train/total")]


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 3}])
def test_SyncFree_reads_in_step_50_only(more, two_ranks: Ranks) -> None:
    for found, steps in two_ranks.run(waits_of_a_run, more):
        # Nor are the metrics at the end of the epoch, which is after the last step, part of one.
        assert {wait.step for wait in found if wait.step <= 80} == {50}, found
        assert steps == list(range(80))


def waits_of_language() -> list[Wait]:
    from composer import Trainer
    from tests.trainer.test_microbatch import LanguageModel, padded

    model = LanguageModel()
    with FakeAccelerator() as reads:
        trainer = Trainer(
            model=model,
            train_dataloader=[padded([5, 2, 0, 3], 6, seed) for seed in range(5)],
            max_duration="1ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1, foreach=True),
            device_train_microbatch_size=2,
            callbacks=Step(lambda step: setattr(reads, "step", step)),
            progress_bar=False,
        )
        trainer.fit()
        trainer.close()
    return reads.found


def test_SyncFree_of_language_models_weighted_by_tokens(two_ranks: Ranks) -> None:
    for found in two_ranks.run(waits_of_language):
        assert not found
