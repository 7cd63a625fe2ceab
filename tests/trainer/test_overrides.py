"""Overrides are called instead of Trainer(...), fit and the methods that save, for all trainers of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, Trainer
from composer.trainer.overrides import TrainerOverrides, override_trainers
from tests.common import Regression, regression_data


class Notes(TrainerOverrides):
    """Notes the calls, and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def init(self, trainer, init, arguments) -> None:
        self.calls.append(("init", arguments["max_duration"]))
        super().init(trainer, init, arguments)

    def fit(self, trainer, fit, arguments) -> None:
        self.calls.append(("fit", arguments["duration"]))
        super().fit(trainer, fit, arguments)

    def save(self, trainer, save, arguments) -> Any:
        self.calls.append(("save", arguments["weights_only"]))
        return super().save(trainer, save, arguments)


def make(cls: type[Trainer] = Trainer, **arguments: Any) -> Trainer:
    given = {"train_dataloader": regression_data(), "max_duration": "4ba", "progress_bar": False, **arguments}
    model = Regression()
    return cls(model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), **given)


def test_each_call_is_passed_once(tmp_path: Path) -> None:
    notes = Notes()
    with override_trainers(notes):
        trainer = make()
        trainer.fit(duration="1ba")
        trainer.fit(duration="2ba")
        saved = trainer.save_checkpoint(tmp_path / "a.pt")
    trainer.fit(duration="1ba")
    assert notes.calls == [("init", "4ba"), ("fit", "1ba"), ("fit", "2ba"), ("save", False)]
    assert trainer.state.timestamp.batch == 4
    assert saved == str(tmp_path / "a.pt")
    assert (tmp_path / "a.pt").exists()


def test_subclasses_and_trainers_within_trainers() -> None:
    class Mine(Trainer):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**{**arguments, "max_duration": "1ba"})

        def fit(self, **arguments: Any) -> None:  # type: ignore[override]
            super().fit(**arguments)

    class Teacher(Callback):
        def fit_start(self, state, logger) -> None:
            make(max_duration="2ba").fit(duration="1ba")

    notes = Notes()
    with override_trainers(notes):
        make(Mine, callbacks=Teacher()).fit()
    assert notes.calls == [("init", "1ba"), ("fit", None), ("init", "2ba"), ("fit", "1ba")]


def test_what_saves_within_fit_is_passed(tmp_path: Path) -> None:
    class Nothing(TrainerOverrides):
        def save(self, trainer, save, arguments) -> None: ...

    class Saves(Callback):
        def batch_end(self, state, logger) -> None:
            trainer.save_checkpoint(tmp_path / "b.pt")

    with override_trainers(Nothing()):
        trainer = make(callbacks=Saves(), save_folder=str(tmp_path / "run"), max_duration="1ba")
        trainer.fit()
        trainer.export_for_inference("torchscript", tmp_path / "model.pt")
        before = list((tmp_path / "run").iterdir())
        trainer.save_checkpoint_to_save_folder()
    assert list((tmp_path / "run").iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_errors_pass_and_leave_no_traces() -> None:
    class Fails(TrainerOverrides):
        def init(self, trainer, init, arguments) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), override_trainers(Fails()):
        make()
    make().fit()
    notes = Notes()
    with override_trainers(notes), pytest.raises(TypeError, match="max_duratoin"):
        make(max_duratoin="1ep")
    with override_trainers(notes):
        with pytest.raises(RuntimeError, match="already overrides the trainers of this"), override_trainers(Fails()):
            pass
        with pytest.raises(TypeError, match="duratoin"):
            make().fit(duratoin="1ep")
    assert [name for name, _ in notes.calls] == ["init", "init", "fit"]
