"""Several batches of the loader in a step: the same training as with a larger loader, resumed exactly anywhere."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, DataSpec
from composer.algorithms import EMA, SWA, BatchSizeWarmup, MixUp
from composer.optim import CosineAnnealingScheduler
from composer.warnings import ComposerWarning
from tests.common import At, Regression, Unsized, regression_data, trainer_of, weights
from tests.trainer.resuming import Augmented, build
from tests.trainer.test_failed_step import BoomError, Once
from tests.trainer.test_resume import LOADERS

N = 22
GROWTH = {"2ba": 2, "4ba": 3}


@pytest.fixture(autouse=True)
def _expected_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="composer")


def table(n: int = N) -> TensorDataset:
    return TensorDataset(*regression_data(1, n)[0])


def loader(size: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(table(), size, shuffle=True, **more)


def trained(data: Any, algorithms: Any = (), **arguments: Any) -> tuple[torch.Tensor, list[int], Any]:
    """The weights and the number of samples in each step, of a run of two epochs."""
    seen = At("batch_start", lambda state: len(state.batch[0]))
    arguments.setdefault("max_duration", "2ep")
    callbacks = [seen, *arguments.pop("callbacks", [])]
    torch.manual_seed(11)
    trainer = trainer_of(Regression(), data, algorithms=list(algorithms), callbacks=callbacks, seed=5, **arguments)
    trainer.fit()
    trainer.close()
    return weights(trainer), seen.found, trainer.state


# ------------------------------------------------------------------------------------------- as with a larger loader


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"device_train_microbatch_size": 3},
        {"device_train_microbatch_size": "auto"},
        {"algorithms": lambda: [MixUp(0.3)]},
        {"algorithms": lambda: [SWA("0dur", "1dur", "1ba")]},
        {"train_subset_num_batches": 6},
    ],
    ids=["full", "microbatches", "auto", "MixUp", "SWA", "subset"],
)
def test_a_constant_multiple_is_a_larger_loader_bit_for_bit(k, more) -> None:
    more = dict(more)
    algorithms = more.pop("algorithms", list)
    subset = more.pop("train_subset_num_batches", None)
    one, sizes, state = trained(
        loader(2), [*algorithms(), BatchSizeWarmup({"0ba": k})], train_subset_num_batches=subset or -1, **more
    )
    larger = {} if subset is None else {"train_subset_num_batches": -(-subset // k)}
    if subset is not None and subset % k:
        pytest.skip("A larger loader cannot stop at that sample.")
    other, expected, other_state = trained(loader(2 * k), algorithms(), **larger, **more)
    assert sizes == expected
    assert torch.equal(one, other)
    for name in ("epoch", "batch", "sample", "batch_in_epoch", "sample_in_epoch"):
        assert getattr(state.timestamp, name) == getattr(other_state.timestamp, name)


def test_the_last_step_of_an_epoch_takes_what_is_left() -> None:
    assert trained(loader(4), [BatchSizeWarmup({"0ba": 4})])[1] == [16, 6] * 2
    # drop_last drops the two samples of the loader's last batch, and nothing else.
    assert trained(loader(4, drop_last=True), [BatchSizeWarmup({"0ba": 4})])[1] == [16, 4] * 2
    assert trained(loader(4), [BatchSizeWarmup({"0ba": 100})])[1] == [22, 22]
    assert trained(Unsized(regression_data(5)), [BatchSizeWarmup({"0ba": 3})])[1] == [6, 4] * 2
    assert trained(regression_data(5), [BatchSizeWarmup({"0ba": 3})], train_subset_num_batches=4)[1] == [6, 2] * 2
    assert trained(loader(4), [BatchSizeWarmup({"0ba": 2})], overfit_batches=3)[1] == [8, 4] * 2


def test_order_of_the_samples_does_not_change() -> None:
    found = []
    for growth in ([], [BatchSizeWarmup(GROWTH)]):
        seen = At("batch_start", lambda state: state.batch[0].clone())
        trained(loader(2, num_workers=2), growth, callbacks=[seen])
        found.append(torch.cat(seen.found))
    assert torch.equal(*found)


def test_the_multiple_may_change_within_an_epoch_and_back() -> None:
    class Set(Callback):
        def before_dataloader(self, state, logger):
            state.train_phase.batches_per_step = [1, 3, 1, 2, 1, 1, 1, 5, 1, 1, 1][state.timestamp.batch.value % 11]

    _, sizes, state = trained(loader(2), callbacks=[Set()])
    assert sizes == [2, 6, 2, 4, 2, 2, 2, 2, 2, 2, 2, 6, 2, 4, 2, 2, 2, 2][: len(sizes)] or sum(sizes) == 2 * N
    assert (state.timestamp.epoch, state.timestamp.sample) == (2, 2 * N)


def test_samples_and_tokens_of_the_step_are_counted() -> None:
    batches = [{"input_ids": torch.ones(2, 5, dtype=torch.long), "x": torch.randn(2, 4)} for _ in range(5)]

    class Text(Regression):
        def forward(self, batch):
            return self.linear(batch["x"])

        def loss(self, outputs, batch):
            return outputs.square().mean()

    trainer = trainer_of(Text(), batches, algorithms=BatchSizeWarmup({"1ba": 2}))
    trainer.fit()
    now = trainer.state.timestamp
    assert (now.batch, now.sample, now.token) == (3, 10, 50)


def test_a_custom_function_joins() -> None:
    data = DataSpec(
        [("a", regression_data(1)[0]), ("b", regression_data(1, seed=2)[0])],
        split_batch=lambda batch, size: [batch],
        get_num_samples_in_batch=lambda batch: len(batch[1][0]),
        join_batches=lambda batches: ("+".join(name for name, _ in batches), batches[0][1]),
    )

    class Named(Regression):
        def forward(self, batch):
            return super().forward(batch[1])

        def loss(self, outputs, batch):
            return super().loss(outputs, batch[1])

    seen = At("batch_start", lambda state: state.batch[0])
    trainer_of(Named(), data, algorithms=BatchSizeWarmup({"0ba": 2}), callbacks=seen).fit()
    assert seen.found == ["a+b"]


# --------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind != "stream with a worker"])
def test_resumes_exactly_at_every_step(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RESUME_SEED", "1")

    def run(**arguments: Any) -> Any:
        seen = At("batch_end", lambda state: (len(state.batch[0]), state.total_loss_dict["loss/train/total"].item()))
        trainer = build(
            LOADERS[kind](),
            algorithms=[BatchSizeWarmup(GROWTH, lr_scaling="sqrt"), EMA("2ba")],
            callbacks=seen,
            schedulers=CosineAnnealingScheduler(),
            max_duration="9ba",
            **arguments,
        )
        trainer.fit()
        trainer.close()
        return trainer, seen.found

    straight, steps = run(save_folder=str(tmp_path), save_interval=lambda state, event: True)
    files = {int(path.name.split("-")[1][2:]): path for path in tmp_path.glob("ep*.pt")}
    assert len(files) == 9
    for batch in range(1, 9) if "worker" not in kind else (3, 5):
        resumed, rest = run(load_path=str(files[batch]))
        assert rest == steps[batch:], batch
        assert torch.equal(weights(resumed), weights(straight)), batch
        assert resumed.state.timestamp.sample == straight.state.timestamp.sample
        assert resumed.state.timestamp.sample_in_epoch == straight.state.timestamp.sample_in_epoch


def test_resumes_with_another_multiple(tmp_path) -> None:
    """The position counts batches of the loader: the rest of the epoch is exact, whatever joined them before."""
    seen = [At("batch_start", lambda state: state.batch[0].clone()) for _ in range(2)]
    arguments = {"max_duration": "1ep", "run_name": "run"}
    trained(
        loader(2),
        [BatchSizeWarmup({"0ba": 3})],
        callbacks=[seen[0]],
        save_folder=str(tmp_path),
        save_interval="1ba",
        **arguments,
    )
    trained(loader(2), callbacks=[seen[1]], load_path=f"{tmp_path}/ep0-ba2-rank0.pt", **arguments)
    assert torch.equal(torch.cat(seen[0].found[2:]), torch.cat(seen[1].found))
    assert [len(x) for x in seen[1].found] == [2] * 5


@pytest.mark.parametrize("kind", ["shuffled", "own generator", "data set with a place", "plain iterable"])
@pytest.mark.parametrize("event", ["after_dataloader", "before_backward"])
def test_a_failed_step_is_trained_again(kind, event, monkeypatch) -> None:
    monkeypatch.setenv("RESUME_SEED", "1")
    found = []
    for fails in (False, True):
        seen = At("batch_end", lambda state: state.batch[0].clone())
        callbacks = [seen, *([Once(event, batch=3)] if fails else [])]
        trainer = build(
            LOADERS[kind](),
            algorithms=BatchSizeWarmup(GROWTH),
            callbacks=callbacks,
            max_duration="7ba",
            schedulers=None,
        )
        if fails:
            with pytest.raises(BoomError):
                trainer.fit()
        trainer.fit()
        found.append(seen.found)
    assert [len(one) for one in found[0]] == [len(one) for one in found[1]]
    if kind == "data set with a place" and event == "after_dataloader":  # later, other random numbers follow
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class Fragile(Augmented):
    """A sample fails to be fetched, once."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad: int | None = bad
        self.fetched: list[int] = []

    def __getitem__(self, index):
        if index == self.bad:
            self.bad = None
            raise BoomError
        self.fetched.append(index)
        return self.x[index], index % 3


