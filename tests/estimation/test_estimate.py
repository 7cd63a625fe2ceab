"""``composer.estimate`` of small programs: composition, the largest microbatch, and what makes them fit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re

import pytest

import composer
from composer import Trainer
from composer.estimation import Device, Report, estimate_grid
from composer.estimation.grid import Column, Grid
from composer.estimation.memory import Memory, size_text
from tests.estimation import programs
from tests.estimation.programs import BATCH

LARGE = Device("large", 2**30)

pytestmark = pytest.mark.usefixtures("one_server")


def bytes_of_parameters() -> int:
    return sum(4 * parameter.numel() for parameter in programs.plain().state.model.parameters())


def test_composition_of_a_program_that_fits() -> None:
    report = composer.estimate(programs.with_methods, device=LARGE, precision="fp32", progress=False)
    memory, parameters = report.memory, bytes_of_parameters()
    assert report.ok
    assert report.margin == LARGE.available - memory.needed
    assert report.largest_microbatch == BATCH
    assert sum(memory.roles.values()) == memory.peak
    assert memory.roles["parameters"] == parameters
    # Two moments, and the number of steps of each parameter.
    assert 2 * parameters <= memory.roles["optimizer state"] < 2 * parameters + 1000
    # The average, and what SAM restores; each by the name of who keeps it.
    assert memory.algorithms["EMA"] == memory.algorithms["SAMOptimizer"] == parameters
    assert sum(memory.activations.values()) == memory.roles["activations"]
    assert sum(size for _, size in report.activations) == memory.roles["activations"]
    assert report.activations[0][0] == "module.0-5 itself"
    assert memory.stage == "backward" and memory.module.startswith("module.")
    told = json.loads(json.dumps(report.to_json()))
    assert (told["fits"], told["outcome"], told["safety_margin"]) == (True, "fits", 0.15)
    assert told["composition"] == memory.composition(0) and told["largest_microbatch"] == BATCH


def test_text_is_aligned() -> None:
    report = composer.estimate(programs.plain, device=LARGE, precision="fp32", modules=3, progress=False)
    head, where, run, _, *rest = str(report).splitlines()
    assert re.fullmatch(r"fits: the peak is [\d.]+ MiB, [\d.]+ % of 1\.00 GiB \(large\); [\d.,]+ MiB remain", head)
    assert where.startswith("reached in the backward pass of module.")
    assert run == f"1 process, fp32, AdamW, batches of {BATCH}"
    table = rest[: rest.index("")]
    assert len({len(line) for line in table}) == 1
    assert [line.split("  ")[0] for line in table if not line.startswith(" ")] == [
        *("parameters", "gradients", "optimizer state", "batch", "activations", "temporary", "metrics"),
        *("other", "allocator overhead"),
    ]
    assert sum(line.startswith(" ") for line in table) <= 3
    shares = [float(line.split()[-2]) for line in table if not line.startswith(" ")]
    assert sum(shares) == pytest.approx(100, abs=0.4)
    assert rest[-4].startswith(f"largest microbatch that surely fits: {BATCH} of {BATCH} (the full batch)")
    assert re.fullmatch(r"a step computes [\d.]+ GFLOP and moves [\d.]+ GB", rest[-3])


@pytest.fixture(scope="module")
def too_large(server) -> Report:
    """The estimate for a device that lacks a quarter of the memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("composer.trials.workspace.ForkServer", lambda *_: contextlib.nullcontext(server))
        peak = composer.estimate(programs.plain, device=LARGE, precision="fp32", remedies=False, progress=False)
        limit = Device("small", round(0.75 * peak.memory.needed))
        return composer.estimate(programs.plain, device=limit, precision="fp32", progress=False)


