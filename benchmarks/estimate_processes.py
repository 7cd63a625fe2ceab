"""Compare the estimated memory of ranks with what torch allocates on all threads of 2 and 4 gloo processes."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.multiprocessing as mp
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from benchmarks import estimate_memory
from benchmarks.estimate_memory import (
    BATCHES,
    BF16,
    Configuration,
    Samples,
    arguments_of,
    estimated,
    line,
    report,
)
from benchmarks.estimate_models import MODELS
from benchmarks.report import Report
from benchmarks.torch_allocations import TorchAllocations, can_preload, preloaded
from composer import Trainer, dist

MICRO = {"device_train_microbatch_size": 4}


def _fsdp(**settings: Any) -> dict[str, Any]:
    return {"parallelism_config": {"fsdp": settings}}


@dataclass(frozen=True)
class Sharded:
    """A training on several ranks whose memory is compared.

    Attributes:
        strategy: "ddp", "fsdp", "hsdp" or "tp".
        configuration: What each rank trains.
        processes: Number of ranks.
    """

    strategy: str
    configuration: Configuration
    processes: int = 2

    @property
    def label(self) -> str:
        return f"{self.strategy} {self.processes}: {self.configuration.label}"

    def trained(self) -> Configuration:
        """Return the configuration with the arguments of the strategy."""
        given = dict(self.configuration.settings)
        if self.strategy == "fsdp":
            given.setdefault("parallelism_config", {"fsdp": {}})
        elif self.strategy == "hsdp":
            degrees = {"data_parallel_shard_degree": 2, "data_parallel_replicate_degree": self.processes // 2}
            given["parallelism_config"] = {"fsdp": degrees}
        elif self.strategy == "tp":
            plan = _plan(self.configuration.model)
            given["parallelism_config"] = {"tp": {"layer_plan": plan, "tensor_parallel_degree": self.processes}}
        return replace(self.configuration, settings=given)


def _plan(model: str) -> dict[str, Any]:
    if model == "mlp":
        return {"module.0": ColwiseParallel(), "module.2": RowwiseParallel()}
    feed_forward = "module.blocks.{}.feed_forward.{}"
    plan: dict[str, Any] = {feed_forward.format(i, 0): ColwiseParallel() for i in range(4)}
    return plan | {feed_forward.format(i, 2): RowwiseParallel() for i in range(4)}


_C = Configuration
CONFIGURATIONS = (
    Sharded("ddp", _C("mlp", "sgd")),
    Sharded("ddp", _C("mlp", "adamw"), 4),
    Sharded("ddp", _C("mlp", "muon", settings=BF16)),
    Sharded("ddp", _C("convnet", "momentum", ("EMA(half_life='2ba')",))),
    Sharded("ddp", _C("convnet", "sgd", settings=BF16 | MICRO)),
    Sharded("ddp", _C("gpt", "adamw", batch=8)),
    Sharded("ddp", _C("gpt-tied", "adamw", batch=8, settings=MICRO)),
    Sharded("ddp", _C("gpt-recompute", "decoupled-adamw", batch=8, settings=BF16)),
    Sharded("fsdp", _C("mlp", "sgd")),
    Sharded("fsdp", _C("mlp", "adamw", settings=BF16), 4),
    Sharded("fsdp", _C("mlp", "lion", batch=16)),
    Sharded("fsdp", _C("convnet", "momentum")),
    Sharded("fsdp", _C("resnet", "sgd", batch=16, settings=BF16)),
    Sharded("fsdp", _C("gpt", "adamw", batch=8)),
    Sharded("fsdp", _C("gpt", "adamw-foreach", batch=8, settings=BF16 | MICRO)),
    Sharded("fsdp", _C("gpt", "lion", ("GradientClipping('norm', 1.0)",), batch=8)),
    Sharded("fsdp", _C("gpt", "adamw", batch=8, settings=_fsdp(activation_checkpointing=True))),
    Sharded("fsdp", _C("gpt", "adamw", batch=8, settings=BF16 | _fsdp(sharding_strategy="SHARD_GRAD_OP"))),
    Sharded("fsdp", _C("gpt-tied", "adamw", batch=8)),
    Sharded("fsdp", _C("llama-recompute", "decoupled-adamw", ("EMA(half_life='2ba')",), batch=8), 4),
    Sharded("hsdp", _C("mlp", "adamw"), 4),
    Sharded("hsdp", _C("gpt", "adamw", batch=8, settings=MICRO), 4),
    Sharded("tp", _C("mlp", "sgd", batch=64)),
    Sharded("tp", _C("mlp", "adamw", settings=BF16)),
    Sharded("tp", _C("gpt", "adamw", batch=8)),
    Sharded("tp", _C("gpt", "adamw", batch=8, settings=BF16 | MICRO)),
    Sharded("tp", _C("gpt-recompute", "lion", batch=8), 4),
)


def _arguments(sharded: Sharded) -> Callable[[], dict[str, Any]]:
    configuration = sharded.trained()
    torch.manual_seed(0)
    shards = 1 if sharded.strategy == "tp" else sharded.processes
    data = Samples(MODELS[configuration.model].sample, BATCHES * shards * configuration.batch)

    def arguments() -> dict[str, Any]:
        return arguments_of(configuration, data, None, None if shards == 1 else dist.get_sampler(data))

    return arguments


# Differences of peaks in per cent that are worth a note.
_NOTED = 0.5


def _rank(rank: int, sharded: Sharded, folder: str) -> None:
    """Write the peaks in bytes that a rank measures: of the paced run, and of one without pauses."""
    size = sharded.processes
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    torch_dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=600)
    )
    arguments = _arguments(sharded)
    peaks: list[int] = []
    for paced in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch_dist.barrier()
            with TorchAllocations(paced=paced) as allocations:
                trainer = Trainer(**arguments())
                trainer.fit()
                trainer.close()
                del trainer
        peaks.append(allocations.peak)
    Path(folder, f"{rank}").write_text(json.dumps(peaks))
    torch_dist.barrier()
    torch_dist.destroy_process_group()


def _alone(_: int, sharded: Sharded, folder: str) -> None:
    """Write the estimate, in a process that then ends with its simulated ranks."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = estimated(_arguments(sharded), processes=sharded.processes)
    Path(folder, "estimate").write_text(json.dumps(estimate))


