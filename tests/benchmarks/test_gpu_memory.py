"""The part memory of ``make gpu`` in its tiny form on the CPU, and that each check can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu import estimates, held, leaks, limits, memory, peaks
from benchmarks.gpu.options import Options, SkipError
from benchmarks.report import Report
from composer import Callback, Trainer
from composer.algorithms import EMA

TINY = Options(device="cpu", tiny=True, rounds=1, seconds=200.0)
NAMES = ["raw eager", "raw compiled", "composer eager", "composer compiled"]


class Here:
    """Calls in this process what a worker would call in its own."""

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, target: str, **arguments: Any) -> Any:
        return peaks.train(**arguments)


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    """The checks set threads and TF32 for their own process."""
    monkeypatch.setattr(peaks, "Worker", Here)
    for module in (peaks, held, leaks):
        monkeypatch.setattr(module, "prepare", lambda device: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)


def missed(report: Report) -> list[str]:
    assert not report.failed
    assert report.rows
    assert report.goals
    assert report.text()
    assert "| --- |" in report.tables()
    return [goal.what for goal in report.goals if not goal.met]


def test_the_part_has_its_checks() -> None:
    assert list(memory.CHECKS) == [
        "gpt2",
        "resnet50",
        "microbatch_auto",
        "checkpoint",
        "offload",
        "leaks",
        "ema_swa",
        "estimates",
        "limits",
    ]


@pytest.mark.parametrize("work", ["gpt2", "resnet50"])
def test_peaks_are_those_of_the_raw_loop(work) -> None:
    report = peaks.measure(work, TINY, NAMES)
    assert [row[0] for row in report.rows] == [peaks.CONTENDERS[name].title for name in NAMES]
    assert len(report.goals) == 4
    assert not missed(report)
    assert all(each["first"] <= each["rest"] for each in report.samples.values())  # gradients and moments stay


def test_peaks_show_a_second_copy_of_the_weights(monkeypatch) -> None:
    ours = peaks.CONTENDERS["composer eager"]

    def train(job: Any) -> None:
        job.algorithms = [EMA("2ba")]
        ours.train(job)

    monkeypatch.setitem(peaks.CONTENDERS, "composer eager", peaks.contenders.Contender("composer", train, "composer"))
    report = peaks.measure("gpt2", TINY, ["raw eager", "composer eager"])
    # The average begins at the end of the first step.
    assert missed(report) == ["composer, eager: steps after the first, times the raw loop's peak"]


def test_a_loop_that_fails_is_told(monkeypatch) -> None:
    def train(job: Any) -> None:
        raise RuntimeError("no such loop")

    monkeypatch.setitem(peaks.CONTENDERS, "composer eager", peaks.contenders.Contender("ours", train, "composer"))
    report = peaks.measure("gpt2", TINY, ["raw eager", "composer eager"])
    assert report.failed == "ours: failed: no such loop"
    assert len(report.rows) == 1


def test_auto_finds_what_fits_and_keeps_nothing_of_what_did_not() -> None:
    report = held.measure_auto(TINY)
    assert not missed(report)
    assert report.samples["auto"]["failed"] == [4]
    assert report.samples["auto"]["size"] == 2


def test_checkpoints_take_their_bytes_once() -> None:
    assert not missed(held.measure_checkpoint(TINY))


def test_recomputed_blocks_keep_their_input() -> None:
    report = held.measure_offload(TINY)
    assert not missed(report)
    blocks = {name: one["block"] for name, one in report.samples.items()}
    assert blocks["recomputed"] < blocks["recomputed but for products"] < blocks["kept"]


def test_averages_hold_the_documented_copies() -> None:
    report = held.measure_averages(TINY)
    assert not missed(report)
    assert [(row[1], row[3]) for row in report.rows[1:3]] == [
        (pytest.approx(1, abs=0.01), pytest.approx(2, abs=0.01)),
        (pytest.approx(1, abs=0.01), pytest.approx(1, abs=0.01)),
    ]


def test_nothing_leaks() -> None:
    assert not missed(leaks.measure(TINY))


def test_leaks_are_found(monkeypatch) -> None:
    """Of losses from step to step, and of the weights of trainers."""
    kept: list[Any] = []

    class Keeps(Callback):
        def batch_end(self, state, logger):
            kept.append(torch.empty(1000))

    build = leaks.composer_trainer

    def leaky(job: Any, **arguments: Any) -> Trainer:
        kept.append(job.module)
        return build(job, callbacks=Keeps(), **arguments)

    monkeypatch.setattr(leaks, "composer_trainer", leaky)
    assert len(missed(leaks.measure(TINY))) == 4


def test_estimates_for_a_gpu_are_compared() -> None:
    report = estimates.measure(TINY)
    for each in report.samples.values():
        # Of these two only the optimizer's default implementation differs, which takes more on a GPU.
        assert -0.001 <= each["error"] < 0.1
        assert each["reserved, estimated"] >= each["estimated"]


def test_the_limit_is_found_from_any_guess() -> None:
    for expected in (10, 900, 1000, 50_000):
        found = limits.smallest_limit(lambda limit: limit >= 1000, expected)
        assert 1000 <= found <= 1010


def test_limits_need_a_gpu() -> None:
    with pytest.raises(SkipError, match="needs a GPU"):
        limits.measure(TINY)