def test_what_fits_only_if_the_estimate_is_better_than_those_that_were_measured() -> None:
    """On a GPU they were up to 13 % too low; on the CPU, there is no such case."""
    needed = composer.estimate(
        programs.plain, device=LARGE, precision="fp32", remedies=False, progress=False
    ).memory.needed
    device = Device("tight", round(needed / 0.9))
    report = composer.estimate(programs.plain, device=device, precision="fp32", progress=False)
    told, lines = report.to_json(), str(report).splitlines()
    assert report.outcome == told["outcome"] == "may not fit"
    assert not report.ok and not told["fits"] and told["margin"] < 0
    assert lines[0].startswith("may not fit: the peak is ") and lines[0].endswith(" remain")
    assert lines[1].startswith("estimates for a GPU were up to 13 % too low") and "(15 %)" in lines[1]
    found = {remedy.kind: remedy for remedy in report.remedies}
    assert found["microbatch"].outcome == "fits"
    assert "largest microbatch that surely fits: " in str(report)
    assert "each of these changes makes it surely fit, the one that costs least time first:" in lines
    grid = estimate_grid(programs.plain, devices=[device], processes=[1], precision="fp32", progress=False)
    (cell,) = grid.to_json()["cells"]
    assert (cell["fits"], cell["outcome"], cell["safety_margin"]) == (False, "may not fit", 0.15)
    assert cell["largest_microbatch"] == report.largest_microbatch
    assert grid.ok and not grid.unsure
    one = dataclasses.replace(device, is_accelerator=False)
    assert one.outcome(needed) == "fits" and one.outcome(round(0.99 * one.memory)) == "does not fit"


def test_remedies_and_cells_that_may_not_fit() -> None:
    """A device on which one sample leaves less free than the error of estimates."""
    least = composer.estimate(
        programs.plain, device=LARGE, precision="fp32", microbatch=1, remedies=False, progress=False
    ).memory.needed
    device = Device("tight", round(least / 0.95))
    report = composer.estimate(programs.plain, device=device, precision="fp32", progress=False)
    unsure = [remedy.kind for remedy in report.remedies if remedy.outcome == "may not fit"]
    assert report.outcome == "does not fit" and report.largest is None
    lines = str(report).splitlines()
    assert ("with these changes alone it may fit:" in lines) == bool(unsure)
    assert report.together is None or report.together.to_json()["outcome"] == report.together.outcome
    grid = estimate_grid(programs.plain, devices=[device, LARGE], processes=[1], precision="fp32", progress=False)
    assert grid.unsure == {("tight", Column(1))}
    assert [line.split()[-1] for line in str(grid).splitlines()[2:4]] == ["?", str(BATCH)]
    assert "15 % of accelerators is left for errors; ? if some may fit with less" in str(grid)


def test_largest_microbatch(too_large) -> None:
    size = too_large.largest_microbatch
    assert not too_large.ok and too_large.margin < 0
    assert too_large.largest[1].facts["microbatch"] == size
    assert too_large.largest[1].needed <= too_large.device.available
    more = composer.estimate(
        programs.plain, device=LARGE, precision="fp32", microbatch=size + 1, remedies=False, progress=False
    )
    assert more.memory.needed > too_large.device.available


def test_remedies(too_large) -> None:
    found = {remedy.kind: remedy for remedy in too_large.remedies}
    assert [remedy.kind for remedy in too_large.remedies if remedy.fits][:2] == ["microbatch", "checkpointing"]
    for remedy in too_large.remedies:
        assert not remedy.error
        assert remedy.memory.needed < too_large.memory.needed
        assert remedy.fits == (remedy.memory.needed <= too_large.device.available)
    assert found["microbatch"].line == f"device_train_microbatch_size={too_large.largest_microbatch}"
    assert "'activation_checkpointing'" in found["checkpointing"].line
    assert not found["precision"].keeps_results
    assert "'activation_cpu_offload': True" in found["offloading"].line
    text = str(too_large)
    assert text.startswith("does not fit: the peak is ")
    assert "each of these changes makes it surely fit, the one that costs least time first:" in text
    assert too_large.together is None


def test_evaluation_needs_the_most() -> None:
    report = composer.estimate(programs.evaluated, device=LARGE, precision="fp32", remedies=False, progress=False)
    assert report.memory.stage == "evaluation"
    limit = Device("small", report.memory.needed)
    tight = composer.estimate(programs.evaluated, device=limit, precision="fp32", progress=False)
    assert not tight.ok
    assert tight.remedies[0].line == "Evaluator(..., device_eval_microbatch_size=2)"
    assert tight.remedies[0].fits
    assert tight.largest_microbatch is not None and tight.largest_microbatch > 2


def test_nothing_makes_it_fit() -> None:
    report = composer.estimate(programs.plain, device=Device("small", 100_000), precision="fp32", progress=False)
    assert report.largest_microbatch is None
    assert not any(remedy.fits for remedy in report.remedies)
    assert report.together is not None and not report.together.fits
    text = str(report)
    assert "largest microbatch that surely fits: none, not even one sample" in text
    assert "no single change makes it surely fit" in text
    assert "device_train_microbatch_size=1, parallelism_config={'fsdp': {'activation_checkpointing': True}}" in text


