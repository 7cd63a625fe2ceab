"""Compare the estimated memory of ranks with what torch's profiler measures on each of several gloo processes."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.multiprocessing as mp
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

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
    Sharded("hsdp", _C("convnet", "momentum", settings=BF16), 4),
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


# A release that the profiler does not see can only raise what is counted, and not the same one each time.
_ROUNDS = 3
# Seconds until a thread of gloo has let go of the tensors of a collective that has ended.
_RELEASE = 0.005
_ENDED = "benchmarks.estimate_processes: collective ended"
_COLLECTIVES = ("_allgather_base", "_reduce_scatter_base", "allgather", "allreduce", "broadcast", "reduce", "scatter")


def _mark_ends_of_collectives() -> None:
    """Wait for each collective that Python starts and for gloo to release it, and mark its end in the profile."""
    group = torch_dist.ProcessGroup

    def ended(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            work = collective(*args, **kwargs)
            work.wait()
            time.sleep(_RELEASE)
            with torch.profiler.record_function(_ENDED):
                return work

        return call

    for name in _COLLECTIVES:
        setattr(group, name, ended(getattr(group, name)))


def _walk(event: Any, *, in_collective: bool = False) -> Iterator[tuple[int, int, int, bool]]:
    """Yield time, bytes, address and whether it is within a collective of each allocation; bytes 0 for a mark."""
    fields, name = event.extra_fields, event.name
    if hasattr(fields, "alloc_size"):
        yield event.start_time_ns, fields.alloc_size, fields.ptr, in_collective
    elif name == _ENDED or name == "_c10d_functional::wait_tensor":
        yield event.end_time_ns, 0, 0, False
    for child in event.children:
        yield from _walk(child, in_collective=in_collective or name.startswith("c10d::"))


def peak_of(profile: torch.profiler.profile) -> int:
    """Return the peak of a profile in bytes.

    gloo frees what it allocates for a collective, such as a copy of the input of a reduce-scatter, in a thread of its
    own, which the profiler does not see: it ends with the collective here.

    Args:
        profile: The profile of a rank, which has ended.
    """
    assert profile.profiler is not None
    events = [each for root in profile.profiler.kineto_results.experimental_event_tree() for each in _walk(root)]
    live: dict[int, tuple[int, bool]] = {}
    now = peak = 0
    for _, size, address, in_collective in sorted(events, key=lambda event: event[0]):
        if size > 0:
            now += size - live.pop(address, (0, False))[0]  # the address is free, if unseen
            live[address] = size, in_collective
            peak = max(peak, now)
        else:
            ended = [address] if size else [each for each, (_, inner) in live.items() if inner]
            now -= sum(live.pop(each, (0, False))[0] for each in ended)
    return peak


def _rank(rank: int, sharded: Sharded, folder: str) -> None:
    """Write the peak that a rank measures, in bytes."""
    size = sharded.processes
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    torch_dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=600)
    )
    _mark_ends_of_collectives()
    arguments = _arguments(sharded)
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile:
            trainer = Trainer(**arguments())
            trainer.fit()
            trainer.close()
    Path(folder, f"{rank}").write_text(str(peak_of(profile)))
    torch_dist.barrier()
    torch_dist.destroy_process_group()


def _alone(_: int, sharded: Sharded, folder: str) -> None:
    """Write the estimate, in a process that then ends with its simulated ranks."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = estimated(_arguments(sharded), processes=sharded.processes)
    Path(folder, "estimate").write_text(json.dumps(estimate))


def compare(sharded: Sharded) -> tuple[int, dict[str, Any]]:
    """Return the greatest peak of all ranks in bytes, and the estimate.

    Args:
        sharded: What is trained.
    """
    peaks: list[list[int]] = []
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, (sharded, folder), nprocs=sharded.processes)  # pyright: ignore[reportPrivateImportUsage]
            peaks.append([int(Path(folder, f"{rank}").read_text()) for rank in range(sharded.processes)])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_alone, (sharded, folder), nprocs=1)  # pyright: ignore[reportPrivateImportUsage]
        estimate = json.loads(Path(folder, "estimate").read_text())
    return max(map(min, zip(*peaks, strict=True))), estimate


def measure(configurations: Iterable[Sharded] = CONFIGURATIONS, *, verbose: bool = False) -> Report:
    """Compare all configurations.

    Args:
        configurations: Which.
        verbose: Whether to print each when it is done.
    """
    compared: dict[str, tuple[int, dict[str, Any]]] = {}
    for each in configurations:
        compared[each.label] = compare(each)
        if verbose:
            print(line(each.label, *compared[each.label]), flush=True)
    notes = [
        "Measured: the memory events of torch's profiler on each rank, from the building of the model to the end "
        f"of {BATCHES} batches, on one thread, with gloo; the least of {_ROUNDS} runs of each rank, since the "
        "profiler misses some releases by gloo's threads, and the greatest of all ranks.",
        "Estimated: in one process, for which the others are simulated.",
    ]
    title = "Estimated and measured peak memory of a rank, with 2 and 4 processes on the CPU"
    return report(compared, notes, name="estimate_processes", title=title, below=10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="configurations whose label holds this text")
    options = parser.parse_args()
    result = measure([each for each in CONFIGURATIONS if options.only in each.label], verbose=True)
    print(result.text())
    if not options.only:
        result.write()


if __name__ == "__main__":
    main()
