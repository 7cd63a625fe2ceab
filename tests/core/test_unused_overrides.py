"""Methods of a model that the trainer never calls."""

from __future__ import annotations

import warnings

import pytest
from torch import nn

import composer.models
from composer.core.model import ComposerModel
from composer.core.unused_overrides import check_model_methods
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.common import Regression, trainer_of


def anything(self, *given): ...


def messages(base=ComposerModel, *, has_optimizers=True, **methods):
    kind = type("Net", (base,), methods)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            check_model_methods(object.__new__(kind), has_optimizers=has_optimizers)
    return [str(entry.message) for entry in caught]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("eval_foward", "Did you mean eval_forward(self, batch, outputs)?"),
        ("evalForward", "Did you mean eval_forward(self, batch, outputs)?"),
        ("update_metrics", "Did you mean update_metric(self, batch, outputs, metric)?"),
        ("get_metric", "Did you mean get_metrics(self, is_train)?"),
        ("foward", "Did you mean forward(self, batch)?"),
        ("flop_per_batch", "Did you mean flops_per_batch(self, batch)?"),
        ("training_step", "Composer's methods are forward(self, batch) and loss(self, outputs, batch)."),
        ("validation_step", "eval_forward(self, batch, outputs) and update_metric(self, batch, outputs, metric)."),
        ("compute_loss", "Composer's methods are loss(self, outputs, batch)."),
        ("on_train_epoch_end", "hooks are methods of a Callback. Write epoch_end(self, state, logger) in one."),
        ("epoch_end", "hooks are methods of a Callback. Write epoch_end(self, state, logger) in one."),
    ],
)
@pytest.mark.parametrize("base", [ComposerModel, ComposerClassifier])
def test_methods_that_are_never_called(base, written, said):
    (message,) = messages(base, **{written: anything})
    assert message.startswith(f"Net.{written} is never called")
    assert message.endswith(said)


def test_a_lightning_module_has_forward_too():
    methods = {"forward": anything, "training_step": anything}
    (message,) = messages(**methods)
    assert message.endswith("Composer's methods are forward(self, batch) and loss(self, outputs, batch).")
    assert messages(**methods, loss=anything) == []  # serves two libraries


def test_optimizers_of_the_model():
    for name in ("configure_optimizers", "configure_optimizer"):
        (message,) = messages(has_optimizers=False, **{name: anything})
        assert message == f"Net.{name} is never called: give what it returns to Trainer(optimizers=...)."
        assert messages(has_optimizers=True, **{name: anything}) == []


def test_no_false_alarm():
    class Uses(ComposerModel):
        def forward(self, batch):
            return self.compute_loss(batch) + self.training_step(batch)

    assert messages(Uses, compute_loss=anything, training_step=anything) == []
    assert messages(eval_forward=anything, validation_step=anything) == []  # serves two libraries
    names = (
        "encode",
        "generate",
        "metrics",
        "validate",
        "count_targets",
        "flops_per_batch",
        "losses_of",
        "on_device",
    )
    assert messages(**dict.fromkeys(names, anything)) == []


def test_interfaces_of_other_libraries_are_not_checked():
    other = type("LightningModule", (nn.Module,), {"training_step": anything, "__module__": "lightning.pytorch"})

    class Net(ComposerModel, other):
        def training_step(self, batch): ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_model_methods(object.__new__(Net), has_optimizers=False)


@pytest.mark.parametrize("name", [name for name in composer.models.__all__ if name[0].isupper()])
def test_library_models(name):
    kind = getattr(composer.models, name)
    if isinstance(kind, type) and issubclass(kind, ComposerModel):
        assert messages(kind) == []


def test_checked_by_the_trainer():
    class Net(Regression):
        def update_metrics(self, batch, outputs, metric): ...
        def configure_optimizers(self): ...

    with pytest.warns(ComposerWarning, match=r"Net\.update_metrics is never called"):
        trainer_of(Net()).close()