@pytest.mark.parametrize("bad", [8, 13, 17])
def test_a_batch_that_fails_to_load_in_the_middle_of_a_step(bad) -> None:
    """All batches of the step are fetched again, so that none is skipped."""
    numbers = At("batch_start", lambda state: state.batch[1].tolist())
    trainer = build(
        DataLoader(Fragile(bad), 4),
        algorithms=BatchSizeWarmup({"1ba": 3}),
        callbacks=numbers,
        max_duration="1ep",
        schedulers=None,
    )
    with pytest.raises(BoomError):
        trainer.fit()
    trainer.fit()
    assert [label for batch in numbers.found for label in batch] == [index % 3 for index in range(N)]
    assert [len(batch) for batch in numbers.found] == [4, 12, 6]


class FragileStream:
    """An iterable without a position, in which a batch fails once."""

    def __init__(self) -> None:
        self.fails = True

    def __iter__(self):
        for number, batch in enumerate(regression_data(8)):
            if number == 3 and self.fails:
                self.fails = False
                raise BoomError
            yield batch


def test_data_that_is_replayed_after_a_batch_failed_to_load() -> None:
    seen = At("batch_start", lambda state: state.batch[0].clone())
    trainer = trainer_of(data=FragileStream(), algorithms=BatchSizeWarmup({"1ba": 3}), callbacks=seen)
    with pytest.raises(BoomError):
        trainer.fit()
    trainer.fit()
    assert torch.equal(torch.cat(seen.found), torch.cat([x for x, _ in regression_data(8)]))


def test_an_iterator_that_failed_keeps_the_batches_before() -> None:
    """It cannot be read again: only the batch that failed is lost."""

    class Once(Unsized):
        number = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number == 4:
                raise BoomError
            if self.number > 8:
                raise StopIteration
            return self.batches[self.number - 1]

    seen = At("batch_start", lambda state: state.batch[0].clone())
    trainer = trainer_of(
        data=Once(regression_data(8)), algorithms=BatchSizeWarmup({"1ba": 3}), callbacks=seen, max_duration="3ba"
    )
    with pytest.raises(BoomError), pytest.warns(ComposerWarning, match="cannot be read again"):
        trainer.fit()
    trainer.fit()
    kept = [x for number, (x, _) in enumerate(regression_data(8)) if number != 3]
    assert torch.equal(torch.cat(seen.found), torch.cat(kept))
