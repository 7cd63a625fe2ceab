"""The most memory that a training needs, of every loop against the hand-written one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks import environment
from benchmarks.allocations import Allocations
from benchmarks.contenders import Batches
from benchmarks.environment import Worker
from benchmarks.gpu import contenders
from benchmarks.gpu.contenders import CONTENDERS, Job
from benchmarks.gpu.options import Options
from benchmarks.gpu.training import prepare
from benchmarks.gpu.workloads import Workload, workload
from benchmarks.report import Goal, Report

MIB = 1 << 20
LIMIT = 1.01  # of the raw loop's
FIRST, REST = "first step", "step"
_STEPS = 6
_AT_ONCE = 3  # processes that share the device; what one of them allocates, another does not see
_MOST_SECONDS = 140.0
# On the CPU what resuming needs lies beside the model: two states of the random generator, and some numbers.
_HOST_STATE = 2 * 5056 + 192
_COMPARED = [("eager", "raw eager", "composer eager"), ("compiled", "raw compiled", "composer compiled")]


def marked(work: Workload, allocations: Allocations) -> Workload:
    """Return a workload of which each step of an optimizer ends a stretch; the first has a name of its own.

    Args:
        work: The workload.
        allocations: What is marked.
    """

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        made, seen = work.optimizer(module), [FIRST]

        def mark(*_: Any) -> None:
            allocations.mark(seen.pop() if seen else REST)

        made.register_step_post_hook(mark)
        return made

    return replace(work, optimizer=optimizer)


def job_of(
    work: Workload, device: str, steps: int, backend: str = "", number: int = 2, algorithms: tuple[Any, ...] = ()
) -> Job:
    """Return what is to be trained, with batches on the host, in pinned memory if they go to a GPU.

    Args:
        work: The workload.
        device: "cuda" or "cpu".
        steps: Number of steps.
        backend: That of ``torch.compile``; "" for eager mode.
        number: Number of batches that there are.
        algorithms: Methods of composer's.
    """
    found = work.batches(number)
    if device == "cuda":
        found = [pinned(batch) for batch in found]
    data = Batches(found, steps, 0, lambda: None, tail=0)
    module = work.module().to(device)
    return Job(work, module, DataLoader(data, batch_size=None), device, backend, algorithms)


def pinned(batch: Any) -> Any:
    """Return a batch in pinned memory.

    Args:
        batch: A dict or sequence of tensors.
    """
    if isinstance(batch, dict):
        return {name: tensor.pin_memory() for name, tensor in batch.items()}
    return tuple(tensor.pin_memory() for tensor in batch)


def train(name: str, work: str, tiny: bool, device: str, backend: str) -> dict[str, int]:
    """Train as a contender does; return peaks in bytes: of the first step, of the others, and what was reserved.

    Args:
        name: The contender.
        work: Name of the workload.
        tiny: Whether that is tiny.
        device: "cuda" or "cpu".
        backend: That of ``torch.compile``, for contenders that compile.
    """
    prepare(device)
    torch.backends.cudnn.benchmark = False  # which would choose by time, and so need other memory in each process
    contender = CONTENDERS[name]
    gc.collect()
    with Allocations(device) as allocations:
        task = marked(workload(work, tiny), allocations)
        contender.train(job_of(task, device, _STEPS, backend if contender.compiled else ""))
    if len(allocations.all(REST)) != _STEPS - 1:
        raise RuntimeError(f"{name} took {1 + len(allocations.all(REST))} steps instead of {_STEPS}.")
    return {
        "first": allocations[FIRST].peak,
        "rest": allocations[REST].peak,
        "reserved": max(allocations[FIRST].reserved, allocations[REST].reserved),
    }


def measure(work: str, options: Options, names: list[str] | None = None) -> Report:
    """Train a workload in all ways, each in a process of its own.

    Args:
        work: "gpt2" or "resnet50".
        options: Device, size and time.
        names: Which contenders; by default all that are installed.
    """
    here, missing = contenders.present(work)
    latest = time.monotonic() + min(options.seconds / 2, _MOST_SECONDS)
    arguments = {
        "work": work,
        "tiny": options.tiny,
        "device": options.device,
        "backend": "eager" if options.tiny else "inductor",
    }
    found: dict[str, dict[str, int]] = {}
    left_out: dict[str, str] = {}

    def ask(name: str, call: Callable[..., Any]) -> None:
        if time.monotonic() > latest:
            left_out[name] = "left out: no time to start it"
            return
        try:
            found[name] = call(name=name, **arguments)
        except RuntimeError as error:
            left_out[name] = f"failed: {str(error).strip()[-1500:]}"

    target = "benchmarks.gpu.peaks:train"
    if options.tiny:
        with Worker() as worker:
            for name in names or here:
                ask(name, lambda **given: worker.call(target, **given))
    else:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: ask(name, lambda **given: environment.call(target, given)), names or here))
    found = {name: found[name] for name in names or here if name in found}
    return _report(work, options, found, left_out, missing)


def _report(
    work: str, options: Options, found: dict[str, dict[str, int]], left_out: dict[str, str], missing: list[str]
) -> Report:
    def over(name: str, what: str) -> float:
        base = found.get("raw compiled" if CONTENDERS[name].compiled else "raw eager")
        return found[name][what] / base[what] if base else float("nan")

    rows: list[list[Any]] = []
    for name, each in found.items():
        row: list[Any] = [CONTENDERS[name].title]
        for what in ("rest", "first"):
            row += [each[what] / MIB, f"{over(name, what):.4f}"]
        rows.append([*row, each["reserved"] / MIB])
    apart = _HOST_STATE if options.device == "cpu" else 0
    goals = [
        Goal(
            f"composer, {mode}: {what}, times the raw loop's peak", (found[ours][key] - apart) / found[raw][key], LIMIT
        )
        for mode, raw, ours in _COMPARED
        if raw in found and ours in found
        for what, key in (("steps after the first", "rest"), ("first step", "first"))
    ]
    notes = [
        f"{workload(work, options.tiny).title}, bfloat16 autocast with weights in float32, device {options.device}, "
        f"{_STEPS} steps, each loop in a process of its own. Weights, gradients, state of the optimizer and batches "
        "included; batches come from pinned host memory.",
        "first step: up to the end of the optimizer's first step, which makes its state; in compiled mode compilation "
        "included. cudnn.benchmark is off, since it chooses kernels, and so workspaces, by time.",
        "peak: bytes that torch's allocator gave out at once; reserved: the most that it held from the device.",
        *([f"Goals leave {apart} bytes out, which lie on the host: states of the random generator."] if apart else []),
        *(f"{CONTENDERS[name].title}: {why}" for name, why in left_out.items()),
        *([f"Not installed, and so not compared: {', '.join(missing)}."] if missing else []),
    ]
    needed = [name for _, *names in _COMPARED for name in names]
    failed = [f"{CONTENDERS[name].title}: {why}" for name, why in left_out.items() if name in needed]
    columns = ["MiB", "peak", "times raw", "first step", "times raw", "reserved"]
    title = f"Peak memory of training {'GPT-2' if work == 'gpt2' else 'ResNet-50'}"
    machine = environment.describe(options.device)
    return Report(f"peak_{work}", title, columns, rows, goals, notes, found, machine, "\n".join(failed))
