"""Several processes: strategies, nodes, the table over numbers of processes, and sharding as a remedy."""

from __future__ import annotations

from typing import Any

import pytest

import composer
from composer.estimation import Device, Memory, estimate_grid
from composer.estimation.grid import Column
from tests.estimation import programs

LARGE = Device("large", 2**30)

pytestmark = pytest.mark.usefixtures("one_server")


def memory_of(processes: int, strategy: str | None, program: Any = programs.plain, **arguments: Any) -> Memory:
    report = composer.estimate(
        program, device=LARGE, processes=processes, strategy=strategy, remedies=False, progress=False, **arguments
    )
    return report.memory


def test_strategies() -> None:
    alone = memory_of(1, None)
    ddp, fsdp = memory_of(8, "ddp"), memory_of(8, "fsdp")
    assert ddp.roles["parameters"] == alone.roles["parameters"]
    assert 0 < fsdp.roles["parameters"] <= ddp.roles["parameters"] / 7
    assert fsdp.roles["communication"] > ddp.roles.get("communication", 0)
    sharded = memory_of(8, "tp", programs.tensor_parallel)
    assert fsdp.roles["parameters"] < sharded.roles["parameters"] < 0.5 * alone.roles["parameters"]
    # What a rank computes does not depend on the number of ranks, unless they share the work of a layer.
    assert flops(ddp) == flops(fsdp) == flops(alone) > 2 * flops(sharded)


def flops(memory: Memory) -> int:
    return sum(each * count for _, each, _, count in memory.costs)


def test_hybrid_sharding_is_over_a_node() -> None:
    eight, four = memory_of(16, "hsdp"), memory_of(16, "hsdp", local_processes=4)
    assert 1.7 < four.roles["parameters"] / eight.roles["parameters"] < 2.1
    for processes, local in ((8, None), (6, 4), (12, None)):
        with pytest.raises(ValueError, match="must be a multiple of"):
            memory_of(processes, "hsdp", local_processes=local)


def test_grid_over_processes() -> None:
    grid = estimate_grid(
        programs.plain, devices=[LARGE], processes=[1, 8, 64], strategy="hsdp", microbatch=8, progress=False
    )
    columns = [Column(1), Column(8, "fsdp"), Column(64, "hsdp")]
    peaks = [grid.memory[column] for column in columns]
    parameters = [each.roles["parameters"] for each in peaks if isinstance(each, Memory)]
    assert len(parameters) == 3
    assert parameters[0] > 7 * parameters[1] and parameters[1] == parameters[2]
    assert set(grid.largest.values()) == {programs.BATCH}


def test_grid_over_strategies() -> None:
    grid = estimate_grid(
        programs.plain, devices=[LARGE], processes=[1, 8], strategy=["ddp", "fsdp"], microbatch=8, progress=False
    )
    one, ddp, fsdp = grid.columns
    assert (str(one), str(ddp), str(fsdp)) == ("1", "8 ddp", "8 fsdp")
    peaks = [each.peak for each in grid.memory.values() if isinstance(each, Memory)]
    assert len(peaks) == 3 and min(peaks) == peaks[2]
    assert str(grid).splitlines()[0].split() == ["processes", "1", "8", "ddp", "8", "fsdp"]
    assert [cell["strategy"] for cell in grid.to_json()["cells"]] == ["", "ddp", "fsdp"]


def test_tensor_parallelism_needs_a_plan() -> None:
    with pytest.raises(RuntimeError, match=r"strategy 'tp' needs a plan of the layers to shard.*layer_plan"):
        memory_of(4, "tp")


def test_sharding_is_a_remedy() -> None:
    needed = memory_of(8, "ddp", microbatch=1).needed
    limit = Device("small", needed)
    report = composer.estimate(programs.plain, device=limit, processes=8, strategy="ddp", microbatch=1, progress=False)
    (sharding,) = [remedy for remedy in report.remedies if remedy.kind == "sharding"]
    assert not report.ok and sharding.fits and sharding.keeps_results
    assert sharding.line == "parallelism_config={'fsdp': {}}"
    assert "8 processes with ddp, amp_bf16, AdamW, batches of 32 for each process in microbatches of 1" in str(report)
