"""The start of an epoch that is longer than what is measured, with real trials."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from composer import Trainer
from composer.core.epoch_iterators import EpochIterators
from composer.diagnosis.doctor import doctor
from composer.diagnosis.epoch_start import EpochStarts, start_evidence
from composer.diagnosis.step_split import seconds_of
from composer.diagnosis.verdict import judge
from composer.trials import Target
from tests.diagnosis.parts import CLASSES, WIDTH, trainer
from tests.diagnosis.test_verdict import HEALTHY, measured

SAMPLES, BATCH = 8192, 32


class Slow(Sampler[int]):
    """Takes 3 s for the samples of an epoch: for each, or at its start."""

    def __init__(self, *, at_start: bool) -> None:
        self.at_start = at_start

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        if self.at_start:
            time.sleep(3)
        for index in range(SAMPLES):
            if not self.at_start and index % 8 == 0:
                time.sleep(3 * 8 / SAMPLES)
            yield index


class OpensOnce(Dataset[tuple[Tensor, int]]):
    """Takes 3 s for the first sample of the run."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.rows is None:
            time.sleep(3)
            self.rows = torch.randn(64, WIDTH)
        return self.rows[index % 64], index % CLASSES


class Endless(IterableDataset[Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


def rows() -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,)))


def slow_samples() -> Trainer:
    return trainer(data=DataLoader(rows(), BATCH, sampler=Slow(at_start=False)))


def slow_start() -> Trainer:
    data = DataLoader(rows(), BATCH, sampler=Slow(at_start=True), num_workers=1, persistent_workers=True)
    return trainer(data=data)


def opens_once() -> Trainer:
    return trainer(data=DataLoader(OpensOnce(), BATCH))


@pytest.fixture
def forked(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one fork server for all tests."""
    monkeypatch.setattr("composer.trials.workspace.ForkServer", lambda *_: contextlib.nullcontext(server))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("program", ["slow_samples", "slow_start"])
def test_a_slow_sampler_is_found_in_epochs_longer_than_what_is_measured(program: str) -> None:
    report = doctor(Target("function", f"{__name__}:{program}"), steps=5, remedies=[])
    assert report.verdict.cause == "data"
    assert "Slow.__iter__" in report.verdict.where
    assert any("each of its 256 steps" in each for each in report.verdict.evidence)


@pytest.mark.usefixtures("forked")
def test_what_happens_only_in_the_first_epoch_is_not_spread_over_all() -> None:
    report = doctor(Target("function", f"{__name__}:opens_once"), steps=5, remedies=[])
    assert report.shares["data"] * report.step < 3 / 256


def test_the_start_is_spread_over_the_steps_of_the_epoch() -> None:
    result = measured(HEALTHY, epoch_start={"seconds": 100.0, "steps": 100})
    assert seconds_of(result) == {**HEALTHY, "data": pytest.approx(1.05)}
    verdict = judge(result)
    assert verdict.cause == "data"
    assert start_evidence(result)[0] in verdict.evidence


def test_lines_before_the_workers_are_named_rather_than_those_in_them() -> None:
    line = {"part": "data", "file": "train.py", "line": 3, "in": "Slow.__iter__", "seconds": 8.0}
    within = {**line, "line": 9, "in": "Rows.__getitem__"}
    parts, facts = {**HEALTHY, "data": 2.0}, {"data": {"workers": 2}}
    inline = measured(parts, facts, lines=[within], sampled_seconds=10.0)
    assert "Slow.__iter__" in judge(measured(parts, facts, lines=[line], sampled_seconds=10.0), inline).where
    assert "Rows.__getitem__" in judge(measured(parts, facts, lines=[], sampled_seconds=10.0), inline).where


@pytest.mark.parametrize(
    ("first", "timed", "dataset", "matters"),
    [
        (1.0, False, rows, True),
        (None, False, rows, True),
        (0.001, False, rows, False),
        (1.0, True, rows, False),
        (1.0, False, Endless, False),
    ],
)
def test_a_start_is_measured_where_it_may_matter(first: float | None, timed: bool, dataset: Any, matters: bool) -> None:
    starts = EpochStarts()
    with trainer(data=DataLoader(dataset(), BATCH)) as one:
        state = one.state
        state.train_phase.epoch_iterators = EpochIterators(state.train_phase.loader.dataloader, seed=0)
        state.timestamp = state.timestamp.to_next_batch()
        if first is not None:
            starts.note(state, {"data": first}, timed=timed)
        state.timestamp = state.timestamp.to_next_batch()
        starts.note(state, {"data": 9.0}, timed=True)
        assert starts.matters(state, step=0.01) == matters
