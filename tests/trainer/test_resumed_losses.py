"""Losses that only some steps and ranks have are logged in a resumed run as in an uninterrupted one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from composer import Callback, ComposerModel, Trainer, dist
from composer.checkpoint import save_checkpoint
from composer.loggers import InMemoryLogger
from tests.common import FEATURES
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered

STEPS = 8
# By rank, the steps that have a loss: on one rank or on both, at first and later, and in another precision.
OCCASIONAL: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "early": ((0, 5), ()),
    "later": ((), (2, 5)),
    "on both": ((1, 2, 4, 7), (1, 4, 7)),
    "once": ((3,), ()),
    "exact": ((4, 6), (4, 6)),
}


class Occasional(ComposerModel):
    """A regression with losses that depend on the step, which the sample numbers tell."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)

    def forward(self, batch: Any) -> Any:
        return self.linear(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        step, rank = int(batch[2][0]) // 4, dist.get_global_rank()
        main = nn.functional.mse_loss(outputs, batch[1])
        found = {"main": main}
        for name, steps in OCCASIONAL.items():
            if step in steps[rank]:
                part = (outputs * (step + 2 * rank + 1) / 3).abs().mean()
                found[name] = part.double() / 3 if name == "exact" else part
        return found


class SaveEach(Callback):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        save_checkpoint(state, f"{self.folder}/{{batch}}.pt")


def losses_of(*callbacks: Callback, **more: Any) -> list[tuple[int, str, float]]:
    """The losses that are logged, with their steps."""
    torch.manual_seed(5)
    model, log = Occasional(), InMemoryLogger()
    loader = DataLoader(Numbered(4 * STEPS, torch.float32), batch_size=4 // dist.get_world_size())
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration=f"{STEPS}ba",
        callbacks=list(callbacks),
        loggers=log,
        progress_bar=False,
        device="cpu",
        **more,
    )
    trainer.fit()
    trainer.close()
    found = [(int(time.batch), name, float(value)) for name, values in log.data.items() for time, value in values]
    return sorted(one for one in found if one[1].startswith("loss/"))


def resumed_after_each_step(folder: str) -> tuple[list[Any], list[Any]]:
    """The losses of the uninterrupted run, and for each step those of a run that resumes after it."""
    whole = losses_of(SaveEach(folder))
    return whole, [losses_of(load_path=f"{folder}/{step}.pt") for step in range(1, STEPS)]


def test_losses_of_some_steps_are_logged_alike(tmp_path, two_ranks: Ranks) -> None:
    for whole, resumed in two_ranks.run(resumed_after_each_step, str(tmp_path)):
        names = {name.removeprefix("loss/train/") for _, name, _ in whole}
        assert names >= {"early", "later", "on both", "exact"}
        for step, found in enumerate(resumed, 1):
            assert found == [one for one in whole if one[0] >= step], step
