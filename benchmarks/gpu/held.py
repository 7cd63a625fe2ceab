"""What a training holds besides: for checkpoints, averages, the backward pass, and after it ran out of memory."""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks import environment
from benchmarks.allocations import Allocations
from benchmarks.gpu import gpt2
from benchmarks.gpu.contenders import Job, composer_trainer
from benchmarks.gpu.options import Options
from benchmarks.gpu.peaks import FIRST, MIB, REST, job_of, marked
from benchmarks.gpu.training import prepare
from benchmarks.gpu.workloads import Workload, gpt2_workload, workload
from benchmarks.report import Goal, Report
from composer import Callback

_SLACK = 64 << 10  # bytes: scalars, each of which takes a block of 512, and on the CPU states of random generators
_RANDOM_STATES = 2 * 5056  # bytes of the states of the CPU's random generator that come and go
_STEPS = 5


class Marks(Callback):
    """Ends stretches at events.

    Args:
        allocations: What is marked.
        events: Names of events; a stretch has the name of the event at its end.
    """

    def __init__(self, allocations: Allocations, *events: str) -> None:
        self._allocations, self._events = allocations, events

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        if event.value in self._events:
            self._allocations.mark(event.value)


def _nbytes(tensors: Any) -> int:
    """The bytes of tensors, each counted once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor)}.values())


def _prepare(options: Options) -> Workload:
    prepare(options.device)
    torch.backends.cudnn.benchmark = False
    return workload("gpt2", options.tiny)


# ---------------------------------------------------------------------------------------------------- out of memory


class _Retries(logging.Handler):
    """Counts the times that the trainer says that memory ran out."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.sizes: list[int] = []
        self._logger = logging.getLogger("composer.trainer.auto_microbatch.retry")
        self._level = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Out of memory with"):
            self.sizes.append(int(record.args[0]))  # type: ignore[index,arg-type]

    def __enter__(self) -> _Retries:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)


def _fail_above(job: Job, size: int) -> None:
    """Let the model of a job run out of memory at its end, with more than so many samples: a stand-in for a device."""

    def check(module: nn.Module, args: Any) -> None:
        if module.training and len(args[0]) > size:
            raise torch.OutOfMemoryError("CUDA out of memory. A stand-in for it.")

    job.module.head.register_forward_pre_hook(check)


def _sized_run(work: Workload, options: Options, size: int | str, most: int | None = None) -> dict[str, Any]:
    """Train with a size of microbatches; return what was held after each step, the peaks, and the sizes that failed."""
    gc.collect()
    sizes: list[int | None] = []
    with Allocations(options.device) as allocations, _Retries() as retries:
        job = job_of(marked(work, allocations), options.device, _STEPS)
        if most is not None and options.device == "cpu":
            _fail_above(job, most)
        with composer_trainer(job, device_train_microbatch_size=size) as trainer:
            trainer.fit()
            sizes.append(trainer.state.device_train_microbatch_size)
            state = trainer.state
            del state
        del job, trainer
    ends = [stretch.end for name in (FIRST, REST) for stretch in allocations.all(name)]
    peaks = allocations[FIRST].peak, allocations[REST].peak
    reserved = allocations.whole.reserved
    return {"ends": ends, "peak": max(peaks), "reserved": reserved, "size": sizes[-1], "failed": retries.sizes}


