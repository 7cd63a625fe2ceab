"""Whether a remedy changes numbers, told by the losses and batches of the first steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.diagnosis.first_steps import FirstSteps, Steps, difference
from composer.models import ComposerClassifier


def run(folder: Path, batch_norm: bool = False, **arguments: Any) -> Steps:
    """The first steps of a small run."""
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(8) if batch_norm else nn.ReLU()
    model = ComposerClassifier(nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2)), num_classes=2)
    rows = TensorDataset(torch.randn(40, 4), torch.randint(2, (40,)))
    given = {
        "train_dataloader": DataLoader(rows, 8, shuffle=True),
        "optimizers": torch.optim.AdamW(model.parameters(), 0.01),
        **arguments,
    }
    with Trainer(
        model=model, max_duration="1ep", callbacks=[FirstSteps(folder)], progress_bar=False, seed=3, **given
    ) as trainer:
        trainer.fit()
    found = Steps.read(folder)
    assert found is not None
    return found


def test_the_same_run_is_the_same(tmp_path: Path) -> None:
    one, two = run(tmp_path), run(tmp_path)
    assert len(one.losses) == len(one.batches) == len(set(one.batches)) == 4
    assert difference(one, two, run(tmp_path)) == "none"


def test_microbatches_round_and_change_numbers_with_batch_norm(tmp_path: Path) -> None:
    one = run(tmp_path)
    assert difference(one, one, run(tmp_path, device_train_microbatch_size=2)) in ("none", "rounding")
    one = run(tmp_path, batch_norm=True)
    assert difference(one, one, run(tmp_path, batch_norm=True, device_train_microbatch_size=2)) == "numbers"


def test_another_order_of_samples_is_told(tmp_path: Path) -> None:
    rows = TensorDataset(torch.randn(40, 4), torch.randint(2, (40,)))
    one, other = run(tmp_path), run(tmp_path, train_dataloader=DataLoader(rows, 8))
    assert difference(one, one, other) == "batches"


def test_another_precision_is_more_than_rounding_in_fp32(tmp_path: Path) -> None:
    one, other = run(tmp_path), run(tmp_path, precision="amp_bf16")
    assert difference(one, one, other) == "numbers"
    assert difference(one, one, other, "amp_bf16") == "rounding"


def test_what_is_not_reproducible_is_unknown(tmp_path: Path) -> None:
    one, other = Steps([0.5], [1]), Steps([0.6], [2])
    assert difference(one, other, one) == "unknown"
    assert difference(one, one, None) == "unknown"
    nans = Steps([float("nan")], [1])
    assert difference(nans, nans, nans) == "none"
    assert Steps.read(tmp_path / "missing") is None
