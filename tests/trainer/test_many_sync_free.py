"""SyncFree with two processes: what they tell each other lies on the host, and nothing else is read."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from composer import dist
from composer.trainer.exchange import Told
from composer.trainer.shares import Shares
from tests.ranks import Ranks
from tests.trainer.cpu_reads import watched
from tests.trainer.test_sync_free import Step, run_of_80_steps


@contextlib.contextmanager
def unwatched(reads: Any):
    step, reads.step = reads.step, None
    try:
        yield
    finally:
        reads.step = step


def reads_of_a_run(more: dict[str, Any]) -> tuple[list[tuple[int, str]], list[int]]:
    """What is read in which step; counts are on the host on every device, unless they are of tokens."""
    with pytest.MonkeyPatch.context() as patch, watched(patch) as reads:
        told, of = Told.__init__, Shares.of

        def note(self: Told, *args: Any) -> None:
            with unwatched(reads):
                told(self, *args)

        def weigh(self: Shares, number: int) -> Any:
            with contextlib.nullcontext() if self._on_device else unwatched(reads):
                return of(self, number)

        patch.setattr(Told, "__init__", note)
        patch.setattr(Shares, "of", weigh)
        trainer, logs = run_of_80_steps(lambda step: setattr(reads, "step", step), **more)
        if dist.get_global_rank() == 1:
            trainer.state.callbacks.remove(logs[1])
        trainer.fit()
        trainer.close()
        return reads.found, [step for step, _ in logs[0].series("loss/train/total")]


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 3}])
def test_SyncFree_reads_in_step_50_only(more, two_ranks: Ranks) -> None:
    for found, steps in two_ranks.run(reads_of_a_run, more):
        # Nor are the metrics at the end of the epoch, which is after the last step, part of one.
        assert {step for step, _ in found if step <= 80} == {50}, found
        assert steps == list(range(80))


def reads_of_language() -> list[tuple[int, str]]:
    from composer import Trainer
    from tests.trainer.test_microbatch import LanguageModel, padded

    model = LanguageModel()
    with pytest.MonkeyPatch.context() as patch, watched(patch) as reads:
        told = Told.__init__

        def note(self: Told, *args: Any) -> None:
            with unwatched(reads):
                told(self, *args)

        patch.setattr(Told, "__init__", note)
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
    assert two_ranks.run(reads_of_language) == [[], []]
