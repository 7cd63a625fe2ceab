"""Arguments of a mixture that are refused, with the error that says why, and extreme ones that are accepted."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from composer.datasets import Mixture, TensorLoader
from composer.optim import LinearScheduler
from tests.datasets.test_mixture import mixture, source, take


class Endless:
    def __iter__(self):
        while True:
            yield torch.zeros(2)


class Once(BatchSampler):
    pass


A, B = source(0, 8, 2), source(1, 8, 2)


@pytest.mark.parametrize(
    ("sources", "more", "error", "message"),
    [
        ([], {}, ValueError, "sources is empty"),
        (A, {}, TypeError, "must be a list of pairs"),
        ([A], {}, TypeError, r"'source_0' must be a pair \(loader, weight\)"),
        ([(A, -1)], {}, ValueError, "'source_0' must be finite and 0 or greater, but is -1"),
        ([(A, math.nan)], {}, ValueError, "must be finite"),
        ([(A, math.inf)], {}, ValueError, "must be finite"),
        ([(A, 10**400)], {}, ValueError, "must be finite"),
        ([(A, 0)], {}, ValueError, "weights of all sources"),
        ([(A, "0.5")], {}, TypeError, "must be a number, a schedule"),
        ([(A, True)], {}, TypeError, "must be a number, a schedule"),
        ([(A, LinearScheduler)], {}, TypeError, "is the class LinearScheduler"),
        ([(A, 1), (A, 1)], {}, ValueError, "are the same loader"),
        ([(A, 1)], {"names": ["a", "b"]}, ValueError, "one name for each of the 1 sources"),
        ([(A, 1), (source(1, 8, 2), 1)], {"names": ["a", "a"]}, ValueError, "'a' is given twice"),
        ([(A, 1)], {"names": "a"}, TypeError, "names must be a list .* the string 'a'"),
        ([(A, 1)], {"names": ["total"]}, ValueError, "No source can be named 'total'"),
        ([(A, 1)], {"names": [""]}, TypeError, "nonempty string"),
        ({"a": (A, 1)}, {"names": ["a"]}, ValueError, "has names already"),
        ([(3, 1)], {}, TypeError, "source 'source_0' must be iterable"),
        ([(torch.utils.data.TensorDataset(torch.ones(2)), 1)], {}, TypeError, "DataLoader"),
        ([(iter([1]), 1)], {}, ValueError, "can be read only once"),
        ([(source(0, 0, 2), 1)], {}, ValueError, "is empty"),
        ([(A, 1)], {"by": "words"}, ValueError, "by"),
        ([(A, 1)], {"seed": "7"}, TypeError, "seed must be an integer, but got '7'"),
        ([(A, 1)], {"seed": 1.5}, TypeError, "seed must be an integer"),
        ([(A, 1)], {"seed": -1}, ValueError, "seed"),
        ([(A, 1)], {"num_replicas": 2.5}, TypeError, "num_replicas must be an integer"),
        ([(A, 1)], {"num_replicas": 2, "rank": 1.5}, TypeError, "rank must be an integer"),
        ([(A, 1)], {"epoch_length": 0}, ValueError, "epoch_length must be greater than 0"),
        ([(A, 1)], {"epoch_length": 1.5}, TypeError, "epoch_length must be an integer"),
        ([(A, 1)], {"epoch_length": "2ep"}, ValueError, "a number of batches"),
        ([(A, 1)], {"epoch_length": 2, "stopping_strategy": "first_exhausted"}, ValueError, "not both"),
        ([(A, 1)], {"stopping_strategy": "last"}, ValueError, "stopping_strategy"),
        ([(A, 1)], {"num_replicas": 2, "rank": 2}, ValueError, "rank must be from 0 to 1"),
        ([(Endless(), 1)], {}, ValueError, "never end: source 'source_0' is infinite.*Pass epoch_length"),
        ([(A, 1), (Endless(), 1)], {"stopping_strategy": "all_exhausted"}, ValueError, "never end"),
        ([(A, 0), (Endless(), 1)], {}, ValueError, "never end: source 'source_1' is infinite"),
        (
            [(A, 1)],
            {"milestones": [("1ba", {"b": 1})]},
            ValueError,
            r"weight for 'b', but the sources are \['source_0'\]",
        ),
        ([(A, 1)], {"milestones": [("1ba", {"source_0": -1})]}, ValueError, "must be finite and 0 or greater"),
        (
            [(A, 1)],
            {"milestones": [("1ba", {"source_0": float("nan")})]},
            ValueError,
            r"milestones\[0\]: .* but is nan\.$",
        ),
        ([(A, 0)], {}, ValueError, r"weights of all sources \['source_0'\] are 0; one must"),
        (
            {"a": (A, 1), "b": (B, 1)},
            {"milestones": [("10ba", {"a": 0}), ("15ba", {"b": 0}), ("20ba", {"a": 1})]},
            ValueError,
            r"all sources \['a', 'b'\] are 0 from milestones\[1\], at '15ba', on; one must be greater",
        ),
        (
            {"a": (A, lambda now: 1.0), "b": (B, 1)},
            {"milestones": [("10ba", {"a": 0, "b": 0.0})]},
            ValueError,
            r"are 0 from milestones\[0\]",
        ),
        (
            [(A, 0)],
            {"milestones": [("1ba", {"source_0": 1})], "epoch_length": 2},
            ValueError,
            "are 0; one must be greater than 0",
        ),
        ([(A, 1)], {"milestones": [("1ba", [1])]}, TypeError, "must map the names"),
        ([(A, 1)], {"milestones": ["1ba"]}, TypeError, "must be a pair of a time"),
        ([(A, 1)], {"milestones": [(1, {})]}, TypeError, "must be a time"),
        ([(A, 1)], {"milestones": [("2ba", {}), ("1ba", {})]}, ValueError, "in order of time"),
        ([(A, 1)], {"milestones": [("2ba", {}), ("3ep", {})]}, ValueError, "in one unit"),
        (
            [(DataLoader(range(8), batch_sampler=Once(RandomSampler(range(8)), 2, False)), 1)],
            {"num_replicas": 2, "rank": 0},
            ValueError,
            "cannot shard among 2 ranks",
        ),
        ([(TensorLoader([torch.ones(4)], 2), 1)], {"num_replicas": 2, "rank": 0}, ValueError, "Pass the same to both"),
    ],
)
def test_wrong_arguments_are_refused(sources, more, error, message) -> None:
    with pytest.raises(error, match=message):
        Mixture(sources, **more)


def test_an_endless_source_beside_others() -> None:
    mixed = Mixture([(source(1, 8, 2), 0.5), (Endless(), 0.5)])
    with pytest.raises(TypeError):
        len(mixed)
    assert sum(bool(batch[0]) for batch in mixed) == 4
    # One that is never drawn has no part in where an epoch ends.
    assert len(list(Mixture([(source(1, 8, 2), 1), (Endless(), 0)], stopping_strategy="all_exhausted"))) == 4


def test_very_large_and_very_small_weights_are_relative() -> None:
    for scale in (5e-324, 1e-300, 1e300, 1.7e308):
        mixed = mixture(weights=(scale, scale), epoch_length=10)
        assert take(mixed, 10) == take(mixture(weights=(1, 1), epoch_length=10), 10)


def test_weights_of_0_that_are_no_end() -> None:
    """Before a milestone at the start, and where a function may be greater than 0."""
    mixed = Mixture({"a": (A, 0), "b": (B, 0)}, milestones=[("0ba", {"a": 1})], epoch_length=2)
    assert len(take(mixed, 2)) == 2
    mixed = Mixture({"a": (A, lambda now: 1.0), "b": (B, 1)}, milestones=[("1ba", {"b": 0})], epoch_length=4)
    assert len(take(mixed, 4)) == 4


def test_errors_while_drawing() -> None:
    with pytest.raises(ValueError, match="source 'b' is empty: it yielded no batch"):
        take(Mixture({"a": (A, 1), "b": ([], 1)}, epoch_length=9), 9)
    with pytest.raises(ValueError, match=r"weights of all sources \['source_0'\] are 0 at '3ba'; one must"):
        take(Mixture([(A, lambda now: float(now.batch < 3))], epoch_length=9), 9)
    with pytest.raises(ValueError, match=r"'source_0' must be finite and 0 or greater, but is -1.0 at '0ba'\.$"):
        take(Mixture([(A, lambda now: -1.0)], epoch_length=9), 9)
    with pytest.raises(ValueError, match="by='tokens', but no tokens were counted"):
        take(Mixture([(A, 1)], by="tokens", epoch_length=2), 2)
