"""Training data that a later call of ``fit`` gives begin at their first batch, also in a run that was started again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer
from composer.warnings import ComposerWarning
from tests.common import At, Recorder, regression_data, trainer_of, weights
from tests.trainer.resuming import Augmented, build, shuffled
from tests.trainer.test_fit_calls import Kill

# A process that resumes at the end of an epoch has not stepped the optimizer itself.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")


def first_value(state) -> float:
    return state.batch[0].flatten()[0].item()


def values(data) -> list[float]:
    return [batch[0].flatten()[0].item() for batch in data]


@pytest.mark.parametrize("length", [2, 4, 6])
def test_other_data_begin_a_new_epoch(length) -> None:
    seen, recorder = At("before_forward", first_value), Recorder()
    trainer = trainer_of(max_duration="3ba", callbacks=[seen, recorder])
    trainer.fit()
    recorder.events.clear()
    other = regression_data(length, seed=9)
    trainer.fit(train_dataloader=other, duration="2ep")
    assert seen.found[3:] == values(other) * 2
    assert (trainer.state.timestamp.epoch, trainer.state.timestamp.batch_in_epoch) == (3, 0)
    assert recorder.events[:2] == ["fit_start", "epoch_start"]
    assert recorder.events.count("epoch_end") == 2


def test_the_same_data_continue() -> None:
    seen, data = At("before_forward", first_value), regression_data(4)
    trainer = trainer_of(data=data, max_duration=None, callbacks=seen)
    trainer.fit(duration="3ba")
    trainer.fit(train_dataloader=data, duration="3ba")
    assert seen.found == values(data + data[:2])


def test_an_argument_that_is_refused_leaves_the_epoch_as_it_was() -> None:
    seen, data = At("before_forward", first_value), regression_data(4)
    trainer = trainer_of(data=data, max_duration=None, callbacks=seen)
    schedule = torch.optim.lr_scheduler.StepLR(trainer.state.optimizers[0], 1)
    trainer.fit(duration="3ba", schedulers=schedule)
    with pytest.raises(ValueError, match="must not be negative"):
        trainer.fit(train_dataloader=regression_data(4, seed=9), duration="-1ba")
    assert (trainer.state.timestamp.batch_in_epoch, schedule.last_epoch) == (3, 0)
    trainer.fit(duration="2ba")
    assert seen.found == values(data + data[:1])


def test_an_iteration_counts_the_epoch_that_was_cut_short() -> None:
    trainer = trainer_of(max_duration="3ba")
    trainer.state._iteration_length = "1ep"
    trainer.fit()
    trainer.fit(train_dataloader=regression_data(4, seed=9), duration="1ep")
    assert trainer.state.timestamp.iteration == 2


class Stateful:
    """A loader that counts its epochs in its state."""

    def __init__(self) -> None:
        self.epoch = self.batch = 0

    def __iter__(self):
        while self.batch < 5:
            self.batch += 1
            generator = torch.Generator().manual_seed(10 * self.epoch + self.batch)
            yield torch.randn(4, 4, generator=generator), torch.arange(4) % 3
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


OTHER = {
    "same length": shuffled,
    "longer": lambda: DataLoader(Augmented(), 2, shuffle=True),
    "shorter": lambda: DataLoader(Augmented(), 8, shuffle=True),
    "stateful": Stateful,
}


def program(folder: Path, first: Any, other: Any, durations: tuple[str, str], *callbacks: Any) -> Trainer:
    given: dict[str, Any] = {"max_duration": None, "save_interval": "2ba", "autoresume": True, "schedulers": None}
    trainer = build(first(), save_folder=str(folder), callbacks=list(callbacks), **given)
    schedule = torch.optim.lr_scheduler.StepLR(trainer.state.optimizers[0], 1, 0.5)
    trainer.fit(duration=durations[0], schedulers=schedule)
    trainer.fit(train_dataloader=other(), duration=durations[1])
    return trainer


def ends(trainer: Trainer) -> list[Any]:
    """When each call began and was to end."""
    return [(call["began"]["ep"], call["began"]["ba"], call["end"]) for call in trainer.state.fit_calls]


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("durations", [("5ba", "9ba"), ("1ep", "6ba")])
def test_a_program_with_other_data_resumes_exactly(name, durations, tmp_path) -> None:
    first = Stateful if name == "stateful" else shuffled
    straight = program(tmp_path / "straight", first, OTHER[name], durations)
    began = straight.state.fit_calls[1]["began"]["ba"]
    for call, batch in [(1, 4), (2, began + 1), (2, began + 2), (2, began + 5)]:
        folder = tmp_path / f"{call}-{batch}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete", ComposerWarning)
            with pytest.raises(KeyboardInterrupt):
                program(folder, first, OTHER[name], durations, Kill(batch, call))
            again = program(folder, first, OTHER[name], durations)
        assert torch.equal(weights(again), weights(straight)), (call, batch)
        assert again.state.timestamp.epoch == straight.state.timestamp.epoch
        assert ends(again) == ends(straight)


def test_no_warning_that_the_data_changed(tmp_path) -> None:
    """The checkpoint at the end of the first call notes the data of that call."""
    durations = ("4ba", "3ba")

    def other() -> DataLoader[Any]:
        data = Augmented()
        data.x += 1
        return DataLoader(data, 4)

    with pytest.raises(KeyboardInterrupt):
        program(tmp_path, shuffled, other, durations, Kill(5, 2))
    with pytest.warns(ComposerWarning, match="already complete") as caught:
        program(tmp_path, shuffled, other, durations)
    assert not [one for one in caught if "other data" in str(one.message)]
