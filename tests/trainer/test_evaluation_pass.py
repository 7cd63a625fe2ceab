"""Evaluations start alike, whatever came before them in the process, so that a resumed run evaluates alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from composer import Callback, Evaluator
from composer.checkpoint import save_checkpoint
from composer.datasets import TensorLoader
from tests.common import FEATURES, At, regression_data, trainer_of

DATA = TensorDataset(torch.arange(12.0)[:, None].expand(12, FEATURES), torch.zeros(12, 1))


def own_generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[[], Any]] = {
    "of the loader": lambda: DataLoader(DATA, 2, shuffle=True, generator=own_generator()),
    "of the sampler": lambda: DataLoader(DATA, 2, sampler=RandomSampler(DATA, generator=own_generator())),
    "weighted": lambda: DataLoader(DATA, 2, sampler=WeightedRandomSampler([1.0] * 12, 12, generator=own_generator())),
    "tensors on the device": lambda: TensorLoader(DATA.tensors, 2, shuffle=True, device="cpu"),
}


def evaluated(loader: Any, *callbacks: Callback, **arguments: Any) -> list[list[float]]:
    """The samples of each evaluation."""
    samples: list[list[float]] = []
    begin = At("eval_start", lambda state: samples.append([]))
    note = At("eval_after_forward", lambda state: samples[-1].extend(state.batch[0][:, 0].tolist()))
    evaluator = Evaluator(label="some", dataloader=loader, eval_interval="2ba", subset_num_batches=2)
    arguments = {
        "callbacks": [begin, note, *callbacks],
        "eval_dataloader": evaluator,
        "max_duration": "6ba",
        **arguments,
    }
    trainer_of(data=regression_data(4), **arguments).fit()
    return samples


@pytest.mark.parametrize("kind", LOADERS)
def test_a_resumed_run_evaluates_the_same_samples(kind: str, tmp_path: Path) -> None:
    save = At("batch_checkpoint", lambda state: save_checkpoint(state, tmp_path / "{batch}.pt"))
    straight = evaluated(LOADERS[kind](), save)
    assert straight == straight[:1] * 3
    assert evaluated(LOADERS[kind](), load_path=str(tmp_path / "3.pt")) == straight[1:]


def test_the_generator_of_the_user_is_left_as_it_was() -> None:
    generator = own_generator()
    evaluated(DataLoader(DATA, 2, shuffle=True, generator=generator))
    assert torch.equal(generator.get_state(), own_generator().get_state())