def test_changes_are_applied() -> None:
    report = composer.estimate(
        programs.plain,
        device=LARGE,
        changes=["algorithms+=EMA()", "train_dataloader.batch_size=8"],
        remedies=False,
        progress=False,
    )
    facts = report.memory.facts
    assert (facts["algorithms"], facts["batch_size"], facts["precision"]) == (["EMA"], 8, "amp_bf16")


def test_grid() -> None:
    grid = estimate_grid(
        programs.plain,
        devices=[Device("tiny", 1000), Device("small", 200_000_000), Device("large", 2**30)],
        processes=[1],
        precision="fp32",
        progress=False,
    )
    one = Column(1)
    assert grid.ok
    assert grid.largest["tiny", one] == 0 < grid.largest["small", one] < grid.largest["large", one] == BATCH
    lines = str(grid).splitlines()
    assert lines[0].split() == ["processes", "1"]
    assert [line.split()[-1] for line in lines[2:5]] == ["-", str(grid.largest["small", one]), str(BATCH)]
    cells = json.loads(json.dumps(grid.to_json()))["cells"]
    assert [cell["fits"] for cell in cells] == [False, False, True]


def test_numbers_agree() -> None:
    device = Device("large", 2**30, context=2**28, workspace=2**20)
    report = composer.estimate(programs.plain, device=device, microbatch=8, progress=False)
    told = report.to_json()
    assert f"the peak is {size_text(told['peak'])}, " in str(report)
    assert sum(told["composition"].values()) == told["peak"] == report.memory.needed + device.overhead
    assert told["margin"] == device.available - report.memory.needed
    grid = estimate_grid(programs.plain, devices=[device], processes=[1], microbatch=8, progress=False)
    (cell,) = grid.to_json()["cells"]
    assert cell["peak"] == told["peak"]
    lines = str(grid).splitlines()
    assert lines[1].split() == ["tensors", *size_text(report.memory.needed).split()]
    assert f"tensors: the peak without context and libraries ({size_text(device.overhead)})" in lines


def test_grid_tells_the_batches_of_each_number_of_processes() -> None:
    sizes = {Column(64, "fsdp"): 64, Column(64, "ddp"): 64, Column(1): 1024}
    memory = {column: Memory(2**20, facts={"batch_size": size}) for column, size in sizes.items()}
    grid = Grid([Device("cpu", 2**30)], list(memory), memory, {})
    lines = str(grid).splitlines()
    assert "batches of each process: 1024 (processes: 1), 64 (processes: 64)" in lines
    assert lines[1].startswith("peak ") and max(map(len, lines)) <= 80


def two_batches(second: int) -> Trainer:
    """Epochs of a full batch and another one."""
    data = programs.samples(BATCH + second)
    return programs.trainer(train_dataloader=data, max_duration="3ep")


def test_short_second_batch() -> None:
    found = [
        composer.estimate(functools.partial(two_batches, second), device=LARGE, remedies=False, progress=False).memory
        for second in (4, BATCH)
    ]
    assert found[0].peak == pytest.approx(found[1].peak, rel=0.01)
    assert found[0].facts["batch_size"] == BATCH


def test_program_that_does_not_train() -> None:
    with pytest.raises(RuntimeError, match="The program does not train: ZeroDivisionError: no trainer"):
        composer.estimate(programs.failing, device=LARGE, progress=False)
    with pytest.raises(RuntimeError, match="The program does not train: ZeroDivisionError: no trainer"):
        estimate_grid(programs.failing, devices=[LARGE], processes=[1], progress=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "H1000-80GB"}, "Did you mean 'H100-80GB'?"),
        ({"processes": 0}, "processes must be greater than 0"),
        ({"strategy": "fsdp"}, "strategy 'fsdp' needs several processes"),
        ({"strategy": "single", "processes": 2}, "strategy 'single' is for one process"),
        ({"strategy": "hsdp", "processes": 12}, "a multiple of 8 above it; got 12"),
        ({"strategy": "fdsp", "processes": 8}, "Did you mean 'fsdp'?"),
        ({"microbatch": 0}, "microbatch must be greater than 0"),
        ({"precision": "amp_bf61"}, "Did you mean 'amp_bf16'?"),
        ({"changes": ["optimizer.lr=1"]}, "Did you mean 'optimizers'?"),
        ({"modules": 0}, "modules must be greater than 0"),
        ({"fit": 0}, "fit must be at least 1"),
    ],
)
def test_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        composer.estimate(["train.py"], **{"device": LARGE, **arguments})
