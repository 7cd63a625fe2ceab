"""Mixture in a Trainer: losses and counts by source in the log, schedules of the run, several ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from composer import DataSpec
from composer.core.data_sharding import DataShard
from composer.datasets import Mixture, TensorLoader
from composer.loggers import InMemoryLogger
from composer.optim import LinearScheduler
from composer.warnings import ComposerWarning
from tests.common import At, weights
from tests.trainer.multi_rank import Numbered, Stream, flat, run_of
from tests.trainer.test_resume_within_step import SaveIn

SIZES, SHIFT = (20, 13), 1000


class Shifted(Numbered):
    """Samples with the number of their source in thousands."""

    def __init__(self, n: int, number: int) -> None:
        super().__init__(n)
        self.shift = number * SHIFT

    def __getitem__(self, index):
        x, y, number = super().__getitem__(index)
        return x + self.shift / 500, y, number + self.shift


class Shifting(IterableDataset[Any]):
    """The samples of a :class:`Shifted`, maybe with noise, with a position and no length."""

    def __init__(self, n: int, number: int, noise: float) -> None:
        self.samples, self.place, self.noise = Shifted(n, number), 0, noise

    def __iter__(self):
        while self.place < len(self.samples):
            self.place += 1
            x, *others = self.samples[self.place - 1]
            yield [x + self.noise * torch.randn(()) if self.noise else x, *others]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def mixture(batch_size: int, **more: Any) -> Mixture:
    """A map-style dataset and tensors."""
    mapped = DataLoader(Shifted(SIZES[0], 0), batch_size, shuffle=True)
    data = Shifted(SIZES[1], 1)
    columns = [torch.stack([torch.as_tensor(data[i][k]) for i in range(SIZES[1])]) for k in range(3)]
    on_device = TensorLoader(columns, batch_size, device="cpu", transform=list)
    sources = {"mapped": (mapped, 0.6), "tensors": (on_device, 0.4)}
    return Mixture(sources, **({"epoch_length": 6} | more))


def source_of(numbers: list[int]) -> str:
    [number] = {value // SHIFT for value in numbers}
    return ("mapped", "tensors")[number]


def logged(mixed: Any, **more: Any) -> tuple[dict[str, dict[int, Any]], Any]:
    log = InMemoryLogger()
    trainer, watch = run_of("double", mixed, loggers=[log], max_duration="2ep", **more)
    trainer.fit()
    trainer.close()
    return {name: {int(t.batch): float(v) for t, v in series} for name, series in log.data.items()}, watch


def test_losses_and_counts_by_source() -> None:
    mixed = mixture(4)
    series, watch = logged(mixed)
    names = [source_of(numbers) for numbers in watch.numbers]
    assert len(names) == 12
    assert set(names) == {"mapped", "tensors"}
    done = {"mapped": 0, "tensors": 0}
    for step, name in enumerate(names):
        assert series[f"loss/train/{name}"][step] == pytest.approx(watch.losses[step], rel=1e-6)
        for source, count in done.items():
            assert series[f"samples/{source}"][step] == count
        done[name] += 4
    assert mixed.samples == done == {source: series[f"samples/{source}"][len(names)] for source in done}
    for name in done:
        assert sorted(series[f"loss/train/{name}"]) == [step for step, other in enumerate(names) if other == name]
    assert not any(name.startswith("tokens/") for name in series)


def test_tokens_by_source_are_those_that_the_data_spec_counts() -> None:
    spec = DataSpec(mixture(4, by="tokens"), get_num_tokens_in_batch=lambda batch: 1 + int(batch[2][0]) // SHIFT * 9)
    series, watch = logged(spec)
    names = [source_of(numbers) for numbers in watch.numbers]
    assert series["tokens/mapped"][11] == names[:11].count("mapped")
    assert series["tokens/tensors"][11] == names[:11].count("tensors") * 10
    assert names.count("tensors") <= 2, "0.4 of the tokens"


def test_a_loss_with_the_name_of_a_source() -> None:
    trainer, _ = run_of("double", mixture(4), loggers=[InMemoryLogger()])
    loss = trainer.state.model.loss
    trainer.state.model.loss = lambda outputs, batch: {"mapped": loss(outputs, batch), "tensors": loss(outputs, batch)}
    with (
        pytest.raises(ValueError, match="also the name of a source of the mixture"),
        pytest.warns(ComposerWarning, match="while the optimizers stepped"),  # losses are known only then
    ):
        trainer.fit()
    trainer.close()


def test_times_are_those_of_the_run() -> None:
    """A fraction of the run, and a schedule over it."""
    _, watch = logged(mixture(4, milestones=[("0.5dur", {"mapped": 0})]))
    assert {source_of(numbers) for numbers in watch.numbers[6:]} == {"tensors"}
    assert {source_of(numbers) for numbers in watch.numbers[:6]} == {"mapped", "tensors"}
    pairs = {f"source_{k}": DataLoader(Shifted(20, k), 4) for k in range(2)}
    shifting = Mixture(
        [(pairs["source_0"], LinearScheduler()), (pairs["source_1"], LinearScheduler(0.0, 1.0))], epoch_length=20
    )
    _, watch = logged(shifting)
    names = [source_of(numbers) for numbers in watch.numbers]
    assert names[:20].count("mapped") == pytest.approx(15, abs=1)
    assert names[20:].count("mapped") == pytest.approx(5, abs=1)


def test_a_second_run_starts_over_and_a_second_fit_continues() -> None:
    mixed = mixture(4)
    _, first = logged(mixed)
    _, second = logged(mixed)
    assert first.numbers == second.numbers
    trainer, watch = run_of("double", mixture(4), max_duration="5ba")
    trainer.fit()
    trainer.fit(duration="7ba")
    trainer.close()
    assert watch.numbers == first.numbers


def test_without_length() -> None:
    """Whose epochs end where a source does."""
    mixed = mixture(4, epoch_length=None, by="tokens", stopping_strategy="first_exhausted")
    spec = DataSpec(mixed, get_num_tokens_in_batch=lambda batch: 4)
    trainer, watch = run_of("double", spec, max_duration="1ep")
    trainer.fit()
    trainer.close()
    per_source = {name: sum(source_of(n) == name for n in watch.numbers) * 4 for name in ("mapped", "tensors")}
    assert per_source["mapped"] >= 20 or per_source["tensors"] >= 13
    assert mixed.epoch == 1


def _unsized(strategy: str, noise: float) -> Mixture:
    a, b = (DataLoader(Shifting(n, number, noise), 4) for number, n in enumerate((22, 14)))
    return Mixture({"a": (a, 0.7), "b": (b, 0.3)}, stopping_strategy=strategy)


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
@pytest.mark.parametrize("event", ["after_dataloader", "batch_start", "batch_end", "batch_checkpoint"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_saving_changes_no_epoch_without_length(event: str, strategy: str, noise: float, tmp_path: Path) -> None:
    """Neither the sources nor the losses by source, and checkpoints after steps resume, also at the end of an epoch."""
    series, watch = logged(_unsized(strategy, noise))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A checkpoint is saved within step", ComposerWarning)
        again, saving = logged(_unsized(strategy, noise), callbacks=[SaveIn(event, tmp_path)])
    assert (saving.numbers, saving.losses) == (watch.numbers, watch.losses)
    for name in ("loss/train/a", "loss/train/b", "samples/a", "samples/b", "time/epoch"):
        assert again[name] == series[name]
    if event in ("batch_end", "batch_checkpoint"):
        for stop in range(1, len(watch.numbers)):
            rest, resumed = logged(_unsized(strategy, noise), load_path=str(tmp_path / f"{stop}.pt"))
            assert (resumed.numbers, resumed.losses) == (watch.numbers[stop:], watch.losses[stop:]), stop
            assert rest["time/epoch"].items() <= series["time/epoch"].items(), stop


def test_other_sharding_than_that_of_the_run_is_refused() -> None:
    mixed = mixture(4)
    trainer, _ = run_of("double", mixed)
    trainer.state.data_shard = DataShard(0, 2)
    with pytest.raises(ValueError, match="num_replicas=1, but the data of the run is sharded with rank=0 and num_repl"):
        mixed.__follow__(trainer.state)
    trainer.close()


def _train(batch_size: int, folder: str, stop: str | None, load: str | None) -> tuple[Any, list[list[int]], Any]:
    more: dict[str, Any] = {} if load is None else {"load_path": load}
    if stop is not None:
        more |= {"save_folder": folder, "save_interval": "1ba", "save_filename": "at{batch}.pt"}
    log = InMemoryLogger()
    trainer, watch = run_of("double", mixture(batch_size), max_duration=stop or "2ep", loggers=[log], **more)
    counts = At("batch_end", lambda state: state.train_dataloader.samples)
    trainer.state.callbacks.append(counts)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The random state was saved with", ComposerWarning)
        trainer.fit()
    found = weights(trainer), watch.numbers, counts.found[-1]
    trainer.close()
    return found


def test_WorldResize_of_a_mixture(two_ranks, tmp_path) -> None:
    expected, straight, counts = _train(8, str(tmp_path), None, None)
    halves = two_ranks.run(_train, 4, str(tmp_path), "4ba", None)
    pairs = zip(*[numbers for _, numbers, _ in halves], strict=True)
    assert [sorted(one + other) for one, other in pairs] == [sorted(step) for step in straight[:4]]
    # One rank resumes from two, with the global batches of two ranks.
    found, rest, resumed_counts = _train(8, str(tmp_path), None, str(tmp_path / "at4.pt"))
    assert [sorted(step) for step in rest] == [sorted(step) for step in straight[4:]]
    assert resumed_counts == counts
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    # Two ranks resume from one.
    _train(8, str(tmp_path / "one"), "7ba", None)
    both = two_ranks.run(_train, 4, str(tmp_path), None, str(tmp_path / "one" / "at7.pt"))
    for vector, _, counted in both:
        torch.testing.assert_close(vector, expected, rtol=1e-9, atol=1e-9)
        assert counted == counts
    assert len(set(flat(straight))) == sum(SIZES)


def _iterate_by_tokens(steps: int) -> tuple[list[str], dict[str, int], dict[str, int]]:
    """Outside of a run: sentences of which the ranks have different numbers of tokens."""

    def collate(items: list[int]) -> dict[str, Any]:
        return {"input_ids": torch.zeros(len(items), 1 + items[0] % 7)}

    sources = {
        name: (DataLoader(range(first, first + 40), 2, shuffle=True, collate_fn=collate), 0.5)
        for name, first in (("a", 0), ("b", 3))
    }
    mixed = Mixture(sources, by="tokens", epoch_length=steps)
    found = [mixed.source or "" for _ in mixed]
    return found, mixed.tokens, mixed.samples


def test_ranks_choose_the_same_sources_by_tokens(two_ranks) -> None:
    one, other = two_ranks.run(_iterate_by_tokens, 60)
    assert one == other
    assert one[2]["a"] + one[2]["b"] == 60 * 4
    assert one[1]["a"] / sum(one[1].values()) == pytest.approx(0.5, abs=0.05)


def _train_streams(folder: str, load: str | None) -> tuple[Any, list[list[int]], list[int]]:
    """Streams of which the ranks have different numbers of samples, beside map-style data."""
    sources = [(DataLoader(Stream([11, 6]), 2), 0.5), (DataLoader(Shifted(40, 1), 2, shuffle=True), 0.5)]
    more: dict[str, Any] = {"save_folder": folder, "save_interval": "1ba", "save_filename": "at{batch}.pt"}
    more = more if load is None else {"load_path": load}
    trainer, watch = run_of("double", Mixture(sources), max_duration="2ep", **more)
    trainer.fit()
    found = weights(trainer), watch.numbers, watch.samples
    trainer.close()
    return found


def test_ranks_with_different_numbers_of_batches(two_ranks, tmp_path) -> None:
    """One continues while the other has no batch; both resume where they were."""
    straight = two_ranks.run(_train_streams, str(tmp_path), None)
    assert torch.equal(straight[0][0], straight[1][0])
    for rank, size in enumerate((11, 6)):
        streamed = [value for value in flat(straight[rank][1]) if value < SHIFT]
        assert set(streamed) == set(range(rank * 11, rank * 11 + size)), "of two epochs, each with all samples"
    steps = len(straight[0][2])
    for stop in (3, steps // 2, steps - 2):
        resumed = two_ranks.run(_train_streams, str(tmp_path), str(tmp_path / f"at{stop}.pt"))
        for one, other in zip(straight, resumed, strict=True):
            assert other[2] == one[2][stop:]
            assert torch.equal(one[0], other[0])