def measure_auto(options: Options) -> Report:
    """Find a size of microbatches in less memory than the whole batch needs.

    Args:
        options: Device and size.
    """
    work = _prepare(options)
    whole = _sized_run(work, options, work.batch_size)
    one = _sized_run(work, options, 1)
    limit = one["reserved"] + int(0.4 * (whole["reserved"] - one["reserved"]))
    with ExitStack() as stack:
        if options.device == "cuda":
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit / total)
            stack.callback(torch.cuda.set_per_process_memory_fraction, 1.0)
        auto = _sized_run(work, options, "auto", most=work.batch_size // 2)
    fixed = _sized_run(work, options, auto["size"])
    runs = {"whole batch": whole, "one sample at once": one, "auto": auto, f"{auto['size']} at once": fixed}
    rows = [
        [name, run["size"], run["peak"] / MIB, run["reserved"] / MIB, run["ends"][-1] / MIB, len(run["failed"])]
        for name, run in runs.items()
    ]
    # Within the first step the trainer holds a copy of the model on the host, to undo it.
    more = max(one - other for one, other in zip(auto["ends"][1:], fixed["ends"][1:], strict=True))
    goals = [
        Goal("held after a step that ran out of memory, over a run with that size", more, _SLACK, "bytes"),
        Goal("reserved by auto, over the limit", auto["reserved"] / limit if limit else 1.0, 1.0, "x"),
    ]
    failed = "" if auto["failed"] else "auto never ran out of memory, so the check shows nothing."
    if not 1 <= (auto["size"] or 0) < work.batch_size:
        failed += f" auto chose {auto['size']} of {work.batch_size} samples."
    notes = [
        f"{work.title}, {_STEPS} steps. auto may take "
        + (f"{limit / MIB:.0f} MiB" if options.device == "cuda" else "half of the batch, by a stand-in that raises")
        + f"; it ran out of memory with {auto['failed']} samples at once.",
        "held: bytes after the last step, weights, gradients and state of the optimizer included.",
    ]
    columns = ["microbatches", "samples", "MiB at the peak", "reserved", "held", "times out of memory"]
    title = "Memory with the size of microbatches found by the trainer"
    machine = environment.describe(options.device)
    return Report("microbatch_auto", title, columns, rows, goals, notes, runs, machine, failed.strip())


# ---------------------------------------------------------------------------------------------------- checkpoints


def measure_checkpoint(options: Options) -> Report:
    """Save while training goes on: what lies on the device and on the host meanwhile.

    Args:
        options: Device and size.
    """
    work = _prepare(options)
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as folder, Allocations(options.device) as on_device, ExitStack() as stack:
        # On the CPU there is one memory for both.
        on_host = on_device if options.device == "cpu" else stack.enter_context(Allocations("cpu"))
        job = job_of(work, options.device, _STEPS)
        job.loader.dataset.batches = [_moved(batch, options.device) for batch in job.loader.dataset.batches]
        both = [on_device] if on_host is on_device else [on_device, on_host]
        marks = [Marks(one, "batch_end", "batch_start") for one in both]
        pinned = _Pinned(options.device)
        given = {"save_folder": folder, "save_interval": "1ba", "save_async": True, "callbacks": [*marks, pinned]}
        with composer_trainer(job, **given, save_num_checkpoints_to_keep=1) as trainer:
            trainer.fit()
            state = trainer.state
            moments = [value for values in state.optimizers[0].state.values() for value in values.values()]
            size = _nbytes([*state.model.state_dict().values(), *moments])
            del state, moments
        del trainer
    device_growth, host_growth = [], []
    for step in range(_STEPS - 1):
        # From the end of a batch, over the checkpoint, to the start of the next batch.
        before, after = on_device.all("batch_end")[step], on_device.all("batch_start")[step + 1]
        device_growth.append(after.peak - before.end)
        host = on_host.all("batch_start")[step + 1].end - on_host.all("batch_end")[step].end
        host_growth.append(host + pinned.taken[step])
        rows.append([f"checkpoint {step + 1}", size / MIB, device_growth[-1] / MIB, host_growth[-1] / MIB])
    first, later = max(0, abs(host_growth[0] - size) - _RANDOM_STATES) / size, max(host_growth[1:])
    goals = [
        Goal("host memory for the first checkpoint: off the bytes of its tensors by", first, 0.01, "x"),
        Goal("more of it for later ones", later, _SLACK, "bytes"),
    ]
    if options.device != "cpu":
        goals.append(Goal("growth on the device while a checkpoint is taken", max(device_growth), _SLACK, "bytes"))
    notes = [
        f"{work.title}; a checkpoint after each step, written while training goes on; batches are on the device.",
        "host: what torch's allocator of the CPU and that of pinned memory gave out between the end of a batch and the "
        "start of the next.",
    ]
    columns = ["MiB", "tensors of the checkpoint", "more on the device", "more on the host"]
    samples = {"size": size, "device": device_growth, "host": host_growth}
    title = "Memory for checkpoints that are written while training goes on"
    machine = environment.describe(options.device)
    return Report("checkpoint_memory", title, columns, rows, goals, notes, samples, machine)


def _moved(batch: Any, device: str) -> Any:
    if isinstance(batch, dict):
        return {name: tensor.to(device) for name, tensor in batch.items()}
    return tuple(tensor.to(device) for tensor in batch)


class _Pinned(Callback):
    """Notes by how much torch's pinned memory grows from the end of a batch to the start of the next."""

    def __init__(self, device: str) -> None:
        self.taken: list[int] = []
        self._device = device
        self._before: int | None = None

    def _now(self) -> int:
        return torch.cuda.host_memory_stats()["allocated_bytes.current"] if self._device == "cuda" else 0

    def batch_end(self, state: Any, logger: Any) -> None:
        self._before = self._now()

    def batch_start(self, state: Any, logger: Any) -> None:
        if self._before is not None:
            self.taken.append(self._now() - self._before)


# ---------------------------------------------------------------------------------------------------- backward pass


def measure_offload(options: Options) -> Report:
    """Recompute activations, or keep them on the host: what the forward pass leaves on the device for each block.

    Args:
        options: Device and size.
    """
    from composer.parallel.activation_checkpointing import apply_activation_checkpointing

    _prepare(options)
    shape, size = (gpt2.TINY, 4) if options.tiny else (gpt2.Shape(), 8)
    ways: dict[str, Callable[[Any], object]] = {
        "kept": lambda blocks: None,
        "recomputed": apply_activation_checkpointing,
        "recomputed but for products": lambda blocks: apply_activation_checkpointing(blocks, selective=True),
        "on the host": lambda blocks: apply_activation_checkpointing(blocks, checkpointing=False, offload=True),
        "recomputed, inputs on the host": lambda blocks: apply_activation_checkpointing(blocks, offload=True),
    }
    few, many = 2, 6
    found: dict[str, dict[str, float]] = {}
    for name, apply in ways.items():
        left, peak = [], 0
        for number in (few, many):
            one = _forward_leaves(replace(shape, num_layers=number), size, options, apply)
            left.append(one["left"])
            peak = one["peak"]
        found[name] = {"block": (left[1] - left[0]) / (many - few), "left": left[1], "peak": peak}
    residual = float(size * shape.sequence * shape.width * 4)  # what goes into a block
    # To draw the same random numbers again, their state is kept: on the host.
    apart = torch.get_rng_state().nbytes if options.device == "cpu" else 0
    rows = [[name, one["block"] / MIB, one["left"] / MIB, one["peak"] / MIB] for name, one in found.items()]
    goals = [
        Goal(
            "recomputed: left by a block, over its input", (found["recomputed"]["block"] - apart) / residual, 1.01, "x"
        )
    ]
    if options.device != "cpu":
        both = found["on the host"], found["recomputed, inputs on the host"]
        kept = found["kept"]["block"]
        goals += [
            Goal(f"{what}: left on the device by a block, of what is kept without", one["block"] / kept, 0.01, "x")
            for what, one in zip(("on the host", "recomputed, inputs on the host"), both, strict=True)
        ]
    notes = [
        f"GPT-2 with {many} blocks of width {shape.width}, {size} x {shape.sequence} tokens, bfloat16 autocast. left: "
        "more bytes at the start of the backward pass than before the forward pass, logits and loss included; by a "
        f"block: the difference to {few} blocks, for each. peak: of a step, weights and the optimizer included.",
        "On the CPU the device is the host, and nothing is gained by moving there." if options.device == "cpu" else "",
    ]
    columns = ["MiB", "left by a block", "left", "peak"]
    title = "Memory for the backward pass of blocks that keep no activations"
    machine = environment.describe(options.device)
    return Report("offload", title, columns, rows, goals, [note for note in notes if note], found, machine)


class _MarkBackward(Callback):
    """Ends a stretch when the backward pass begins, after autocast has let go of its copies of the weights.

    Args:
        allocations: What is marked.
    """

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations

    def before_backward(self, state: Any, logger: Any) -> None:
        state.loss.register_hook(lambda gradient: self._allocations.mark("backward"))


def _forward_leaves(shape: gpt2.Shape, size: int, options: Options, apply: Callable[[Any], object]) -> dict[str, int]:
    gc.collect()
    with Allocations(options.device) as allocations:
        job = job_of(gpt2_workload(shape, size), options.device, 3)
        apply(list(job.module.blocks))
        callbacks = [Marks(allocations, "before_forward", "batch_end"), _MarkBackward(allocations)]
        with composer_trainer(job, callbacks=callbacks) as trainer:
            trainer.fit()
        del job, trainer, callbacks
    left = allocations.all("backward")[-1].end - allocations.all("before_forward")[-1].end
    return {"left": left, "peak": allocations.whole.peak}


# ---------------------------------------------------------------------------------------------------- averages


def measure_averages(options: Options) -> Report:
    """Count the copies of the weights that methods hold which average them.

    Args:
        options: Device and size.
    """
    from composer.algorithms import EMA, SWA, PostHocEMA

    work = _prepare(options)
    ways: dict[str, tuple[Callable[[], list[Any]], int, int]] = {
        "none": (list, 0, 0),
        "EMA": (lambda: [EMA("2ba")], 1, 2),
        "SWA": (lambda: [SWA("0.1dur", "1dur", "1ba")], 1, 1),
        "PostHocEMA, 3 lengths": (lambda: [PostHocEMA((0.05, 0.1, 0.2), "1ep")], 3, 3),
    }
    weights = _nbytes(work.module().parameters())
    found = {name: _averaging(work, options, make()) for name, (make, *_) in ways.items()}
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    for name, (_, *promised) in ways.items():
        copies = [(one - none) / weights for one, none in zip(found[name], found["none"], strict=True)]
        rows.append([name, copies[0], promised[0], copies[1], promised[1]])
        for when, held, most in zip(("training", "evaluating"), copies, promised, strict=True):
            if name != "none":
                goals.append(Goal(f"{name}, {when}: copies of the weights, off by", abs(held - most), 0.01, "x"))
    notes = [
        f"{work.title}; copies of the weights, {weights / MIB:.4g} MiB, that are held more than without a method, at "
        "the end of a step and of a batch that is evaluated, each the last but one."
    ]
    columns = ["copies", "in training", "documented", "in evaluations", "documented"]
    title = "Copies of the weights that averages hold"
    machine = environment.describe(options.device)
    return Report("averages", title, columns, rows, goals, notes, found, machine)


def _averaging(work: Workload, options: Options, algorithms: list[Any]) -> tuple[int, int]:
    """The bytes held at the ends of a step and of an evaluated batch, before the last one, at which SWA is over."""
    gc.collect()
    with Allocations(options.device) as allocations:
        job = job_of(work, options.device, _STEPS)
        callback = Marks(allocations, "batch_end", "eval_batch_end")
        evaluation = {"eval_dataloader": job.loader, "eval_interval": "2ba", "eval_subset_num_batches": 1}
        with composer_trainer(job, callbacks=callback, algorithms=algorithms, **evaluation) as trainer:
            trainer.fit()
        del job, trainer
    return allocations.all("batch_end")[-2].end, allocations.all("eval_batch_end")[-2].end
