"""Trainer attributes that scripts read, and microbatch size helpers of third-party loops."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Engine, Evaluator, State, Trainer
from composer.core.callback import Callback
from composer.core.time import TimeUnit
from composer.models import ComposerClassifier
from composer.trainer import trainer as home


def made(**arguments):
    model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    return Trainer(
        model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), progress_bar=False, seed=3, **arguments
    )


def test_names():
    data = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))]
    with made(train_dataloader=data, max_duration="1ep", python_log_level="info") as trainer:
        assert trainer._train_data_spec.dataloader is data
        assert trainer._original_model is trainer.state.model
        assert trainer._scheduler_step_frequency is TimeUnit.EPOCH  # there are none
        assert (trainer.auto_log_hparams, trainer.python_log_level, trainer.local_hparams) == (False, "info", {})
        assert (trainer.accumulate_train_batch_on_tokens, trainer.spin_dataloaders) == (None, True)
        assert not trainer._backwards_create_graph
        assert not trainer.first_train_batch_complete
        trainer.fit()
        assert trainer.first_train_batch_complete


def test_hyperparameters():
    with made(auto_log_hparams=True, step_schedulers_every_batch=False) as trainer:
        assert (trainer.local_hparams["seed"], trainer.local_hparams["eval_interval"]) == (3, 1)
        assert trainer._scheduler_step_frequency is TimeUnit.EPOCH


def test_an_engine_closes_the_callbacks_of_a_state():
    class Closes(Callback):
        closed = 0

        def close(self, state, logger):
            self.closed += 1

    engine = Engine(State(model=torch.nn.Linear(1, 1)), callbacks=(callback := Closes()))
    Engine._close(engine.state, engine.logger)
    assert callback.closed == 1


FIRST = [(4, False, 4), (0.5, False, 0.5), (None, False, 2), ("auto", True, 2)]


@pytest.mark.parametrize(("given", "is_auto", "found"), FIRST)
def test_initial_size(given, is_auto, found):
    first = home._get_initial_device_train_microbatch_size
    assert first(given, is_auto, DataLoader([1, 2, 3], batch_size=2)) == found
    assert first(given, is_auto, None) == (found if isinstance(given, (int, float)) else None)


@pytest.mark.parametrize(
    ("given", "is_auto", "error"), [(None, False, ValueError), ("auto", True, AttributeError), ("x", False, ValueError)]
)
def test_types_without_initial_size(given, is_auto, error):
    with pytest.raises(error, match="device_train_microbatch_size"):
        home._get_initial_device_train_microbatch_size(given, is_auto, [1])


def test_smaller_sizes():
    state = State(model=torch.nn.Linear(1, 1), device_train_microbatch_size=3)
    evaluator = Evaluator(label="eval", dataloader=[], device_eval_microbatch_size=3)
    for adjust, one, name in (
        (home._adjust_device_train_microbatch_size, state, "device_train_microbatch_size"),
        (home._adjust_device_eval_microbatch_size, evaluator, "device_eval_microbatch_size"),
    ):
        with pytest.warns(RuntimeWarning, match="from 3 to 1"):
            adjust(one)
        assert getattr(one, name) == 1
        with pytest.raises(RuntimeError, match="not even a microbatch of 1"):
            adjust(one)
    assert home._is_cuda_oom(RuntimeError("CUDA out of memory. Tried to allocate"))
