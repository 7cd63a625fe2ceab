"""A trainer cannot be copied; its model and state can be copied at any time."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Trainer
from composer.models import ComposerClassifier


def trainer(**arguments) -> Trainer:
    torch.manual_seed(0)
    model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
    return Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=DataLoader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 3), batch_size=4),
        max_duration="4ba",
        device="cpu",
        progress_bar=False,
        **arguments,
    )


@pytest.mark.parametrize("duration", [None, "2ba", "1ep"])
def test_copying_a_trainer_raises_with_a_remedy(duration) -> None:
    run = trainer()
    if duration is not None:
        run.fit(duration=duration)
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled.*trainer\.state\.model.*save_checkpoint"):
            attempt(run)
    assert copy.copy(run).state is run.state
    run.fit(duration="1ba")  # as if nothing had been tried


def test_copied_object_refers_to_the_same_trainer() -> None:
    run, own = trainer(), Callback()
    own.trainer = run.state.model.trainer = run
    run.fit(duration="2ba")
    assert copy.deepcopy(own).trainer is run
    twin = copy.deepcopy(run.state.model)
    assert twin.trainer is run
    assert torch.equal(twin.module.weight, run.state.model.module.weight)
    assert twin.module.weight is not run.state.model.module.weight


def test_state_is_copied_and_pickled_within_an_epoch() -> None:
    class Copies(Callback):
        def batch_end(self, state, logger):
            twin = copy.deepcopy(state)
            found.append((int(twin.timestamp.batch), twin.model.module.weight.detach().clone()))
            assert twin.train_phase.iterator is None  # where it continues is in checkpoints

    found: list[tuple[int, torch.Tensor]] = []
    run, alone = trainer(callbacks=[Copies()]), trainer()
    run.fit(duration="2ba")
    alone.fit(duration="2ba")
    twin = pickle.loads(pickle.dumps(alone.state))
    assert [number for number, _ in found] == [1, 2]
    assert torch.equal(found[1][1], twin.model.module.weight)
    assert twin.timestamp == alone.state.timestamp
    run.fit(duration="2ba")
    alone.fit(duration="2ba")
    assert torch.equal(run.state.model.module.weight, alone.state.model.module.weight)
