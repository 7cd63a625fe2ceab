"""Arguments, positional values and attributes of other libraries' trainers."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer._compat.other_libraries import MEMBERS
from tests.common import Regression, regression_data, trainer_of


def loader(batch_size: int = 8) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(16, 4), torch.zeros(16, 1)), batch_size=batch_size)


def refused(**arguments) -> str:
    with pytest.raises(TypeError) as raised:
        Trainer(**arguments)
    return str(raised.value)


@pytest.mark.parametrize("name", ["accumulate_grad_batches", "gradient_accumulation_steps"])
def test_gradient_accumulation_error_gives_the_number(name) -> None:
    message = refused(model=Regression(), train_dataloader=loader(8), **{name: 3})
    assert message == (
        f"Trainer has no argument {name!r}. Use device_train_microbatch_size=3, which cuts each batch of 8 samples "
        f"into 3; to step once for 3 batches of 8, use DataLoader(batch_size=24) and device_train_microbatch_size=8."
    )
    general = " Use device_train_microbatch_size=..., the number of samples per microbatch."
    assert refused(model=Regression(), **{name: 2}).endswith(general)
    assert refused(model=Regression(), train_dataloader=[], **{name: {4: 2}}).endswith(general)
    with pytest.raises(TypeError, match="Use device_train_microbatch_size=4, which cuts each batch"):
        trainer_of(data=loader(8)).fit(**{name: 2})


def test_unknown_arguments_are_reported_before_the_model() -> None:
    assert refused(max_epochs=1, accelerator="gpu") == (
        "Trainer has no argument 'max_epochs'. Use max_duration='1ep'. Also unknown: 'accelerator'. Use device='gpu'. "
        "The argument 'model' is missing."
    )
    assert refused() == "Trainer.__init__() missing 1 required keyword-only argument: 'model'"
    assert "missing 1 required keyword-only argument: 'model'" in refused(max_duration="1ep")


def test_values_without_a_name() -> None:
    with pytest.raises(TypeError, match=r"^Trainer takes its arguments by name: Trainer\(model=\.\.\.\)\.$"):
        Trainer(Regression())
    with pytest.raises(TypeError, match=r"Trainer\(model=\.\.\., optimizers=\.\.\.\)"):
        Trainer(model := Regression(), torch.optim.SGD(model.parameters()))
    trainer = trainer_of()
    for values, call in [
        ((regression_data(),), "Trainer.fit(train_dataloader=...)"),
        ((loader(), loader()), "Trainer.fit(train_dataloader=..., eval_dataloader=...)"),
        ((5,), "Trainer.fit(duration='5ep')"),
        (("2ep",), "Trainer.fit(duration='2ep')"),
        ((torch.zeros(4, 4), torch.zeros(4)),
         "Trainer.fit(train_dataloader=DataLoader(TensorDataset(x, y), batch_size=...))"),
    ]:  # fmt: skip
        with pytest.raises(TypeError) as raised:
            trainer.fit(*values)
        assert str(raised.value) == f"Trainer.fit takes its arguments by name: {call}."
    with pytest.raises(TypeError, match=r"pass the model to Trainer\(model=\.\.\.\)"):
        trainer.fit(nn.Linear(1, 1), loader())
    with pytest.raises(TypeError, match=r"by name: .* Also unknown: 'epochs'\. Use duration='3ep'"):
        trainer.fit(loader(), epochs=3)
    assert trainer.state.timestamp.batch == 0


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_attributes_of_other_trainers(name) -> None:
    trainer = Trainer.__new__(Trainer)  # nothing is asked of the object itself
    assert not hasattr(trainer, name)
    assert getattr(trainer, name, 3) == 3
    with pytest.raises(AttributeError) as raised:
        getattr(trainer, name)
    assert str(raised.value) == f"'Trainer' object has no attribute {name!r}. Use {MEMBERS[name]}."


def test_other_attributes() -> None:
    trainer = trainer_of()
    with pytest.raises(AttributeError, match=r"no attribute 'predcit'\. Did you mean 'predict'\?"):
        _ = trainer.predcit
    with pytest.raises(AttributeError, match=r"no attribute '_ipython_display_'\.$"):
        _ = trainer._ipython_display_
    trainer.mine = 3
    assert trainer.mine == 3


def test_a_property_that_fails_keeps_its_error() -> None:
    class Broken(Trainer):
        @property
        def half(self):
            return self.state.no_such_thing

    trainer = Broken(model=Regression(), progress_bar=False)
    with pytest.raises(AttributeError, match="'State' object has no attribute 'no_such_thing'"):
        _ = trainer.half


def test_class_attributes_are_unchanged() -> None:
    signature = inspect.signature(Trainer)
    assert next(iter(signature.parameters)) == "model"
    assert signature.parameters["model"].default is inspect.Parameter.empty
    assert signature == inspect.signature(Trainer.__init__).replace(parameters=signature.parameters.values())
    assert "model" in pydoc.render_doc(Trainer)
    assert mock.create_autospec(Trainer, instance=True).fit is not None
    trainer = trainer_of()
    assert copy.copy(trainer).state is trainer.state
    assert copy.copy(Trainer.__new__(Trainer)).__dict__ == {}
    assert type(pickle.loads(pickle.dumps(Trainer.__new__(Trainer)))) is Trainer


def test_subclasses_have_their_own_arguments() -> None:
    class Mine(Trainer):
        def __init__(self, features, epochs=1):
            super().__init__(model=Regression(), max_duration=epochs, progress_bar=False)

    assert list(inspect.signature(Mine).parameters) == ["features", "epochs"]
    assert Mine(4, epochs=2).state.max_duration == "2ep"


@pytest.mark.parametrize(
    ("method", "values", "arguments", "message"),
    [
        ("fit", (), {"epochs": 3}, "Trainer.fit has no argument 'epochs'. Use duration='3ep'."),
        ("fit", (), {"max_epochs": 3}, "Trainer.fit has no argument 'max_epochs'. Use duration='3ep'."),
        ("fit", ("x", "y"), {"epochs": 5}, "(x, y), batch_size=...)). Also unknown: 'epochs'. Use duration='5ep'."),
        ("fit", (), {"model": 1}, "Pass it to the Trainer: Trainer(model=...)."),
        ("fit", (), {"callbacks": []}, "Pass it to the Trainer: Trainer(callbacks=...)."),
        ("fit", (), {"seeds": 1}, "Pass it to the Trainer: Trainer(seed=...)."),
        ("fit", (), {"lr": 0.5}, "Trainer(optimizers=torch.optim.AdamW(model.parameters(), lr=0.5))."),
        ("eval", ("model",), {}, "Trainer.eval takes no model: it uses that of Trainer(model=...)."),
        ("eval", ("model", "loader"), {}, "Write trainer.eval(eval_dataloader)."),
        ("eval", ("x", "y"), {}, "trainer.eval(DataLoader(TensorDataset(x, y), batch_size=...))."),
        ("eval", (), {"dataloader": 1}, "Trainer.eval has no argument 'dataloader'. Use eval_dataloader."),
        ("eval", (), {"limit_val_batches": 3}, "Use subset_num_batches=3."),
        ("eval", (), {"batch_size": 3}, "Use DataLoader(dataset, batch_size=3) as eval_dataloader."),
        ("predict", ("model", "loader"), {}, "Write trainer.predict(dataloader)."),
        ("predict", ("loader",), {"limit_train_batches": 3}, "Use subset_num_batches=3."),
        ("find_lr", ("loader",), {}, "it uses that of Trainer(train_dataloader=...). Write trainer.find_lr()."),
        ("find_lr", ("model",), {}, "Trainer.find_lr takes no model"),
        ("find_lr", (), {"num_training": 50}, "Use num_batches."),
        ("find_lr", (), {"end_lr": 1.0}, "Use max_lr."),
    ],
)  # fmt: skip
def test_each_method_checks_its_own_arguments(method, values, arguments, message) -> None:
    trainer = trainer_of()
    things = {"model": trainer.state.model, "loader": loader(), "x": torch.zeros(4, 4), "y": torch.zeros(4, 1)}
    with pytest.raises(TypeError) as raised:
        getattr(trainer, method)(*(things[one] for one in values), **arguments)
    assert str(raised.value).endswith(message) or message in str(raised.value)
    assert trainer.state.timestamp.batch == 0
