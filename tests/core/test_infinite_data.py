"""Detect infinite data, without false positives."""

from __future__ import annotations

import itertools
import math
import sys

import datasets
import pytest
import torch
import webdataset
from torch.utils.data import BatchSampler, ChainDataset, DataLoader, IterableDataset, Sampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from composer.core.infinite_data import LongEpochWatch, infinite_reason, raise_if_infinite
from composer.warnings import ComposerWarning

DATA = [1, 2, 3]
TENSORS = TensorDataset(torch.arange(4))


def forever():
    while True:
        yield from DATA


def forever_reading():
    while 1:
        try:
            yield from DATA
        finally:
            len(DATA)


def ends_by_return():
    while True:
        if len(DATA) == 3:
            return
        yield 1


def ends_by_break():
    while True:
        yield 1
        if len(DATA) == 3:
            break


def ends_by_stop_iteration():
    numbers = iter(DATA)
    while True:
        try:
            yield next(numbers)
        except StopIteration:
            return


def ends_by_raise():
    yield from DATA
    raise OSError("disk")


def ends_by_raise_after_a_loop():
    for entry in DATA:
        yield entry + 1
    raise OSError("disk")


class Forever:
    def __iter__(self):
        while True:
            yield from DATA


class Ends:
    def __iter__(self):
        yield from DATA


class ForeverData(IterableDataset):
    def __iter__(self):
        while True:
            yield 1


class DataThatEnds(IterableDataset):
    def __iter__(self):
        yield from DATA


class ForeverSampler(Sampler):
    def __iter__(self):
        while True:
            yield 0


class SamplerThatEnds(Sampler):
    def __iter__(self):
        yield 0


class Long:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(DATA)


class NoLength(Long):
    def __len__(self):
        raise TypeError("unknown")


class CutLoader(DataLoader):
    """Takes a part of what its data set has."""

    def __iter__(self):
        yield from itertools.islice(super().__iter__(), 3)


def examples():
    return datasets.Dataset.from_dict({"x": DATA}).to_iterable_dataset()


def shards(**arguments):
    return webdataset.WebDataset("x-{0..3}.tar", shardshuffle=False, **arguments)


ENDLESS = {
    "cycle": lambda: itertools.cycle(DATA),
    "count": itertools.count,
    "repeat": lambda: itertools.repeat(1),
    "map": lambda: map(str, itertools.count()),
    "filter": lambda: filter(None, itertools.count()),
    "enumerate": lambda: enumerate(itertools.cycle(DATA)),
    "zip": lambda: zip(itertools.count(), forever(), strict=False),
    "generator expression": lambda: (str(number) for number in itertools.cycle(DATA)),
    "generator": forever,
    "generator with try": forever_reading,
    "class": Forever,
    "data set": lambda: DataLoader(ForeverData(), batch_size=2),
    "stateful": lambda: StatefulDataLoader(ForeverData(), batch_size=2),
    "chain": lambda: DataLoader(ChainDataset([DataThatEnds(), ForeverData()])),
    "sampler": lambda: DataLoader(TENSORS, batch_size=2, sampler=ForeverSampler()),
    "sampler without batches": lambda: DataLoader(TENSORS, batch_size=None, sampler=ForeverSampler()),
    "batch sampler": lambda: DataLoader(TENSORS, batch_sampler=BatchSampler(ForeverSampler(), 2, False)),
    "infinite length": lambda: Long(math.inf),
    "vast length": lambda: Long(10**12),
    "largest length": lambda: Long(sys.maxsize),
    "too large a length": lambda: Long(2**70),
    "datasets": lambda: DataLoader(examples().repeat(None)),
    "datasets mapped": lambda: examples().repeat(None).map(lambda entry: entry).shuffle(seed=1),
    "webdataset": lambda: shards().repeat(),
    "webdataset resampled": lambda: shards(resampled=True).shuffle(10).batched(2),
    "webloader": lambda: webdataset.WebLoader(shards(resampled=True)),
}
ENDS = {
    "list": lambda: DATA,
    "iterator": lambda: iter(DATA),
    "islice": lambda: itertools.islice(itertools.cycle(DATA), 5),
    "chain": lambda: itertools.chain(DATA, DATA),
    "repeat": lambda: itertools.repeat(1, 3),
    "map": lambda: map(str, DATA),
    "map of two": lambda: map(max, DATA, itertools.count()),
    "zip": lambda: zip(DATA, itertools.count(), strict=False),
    "no zip": lambda: zip(strict=False),
    "enumerate": lambda: enumerate(DATA),
    "generator expression": lambda: (number for number in DATA),
    "by return": ends_by_return,
    "by break": ends_by_break,
    "by raise": ends_by_raise,
    "by raise after a loop": ends_by_raise_after_a_loop,
    "by exception": ends_by_stop_iteration,
    "class": Ends,
    "loader": lambda: DataLoader(TENSORS, batch_size=2),
    "data set": lambda: DataLoader(DataThatEnds(), batch_size=2),
    "sampler": lambda: DataLoader(TENSORS, batch_size=2, sampler=SamplerThatEnds()),
    "cut": lambda: CutLoader(ForeverData()),
    "length": lambda: Long(10**11),
    "no length": lambda: NoLength(3),
    "datasets": lambda: DataLoader(examples()),
    "datasets repeated": lambda: examples().repeat(3),
    "datasets taken": lambda: examples().repeat(None).map(lambda entry: entry).take(2).shuffle(seed=1),
    "webdataset": lambda: shards().shuffle(10),
    "webdataset repeated": lambda: shards().repeat(3),
    "webdataset with epoch": lambda: shards(resampled=True).with_epoch(10),
    "webdataset repeated with epoch": lambda: shards().repeat().with_epoch(10),
    "webdataset sliced": lambda: shards(resampled=True).slice(10),
    "webdataset of one's own": lambda: shards(resampled=True).compose(lambda data: itertools.islice(data, 2)),
    "a number": lambda: 3,
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # by torchdata
@pytest.mark.parametrize("name", ENDLESS)
def test_endless(name):
    data = ENDLESS[name]()
    assert infinite_reason(data)
    with pytest.raises(ValueError, match=r"^data never ends: .*\. Give less\.$"):
        raise_if_infinite("data", data, "Give less.")


@pytest.mark.parametrize("name", ENDS)
def test_ends(name):
    data = ENDS[name]()
    assert infinite_reason(data) is None
    raise_if_infinite("data", data, "Give less.")


def test_detection_reads_no_data():
    numbers = itertools.count()
    assert infinite_reason(map(str, numbers))
    assert infinite_reason(numbers)
    assert next(numbers) == 0
    generator = forever()
    assert next(generator) == 1
    assert infinite_reason(generator)
    assert next(generator) == 2


@pytest.mark.parametrize("limit", [{"batches": 3}, {"seconds": 0.0}])
def test_long_epoch_warns_once(limit, recwarn):
    watch = LongEpochWatch("It may be endless.", **limit)
    for number in range(1, 9):
        if number == limit.get("batches", 1):
            with pytest.warns(ComposerWarning, match=r"^It may be endless\.$"):
                watch.update(number)
        else:
            watch.update(number)
    assert len(recwarn) == 0
