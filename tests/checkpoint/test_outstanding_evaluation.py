"""Checkpoints saved before or inside of an evaluation that a step is due for: a resumed run makes up for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Evaluator, Trainer
from composer.models import ComposerClassifier


class Evaluations(Callback):
    """Notes which evaluators ran after which batch."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str | None]] = []

    def eval_end(self, state: Any, logger: Any) -> None:
        self.found.append((int(state.train_phase.timestamp.batch), state.dataloader_label))


class SaveAt(Callback):
    """Saves at each occurrence of an event, the first of each batch."""

    def __init__(self, event: str, folder: Path) -> None:
        self.event, self.folder = event, folder
        self.trainer: Trainer | None = None

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        path = self.folder / f"{int(state.train_phase.timestamp.batch)}.pt"
        if event == self.event and self.trainer is not None and not path.exists():
            self.trainer.save_checkpoint(str(path))


def trained(intervals: dict[str, str], *callbacks: Callback, load_path: Path | None = None) -> list[Any]:
    """Train two epochs of 6 batches; return the evaluations in order."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    noted, network = Evaluations(), nn.Linear(4, 3)
    trainer = Trainer(
        model=ComposerClassifier(network, num_classes=3),
        train_dataloader=DataLoader(data, 4),
        eval_dataloader=[Evaluator(label=label, dataloader=DataLoader(data, 8), eval_interval=interval)
                         for label, interval in intervals.items()],
        optimizers=torch.optim.SGD(network.parameters(), lr=0.1),
        max_duration="12ba",
        callbacks=[noted, *callbacks],
        load_path=None if load_path is None else str(load_path),
        progress_bar=False,
    )  # fmt: skip
    for callback in callbacks:
        if isinstance(callback, SaveAt):
            callback.trainer = trainer
    trainer.fit()
    return noted.found


@pytest.mark.parametrize(
    ("event", "intervals", "step"),
    [
        ("batch_end", {"one": "2ba"}, 4),
        ("batch_end", {"one": "2ba", "two": "3ba"}, 4),
        ("batch_end", {"one": "5ba"}, 4),
        ("batch_end", {"one": "1ep"}, 12),
        ("epoch_end", {"one": "1ep"}, 6),
        ("epoch_end", {"one": "1ep"}, 12),
        ("eval_start", {"one": "2ba", "two": "3ba"}, 4),
        ("eval_batch_end", {"one": "2ba", "two": "5ba"}, 8),
        ("eval_end", {"one": "1ep", "two": "2ep"}, 6),
    ],
)
def test_only_what_is_due_is_made_up_for(event: str, intervals: dict[str, str], step: int, tmp_path: Path) -> None:
    whole = trained(intervals, SaveAt(event, tmp_path))
    assert trained(intervals, load_path=tmp_path / f"{step}.pt") == [one for one in whole if one[0] >= step]


def test_the_evaluation_after_an_exception_of_a_callback(tmp_path: Path) -> None:
    """The step is complete, so the next call of fit does not train its batch again, but evaluates."""

    class Fail(Callback):
        failed = False

        def batch_end(self, state: Any, logger: Any) -> None:
            if state.timestamp.batch == 4 and not self.failed:
                self.failed = True
                raise RuntimeError("once")

    torch.manual_seed(0)
    network, noted = nn.Linear(4, 3), Evaluations()
    data = DataLoader(TensorDataset(torch.randn(24, 4), torch.arange(24) % 3), 4)
    trainer = Trainer(
        model=ComposerClassifier(network, num_classes=3),
        train_dataloader=data,
        eval_dataloader=data,
        eval_interval="2ba",
        optimizers=torch.optim.SGD(network.parameters(), lr=0.1),
        max_duration="6ba",
        callbacks=[noted, Fail()],
        progress_bar=False,
    )
    with pytest.raises(RuntimeError, match="once"):
        trainer.fit()
    trainer.fit()
    assert [step for step, _ in noted.found] == [2, 4, 6]
