"""Sample counts of any numeric type, and fractional samples per microbatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import DataSpec, Evaluator, Trainer
from composer.models import ComposerClassifier
from tests.common import weights_of


def spec(**functions: Any) -> DataSpec:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
    return DataSpec(DataLoader(TensorDataset(*data), 4), **functions)


def trained(data: DataSpec, **options: Any) -> Trainer:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3))
    model = ComposerClassifier(module, num_classes=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = Trainer(
        model=model, train_dataloader=data, optimizers=optimizer, max_duration="1ep", device="cpu", **options
    )
    trainer.fit()
    return trainer


FORMS = [torch.tensor(4), torch.tensor(4.0), np.int64(4), np.float64(4), np.array(4), 4.0]


@pytest.mark.parametrize("form", FORMS)
def test_every_numeric_type_is_accepted(form) -> None:
    trainer = trained(
        spec(get_num_samples_in_batch=lambda batch: form * len(batch[0]) / 4), device_train_microbatch_size=2
    )
    assert trainer.state.timestamp.sample == 8
    plain = trained(spec(), device_train_microbatch_size=2)
    assert torch.equal(weights_of(trainer.state.model), weights_of(plain.state.model))
    evaluated = spec(get_num_samples_in_batch=lambda batch: form)
    trainer.eval(Evaluator(label="a", dataloader=evaluated))
    assert trainer.state.eval_timestamp.sample == 8
    trainer.predict(evaluated)


@pytest.mark.parametrize("form", ["4", None, torch.ones(2), True])
def test_non_numbers_are_reported_before_a_step(form) -> None:
    with pytest.raises(TypeError, match="get_num_samples_in_batch must return a number, but returned"):
        trained(spec(get_num_samples_in_batch=lambda batch: form))


def halves(batch: Any, size: float) -> list[Any]:
    rows = int(size * 4)
    return [tuple(part[start : start + rows] for part in batch) for start in range(0, len(batch[0]), rows)]


def test_fractional_samples() -> None:
    """Four rows are a sample: a microbatch of half a sample counts half, and the gradient is that of the batch."""
    packed = spec(split_batch=halves, get_num_samples_in_batch=lambda batch: len(batch[0]) / 4)
    trainer = trained(packed, device_train_microbatch_size=0.5)
    assert trainer.state.timestamp.sample == 2
    torch.testing.assert_close(weights_of(trainer.state.model), weights_of(trained(spec()).state.model))


@pytest.mark.parametrize("size", [2.0, np.int64(2), np.float64(2), torch.tensor(2)])
def test_every_integer_type_of_size(size) -> None:
    assert trained(spec(), device_train_microbatch_size=size).state.device_train_microbatch_size == 2
    assert Evaluator(label="a", dataloader=spec(), device_eval_microbatch_size=size).microbatch_size == 2


@pytest.mark.parametrize("size", [0.5, 2.5, 0, -1, -0.5, float("nan"), float("inf"), True, "2"])
def test_other_sizes_are_refused(size) -> None:
    with pytest.raises(ValueError, match="device_train_microbatch_size must be a positive integer"):
        trained(spec(), device_train_microbatch_size=size)
    with pytest.raises(ValueError, match="device_eval_microbatch_size must be a positive integer"):
        Evaluator(label="a", dataloader=spec(), device_eval_microbatch_size=size)


def test_empty_split_is_reported() -> None:
    with pytest.raises(ValueError, match="split_batch returned no microbatch for a batch with 4 samples"):
        trained(spec(split_batch=lambda batch, size: []), device_train_microbatch_size=2)
