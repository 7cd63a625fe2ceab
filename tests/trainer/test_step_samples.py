"""Recording the samples of steps: batches, indices and losses are those of the step, and nothing is left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import DataSpec, Trainer
from composer.algorithms import SAM, LabelSmoothing, MixUp, SelectiveBackprop
from composer.models import ComposerClassifier
from composer.trainer.step_samples import record_next_steps


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(32, 4, generator=generator), torch.randint(3, (32,), generator=generator))


def trainer_of(algorithms=(), loader=None, **arguments) -> Trainer:
    torch.manual_seed(0)
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    model = ComposerClassifier(nn.Sequential(*layers), num_classes=3)
    return Trainer(
        model=model,
        train_dataloader=DataLoader(data(), batch_size=8, shuffle=True) if loader is None else loader,
        algorithms=list(algorithms),
        max_duration="2ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        seed=1,
        progress_bar=False,
        **arguments,
    )


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("algorithms", [[], [LabelSmoothing(0.1)], [SAM(interval=1)]], ids=["none", "smooth", "sam"])
def test_weighted_losses_sum_to_the_loss_of_each_step(algorithms, size) -> None:
    trainer = trainer_of(algorithms, device_train_microbatch_size=size)
    steps = record_next_steps(trainer, 6)
    assert [(step.step, step.epoch) for step in steps] == [(i, i // 4) for i in range(6)]
    for step in steps:
        found = step.per_sample
        assert (found.losses * found.weights).sum() == pytest.approx(step.loss, rel=1e-5)
        assert found.method == "sliced"
        assert torch.equal(step.batch[0], data().tensors[0][step.indices])
        assert not step.mixing


@pytest.mark.parametrize("algorithm", [MixUp(0.4), SelectiveBackprop(start=0.0, end=1.0, interrupt=0)])
def test_rows_that_methods_combine_or_drop_are_measured_as_loaded(algorithm) -> None:
    (step,) = record_next_steps(trainer_of([algorithm]))
    assert step.mixing == [type(algorithm).__name__]
    assert len(step.per_sample.losses) == len(step.indices) == 8


def test_nothing_is_left_behind() -> None:
    spec = DataSpec(DataLoader(data(), batch_size=8), batch_transforms=lambda batch: (batch[0] * 2, batch[1]))
    transforms = spec.batch_transforms
    trainer = trainer_of(loader=spec)
    callbacks = list(trainer.state.callbacks)
    (step,) = record_next_steps(trainer)
    assert torch.equal(step.batch[0], data().tensors[0][:8] * 2)
    assert spec.batch_transforms is transforms
    assert list(trainer.state.callbacks) == callbacks
    assert "loss" not in vars(trainer.state.model)
    assert trainer.state.timestamp.batch == 0


def test_data_without_indices_says_why() -> None:
    batches = [tuple(tensor[i : i + 8] for tensor in data().tensors) for i in range(0, 32, 8)]
    (step,) = record_next_steps(trainer_of(loader=batches))
    assert step.indices is None
    assert step.indices_reason == "list is not a torch DataLoader over a dataset with indices"
