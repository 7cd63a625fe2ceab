"""Mixture: the shares of its sources, where epochs end, and resuming on any number of ranks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, WeightedRandomSampler

from composer.core import Timestamp
from composer.datasets import DevicePrefetcher, Mixture, TensorLoader
from composer.datasets._mixture_weights import choose
from composer.optim import LinearScheduler

# Samples of source k are k * 1000 + index.
START = 1000


def source(number: int, n: int, batch_size: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(torch.arange(number * START, number * START + n), batch_size, **more)


def mixture(sizes: Any = ((30, 4), (50, 4)), weights: Any = (0.7, 0.3), shuffle: bool = True, **more: Any) -> Mixture:
    loaders = [source(number, n, size, shuffle=shuffle) for number, (n, size) in enumerate(sizes)]
    return Mixture(list(zip(loaders, weights, strict=True)), **more)


def take(mixed: Any, number: int) -> list[list[int]]:
    """The samples of so many batches, over epochs."""
    found: list[list[int]] = []
    while len(found) < number:
        found += [batch.tolist() for batch in itertools.islice(mixed, number - len(found))]
    return found


sizes_of_sources = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=4)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 99), st.integers(1, 60))
def test_no_source_is_ahead_of_its_weight_by_a_batch(weights, seed, steps) -> None:
    mixed = mixture([(17, 3)] * len(weights), weights, seed=seed, epoch_length=steps)
    for done, batch in enumerate(mixed, 1):
        assert len(batch) == 3
        for count, weight in zip(mixed.samples.values(), weights, strict=True):
            assert count - 3 * done * weight / sum(weights) < 3 + 1e-6
    assert sum(mixed.samples.values()) == 3 * steps


def test_which_source_is_next_is_random() -> None:
    """Also with equal weights, where waiting for the source that is behind would give an alternation."""
    first = [batch[0] // START for batch in take(mixture(weights=(1, 1), epoch_length=100), 100)]
    assert 0.2 < sum(one == other for one, other in itertools.pairwise(first)) / 99 < 0.6
    assert first != [batch[0] // START for batch in take(mixture(weights=(1, 1), epoch_length=100, seed=1), 100)]
    assert sum(first) == pytest.approx(50, abs=1)


@given(st.floats(0, 0.999), st.floats(0.01, 0.99))
def test_the_choice_is_unbiased(uniform, weight) -> None:
    """From level sources, each is chosen with its weight."""
    assert (choose({"a": weight, "b": 1 - weight}, {"a": 0.0, "b": 0.0}, 8.0, uniform) == "a") == (uniform < weight)


def test_weights_are_shares_of_samples_or_of_tokens() -> None:
    def of(by: str) -> Mixture:
        short = [{"input_ids": torch.zeros(8, 4)}] * 9
        long = [{"input_ids": torch.zeros(2, 64)}] * 9
        return Mixture({"short": (short, 0.5), "long": (long, 0.5)}, by=by, epoch_length=400)

    for by in ("samples", "tokens"):
        mixed = of(by)
        for _ in mixed:
            pass
        counts = getattr(mixed, by)
        assert counts["short"] / sum(counts.values()) == pytest.approx(0.5, abs=0.01)
        assert mixed.tokens == {"short": mixed.samples["short"] * 4, "long": mixed.samples["long"] * 64}


@given(sizes_of_sources, st.integers(0, 60), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), st.booleans())
def test_resume_anywhere_on_any_number_of_ranks(sizes, done, before, after, tensors) -> None:
    """Of each source, every sample is drawn once in each of its epochs, whatever the number of ranks."""

    def of(size: int, rank: int) -> Mixture:
        loaders: list[Any] = [source(number, n, batch, shuffle=True) for number, (n, batch) in enumerate(sizes)]
        if tensors:
            n, batch = sizes[0]
            ranks = {"num_replicas": size, "rank": rank}
            loaders[0] = TensorLoader([torch.arange(n)], batch, device="cpu", transform=lambda b: b[0], **ranks)
        return Mixture([(loader, 1 + k) for k, loader in enumerate(loaders)], num_replicas=size, rank=rank, seed=3)

    drawn: list[list[int]] = [[] for _ in sizes]

    def draw(mixtures: list[Mixture], steps: int) -> None:
        parts = [take(one, steps) for one in mixtures]
        for step in zip(*parts, strict=True):
            assert len({batch[0] // START for batch in step}) == 1, "all ranks draw from one source"
            together = [value for row in zip(*step, strict=True) for value in row]
            drawn[together[0] // START] += together
        for one in mixtures[1:]:
            assert one.state_dict() == mixtures[0].state_dict()

    first = [of(before, rank) for rank in range(before)]
    draw(first, done)
    state = first[0].state_dict()
    later = [of(after, rank) for rank in range(after)]
    for one in later:
        one.load_state_dict(state)
    draw(later, 20)
    for number, (n, _) in enumerate(sizes):
        everything = list(range(number * START, number * START + n))
        for epoch in range(len(drawn[number]) // n):
            assert sorted(drawn[number][epoch * n : (epoch + 1) * n]) == everything


@given(sizes_of_sources, st.integers(0, 30), st.sampled_from(["first_exhausted", "all_exhausted"]))
def test_resume_gives_the_batches_of_the_straight_iteration(sizes, done, strategy) -> None:
    weights = range(1, 1 + len(sizes))
    straight = take(mixture(sizes, weights, stopping_strategy=strategy), done + 25)
    stopped = mixture(sizes, weights, stopping_strategy=strategy)
    assert take(stopped, done) == straight[:done]
    resumed = mixture(sizes, weights, stopping_strategy=strategy)
    resumed.load_state_dict(stopped.state_dict())
    assert take(resumed, 25) == straight[done:]
    assert resumed.epoch >= stopped.epoch


def test_orders_of_sources_do_not_depend_on_other_sources() -> None:
    one = Mixture({"a": (source(0, 30, 4, shuffle=True), 1)})
    two = Mixture({"b": (source(1, 9, 2, shuffle=True), 5), "a": (source(0, 30, 4, shuffle=True), 1)}, epoch_length=300)
    of_a = [batch for batch in take(two, 300) if batch[0] < START]
    assert take(one, len(of_a)) == of_a
    # Each epoch has another order.
    flat = [value for batch in of_a for value in batch]
    assert flat[:30] != flat[30:60]
    assert sorted(flat[:30]) == sorted(flat[30:60]) == list(range(30))


@pytest.mark.parametrize(("strategy", "end"), [("first_exhausted", 30 / 0.7), ("all_exhausted", 50 / 0.3)])
def test_where_an_epoch_ends(strategy, end) -> None:
    """Of data of known sizes by the shares, and of others when a loader ends."""
    known = mixture(stopping_strategy=strategy)
    assert len(known) == math.ceil(end / 4) == len(list(known))
    assert known.epoch == 1
    lists = [[batch.tolist() for batch in source(k, n, 4)] for k, n in enumerate((30, 50))]
    read = Mixture(list(zip(lists, (0.7, 0.3), strict=True)), stopping_strategy=strategy)
    with pytest.raises(TypeError, match="no length"):
        len(read)
    first = list(read)
    assert abs(len(first) - end / 4) <= 4  # the last batch of an epoch is short
    per_source = [[batch for batch in first if batch[0] // START == k] for k in range(2)]
    ended = [len(batches) >= len(lists[k]) for k, batches in enumerate(per_source)]
    assert any(ended) if strategy == "first_exhausted" else all(ended)


def test_a_mixture_of_one_source_is_that_source() -> None:
    loader = source(0, 20, 4)
    assert [batch.tolist() for batch in Mixture([(loader, 1.0)])] == [batch.tolist() for batch in loader]
    assert len(Mixture([(source(0, 21, 4), 2)])) == 6


def test_epochs_and_early_ends() -> None:
    mixed = mixture(epoch_length="10ba")
    assert len(mixed) == mixed.steps_left == 10
    next(iter(mixed))
    assert mixed.steps_left == 9
    assert len(list(mixed)) == 10, "an epoch that was left early is over"
    assert mixed.epoch == 2
    samples = dict(mixed.samples)
    mixed.set_epoch(5)
    assert mixed.samples == samples
    mixed.set_epoch(0)
    assert take(mixed, 30) == take(mixture(epoch_length="10ba"), 30), "epoch 0 starts over"


def test_a_custom_sampler_and_a_generator_of_its_own() -> None:
    def of(seed: int) -> Mixture:
        generator = torch.Generator().manual_seed(seed)
        data = torch.arange(12)
        weighted = DataLoader(data, 4, sampler=WeightedRandomSampler([1.0] * 12, 12, generator=generator))
        return Mixture([(weighted, 1), (DataLoader(data + START, 4), 1)], epoch_length=12)

    straight = take(of(1), 24)
    assert straight == take(of(1), 24)
    assert straight != take(of(2), 24)
    stopped = of(1)
    take(stopped, 7)
    resumed = of(1)
    resumed.load_state_dict(stopped.state_dict())
    assert take(resumed, 17) == straight[7:]


def test_batches_of_a_batch_sampler_and_of_a_prefetcher() -> None:
    sampler = BatchSampler(SequentialSampler(range(10)), 5, drop_last=False)

    class Own(BatchSampler):
        def __iter__(self):
            yield from ([0, 1], [2, 3, 4])

    data = torch.arange(10)
    loaders = [DataLoader(data, batch_sampler=sampler), DataLoader(data, batch_sampler=Own(sampler.sampler, 5, False))]
    loaders.append(DevicePrefetcher(source(1, 8, 2), device="cpu"))
    mixed = Mixture([(loader, 1) for loader in loaders], epoch_length=40)
    assert {tuple(batch) for batch in take(mixed, 40)} == {
        (0, 1, 2, 3, 4),
        (5, 6, 7, 8, 9),
        (0, 1),
        (2, 3, 4),
        *((START + k, START + k + 1) for k in range(0, 8, 2)),
    }


def test_weights_over_time() -> None:
    """Schedules, functions of the timestamp, and milestones."""
    changed = mixture(
        weights=(1, 1), milestones=[("20ba", {"source_0": 0}), ("30ba", {"source_0": 3})], epoch_length=70
    )
    found = [batch[0] // START for batch in changed]
    assert sum(found[:20]) == pytest.approx(10, abs=1)
    assert found[20:30] == [1] * 10
    assert sum(found[30:]) == pytest.approx(10, abs=1)
    by_function = mixture(weights=(lambda now: now.batch < 20, 1), epoch_length=40)
    with pytest.raises(TypeError, match=r"weight of source 'source_0' .* must be a number"):
        next(iter(by_function))
    by_function = mixture(weights=(lambda now: float(now.sample.value < 80), 0.5), epoch_length=40)
    assert [batch[0] // START for batch in by_function][20:] == [1] * 20
    scheduled = mixture(weights=(LinearScheduler(t_max="40ba"), LinearScheduler(0.0, 1.0, "40ba")), epoch_length=40)
    found = [batch[0] // START for batch in scheduled]
    assert sum(found[:20]) == pytest.approx(5, abs=2)
    assert sum(found[20:]) == pytest.approx(15, abs=2)
    with pytest.raises(ValueError, match=r"'0\.5dur' is a fraction of the run, whose duration is unknown"):
        next(iter(mixture(milestones=[("0.5dur", {"source_0": 0})])))
    with pytest.raises(TypeError, match=r"no length.*epoch_length"):
        len(mixture(milestones=[("20ba", {"source_0": 0})]))


def test_other_weights_and_sources_on_resume() -> None:
    """The weights of the resumed mixture hold from there; sources are known by their names."""
    loaders = {"a": source(0, 30, 4), "b": source(1, 50, 4)}
    before = Mixture({name: (loader, 1) for name, loader in loaders.items()}, epoch_length=100)
    take(before, 20)
    state = before.state_dict()
    after = Mixture({"c": (source(2, 8, 4), 2), "b": (loaders["b"], 2)}, epoch_length=100)
    after.load_state_dict(state)
    assert after.samples == {"c": 0, "b": before.samples["b"]}
    found = take(after, 40)
    assert after.samples["c"] == pytest.approx(80, abs=8)
    of_b = [batch for batch in found if batch[0] // START == 1]
    assert of_b[0][0] == START + before.samples["b"] % 50, "continues where it was"
    only_b = Mixture({"a": (loaders["a"], 0), "b": (loaders["b"], 1)}, epoch_length=100)
    only_b.load_state_dict(state)
    assert {batch[0] // START for batch in take(only_b, 30)} == {1}
    by_tokens = Mixture({"a": (loaders["a"], 1), "b": (loaders["b"], 1)}, by="tokens", epoch_length=100)
    by_tokens.load_state_dict(state)
    with pytest.raises(ValueError, match="no tokens were counted"):
        take(by_tokens, 2)


def test_other_data_on_resume_is_refused() -> None:
    state = mixture().state_dict()
    with pytest.raises(ValueError, match="'source_0' has 31 samples in an epoch, but in the saved state it has 30"):
        mixture(((31, 4), (50, 4))).load_state_dict(state)
    with pytest.raises(ValueError, match="seed=0, but this one has seed=1"):
        mixture(seed=1).load_state_dict(state)
    streams = Mixture([([1, 2], 1)], num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="saved by 2 ranks, but now has 3 ranks"):
        Mixture([([1, 2], 1)], num_replicas=3, rank=0).load_state_dict(streams.state_dict())


def test_mixtures_of_mixtures() -> None:
    def of() -> Mixture:
        inner = mixture(((6, 2), (10, 2)), epoch_length=5)
        return Mixture({"inner": (inner, 0.5), "outer": (source(2, 12, 2, shuffle=True), 0.5)}, epoch_length=10)

    straight = take(of(), 40)
    assert {batch[0] // START for batch in straight} == {0, 1, 2}
    for done in (3, 10, 17):
        stopped, resumed = of(), of()
        take(stopped, done)
        resumed.load_state_dict(stopped.state_dict())
        assert take(resumed, 40 - done) == straight[done:]


def test_a_large_dataset_resumes_at_once() -> None:
    """No earlier indices are computed: the position is a number."""
    mixed = Mixture([(DataLoader(range(10**8), 4, shuffle=True), 1)], epoch_length=2)
    state = mixed.state_dict()
    state["sources"]["source_0"]["place"] = 9 * 10**7
    mixed.load_state_dict(state)
    assert len(next(iter(mixed))) == 4


def test_the_time_of_a_mixture_is_its_own_outside_of_a_run() -> None:
    seen: list[Timestamp] = []
    mixed = mixture(weights=(lambda now: seen.append(now) or 1.0, 0), epoch_length=2)
    take(mixed, 4)
    assert [(now.epoch.value, now.batch.value, now.sample.value) for now in seen] == [
        (0, 0, 0), (0, 1, 4), (1, 2, 8), (1, 3, 12)
    ]  # fmt: skip
