"""Persistent workers of the user's loader: available after a fit, without disturbing a run."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from composer import Callback, DataSpec, Evaluator
from tests.common import trainer_of, weights


class Squares(Dataset):
    factor = 1.0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.full((4,), float(index))
        return x * self.factor, x[:1] * 2


class OwnLoader(DataLoader):
    """Which may do more than a loader of torch, and is iterated itself."""


def loader(kind=DataLoader):
    return kind(Squares(), batch_size=2, num_workers=1, persistent_workers=True)


def indices_of(batches):
    return [int(x[0, 0]) for x, _ in batches]


def run(data, *durations, between=lambda: None, **arguments):
    torch.manual_seed(0)
    trainer = trainer_of(data=data, lr=1e-3, seed=1, max_duration=durations[0], **arguments)
    trainer.fit()
    for duration in durations[1:]:
        between()
        trainer.fit(duration=duration)
    return trainer


@pytest.mark.parametrize("duration", ["1ep", "3ba", "7ba"])
@pytest.mark.parametrize("kind", [DataLoader, OwnLoader])
def test_workers_stay_alive_after_fit(kind, duration):
    data = loader(kind)
    trainer = run(data, duration, eval_dataloader=(held_out := loader(kind)))
    for each in (data, held_out):
        assert each._iterator is not None
        assert all(worker.is_alive() for worker in each._iterator._workers)
    assert trainer.state.train_dataloader._iterator is data._iterator
    iterator = data._iterator
    assert indices_of(data) == [0, 2, 4, 6]  # with these very workers
    assert data._iterator is iterator
    del trainer
    gc.collect()
    assert indices_of(data) == [0, 2, 4, 6]
    data._iterator._shutdown_workers()  # as scripts end them


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", [DataLoader, OwnLoader])
def test_workers_exit_with_the_loader_and_trainer(kind, fails):
    before, workers = set(multiprocessing.active_children()), set()

    class Notes(Callback):
        def batch_end(self, state, logger):
            workers.update(set(multiprocessing.active_children()) - before)
            if fails and state.timestamp.batch == 2:
                raise ZeroDivisionError

    data = loader(kind)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        run(data, "1ep", eval_dataloader=loader(kind), callbacks=Notes())
    del data
    gc.collect()
    assert workers
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("first", ["4ba", "3ba"])
@pytest.mark.parametrize("between", ["nothing", "all", "one batch", "ended", "let go"])
def test_next_fit_continues_after_any_use_of_workers(between, first):
    straight = weights(run(loader(), "8ba"))
    data = loader()
    deeds = {
        "nothing": lambda: None,
        "all": lambda: list(data),
        "one batch": lambda: next(iter(data)),
        "ended": lambda: data._iterator._shutdown_workers(),
        "let go": lambda: setattr(data, "_iterator", None),
    }
    rest = f"{8 - int(first[:-2])}ba"
    trainer = run(data, first, rest, between=deeds[between])
    assert torch.equal(weights(trainer), straight)
    assert trainer.state.timestamp.sample == 16
    assert data._iterator is not None


def test_iterating_callback_gets_separate_workers():
    straight = weights(run(loader(), "8ba"))
    data, seen = loader(), []

    class Looks(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 6:
                seen.extend(indices_of(state.train_dataloader))

    trainer = run(data, "4ba", "4ba", callbacks=Looks())
    assert seen == [0, 2, 4, 6]
    assert torch.equal(weights(trainer), straight)


@pytest.mark.parametrize("kind", [DataLoader, OwnLoader])
def test_workers_started_by_a_script_do_not_keep_the_old_dataset(kind):
    data, seen = loader(kind), []
    next(iter(data))

    class Changes(Callback):
        def fit_start(self, state, logger):
            state.train_dataloader.dataset.factor = 3.0  # as methods add their transforms

        def after_dataloader(self, state, logger):
            seen.append(float(state.batch[0][1, 0]))

    run(data, "1ep", callbacks=Changes())
    assert seen == [3.0, 9.0, 15.0, 21.0]


def test_none_as_loader():
    evaluator = Evaluator(label="test", dataloader=None, device_eval_microbatch_size=1)
    assert (evaluator.dataloader.dataloader, evaluator.dataloader.__length__) == (None, None)
    trainer = trainer_of(eval_dataloader=evaluator)
    with pytest.raises(ValueError, match="set its dataloader before it is used"):
        trainer.eval()
    evaluator.dataloader.dataloader = DataLoader(Squares(), batch_size=2)
    trainer.eval()
    assert trainer.state.eval_timestamp.batch == 4
    assert DataSpec(None).get_num_samples_in_batch(torch.ones(3)) == 3
    with pytest.raises(ValueError, match="set its dataloader before it is used"):
        trainer_of(data=DataSpec(None), max_duration="2ba").fit()