@dataclass(frozen=True)
class Peaks:
    """The greatest peak of all ranks, in bytes.

    Attributes:
        paced: Of the run that waits after each collective until gloo has released its tensors.
        free: Of a run without pauses, in which gloo may release its tensors later.
    """

    paced: int
    free: int


def _start(function: Callable[..., None], sharded: Sharded, folder: str, processes: int) -> None:
    """Run a function in processes that are forked from one which has imported torch."""
    multiprocessing.set_forkserver_preload([estimate_memory.__name__])
    mp.start_processes(  # pyright: ignore[reportPrivateImportUsage]
        function, (sharded, folder), nprocs=processes, start_method="forkserver"
    )


def compare(sharded: Sharded) -> tuple[Peaks, dict[str, Any]]:
    """Return the measured peaks, and the estimate.

    Args:
        sharded: What is trained.
    """
    with tempfile.TemporaryDirectory() as folder:
        _start(_rank, sharded, folder, sharded.processes)
        ranks = [json.loads(Path(folder, f"{rank}").read_text()) for rank in range(sharded.processes)]
        _start(_alone, sharded, folder, 1)
        estimate = json.loads(Path(folder, "estimate").read_text())
    return Peaks(*map(max, zip(*ranks, strict=True))), estimate


def measure(configurations: Iterable[Sharded] = CONFIGURATIONS, *, verbose: bool = False) -> Report:
    """Compare all configurations.

    Args:
        configurations: Which.
        verbose: Whether to print each when it is done.

    Raises:
        RuntimeError: The library that counts cannot be compiled.
    """
    peaks: dict[str, Peaks] = {}
    compared: dict[str, tuple[int, dict[str, Any]]] = {}
    with preloaded():  # into the server from which all processes are forked
        for each in configurations:
            peaks[each.label], estimate = compare(each)
            compared[each.label] = peaks[each.label].paced, estimate
            if verbose:
                print(line(each.label, *compared[each.label]), peaks[each.label], flush=True)
    notes = [
        "Measured: the bytes that torch's allocator gives out on all threads of a rank, counted by a preloaded "
        f"library, from the building of the model to the end of {BATCHES} batches, on one thread, with gloo; the "
        "greatest of all ranks. Each collective is followed by a pause in which gloo's thread releases its tensors.",
        _without_pauses(peaks),
        "Not counted: what gloo allocates without torch, such as the buffers of its sockets.",
        "Estimated: in one process, for which the others are simulated.",
    ]
    title = "Estimated and measured peak memory of a rank, with 2 and 4 processes on the CPU"
    return report(compared, notes, name="estimate_processes", title=title, below=0.5)


def _without_pauses(peaks: Mapping[str, Peaks]) -> str:
    """Return by how much the peaks of runs without pauses are larger."""
    larger = {label: 100 * (each.free / each.paced - 1) for label, each in peaks.items()}
    above = sum(percent > _NOTED for percent in larger.values())
    most = max(larger, key=lambda label: larger[label])
    return (
        f"Without pauses, the peak of {above} of {len(peaks)} configurations was more than {_NOTED} % larger in "
        f"one further run, by at most {larger[most]:.1f} % ({most}): gloo released a copy late."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="configurations whose label holds this text")
    options = parser.parse_args()
    if not can_preload():
        print("Skipped: what torch allocates on all threads is counted by a library that needs Linux and g++.")
        return
    result = measure([each for each in CONFIGURATIONS if options.only in each.label], verbose=True)
    print(result.text())
    if not options.only:
        result.write()


if __name__ == "__main__":
    main()
