"""A training of one contender in a thread, which stands still between its turns.

So a contender compiles once and trains one model from the first step to the last, while others measure in between. The
data set is what holds it: it waits where a turn ends. It notes the time where a stretch of steps begins and ends; loops
that fetch ahead shift both marks alike.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu.contenders import CONTENDERS, Job
from benchmarks.gpu.workloads import Workload, workload

SOURCES = ("device", "host")
_trainings: dict[str, Training] = {}


@dataclass(frozen=True)
class Counts:
    """How many steps a training has.

    Attributes:
        warmup: Before the first turn.
        settle: Before each stretch that is timed: the loop has just been held, and its memory was given back.
        steps: In each stretch that is timed.
        turns: Number of turns; each has a stretch with batches on the device, and one with batches on the host.
    """

    warmup: int
    settle: int
    steps: int
    turns: int

    @property
    def turn(self) -> int:
        return len(SOURCES) * (self.settle + self.steps)

    @property
    def total(self) -> int:
        """Steps of the whole training, with some after the last turn, so that each loop reaches its end mark."""
        return self.warmup + self.turns * self.turn + self.settle


@dataclass
class Turns(Dataset[Any]):
    """Batches of a training, which stops before the first step of each turn until it is told to go on.

    Attributes:
        batches: By source.
        counts: Numbers of steps.
        device: "cuda" or "cpu".
        stretches: Seconds a step of the last turn by source: on the wall, and on the device by its events.
        waits: Is set while the training waits.
        go: Is set to let it go on.
    """

    batches: dict[str, list[Any]]
    counts: Counts
    device: str
    stretches: dict[str, list[float]] = field(default_factory=dict)
    waits: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    _began: tuple[float, Any] = (0.0, None)

    def __len__(self) -> int:
        return self.counts.total

    def __getitem__(self, index: int) -> Any:
        counts = self.counts
        if index < counts.warmup:
            return self._batch(SOURCES[0], index)
        turn, place = divmod(index - counts.warmup, counts.turn)
        stretch, step = divmod(place, counts.settle + counts.steps)
        if step == 0 and (turn > 0 or stretch > 0):
            self._end(SOURCES[stretch - 1])
        if place == 0:
            self._wait()
        if step == counts.settle:
            self._began = _now(self.device), _event(self.device)
        return self._batch(SOURCES[stretch], index)

    def _batch(self, source: str, index: int) -> Any:
        batches = self.batches[source]
        return batches[index % len(batches)]

    def _end(self, source: str) -> None:
        began, first = self._began
        last = _event(self.device)
        wall = _now(self.device) - began
        gpu = first.elapsed_time(last) / 1e3 if last is not None else float("nan")
        self.stretches[source] = [wall / self.counts.steps, gpu / self.counts.steps]

    def _wait(self) -> None:
        _now(self.device)
        if self.device == "cuda":
            torch.cuda.empty_cache()  # others use the device meanwhile
        self.go.clear()
        self.waits.set()
        self.go.wait()


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _event(device: str) -> Any:
    """The moment in the queue of the device's default stream, on which all of them train."""
    if device == "cpu":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.default_stream())
    return event


class Training(threading.Thread):
    """A training of one contender.

    Args:
        name: The contender.
        workload: What it trains.
        counts: Numbers of steps.
        device: "cuda" or "cpu".
        backend: That of ``torch.compile``, for contenders that compile.
    """

    def __init__(self, name: str, workload: Workload, counts: Counts, device: str, backend: str) -> None:
        super().__init__(daemon=True)
        contender = CONTENDERS[name]
        self.workload, self.device = workload, device
        host = workload.batches(workload.num_batches + 1)
        if device == "cuda":
            host = [_map(batch, lambda tensor: tensor.pin_memory()) for batch in host]
        *host, self._unseen = host
        here = [_map(batch, lambda tensor: tensor.to(device)) for batch in host]
        self.turns = Turns({"device": here, "host": host}, counts, device)
        self.module = workload.module().to(device)
        loader = DataLoader(self.turns, batch_size=None)
        self.job = Job(workload, self.module, loader, device, backend if contender.compiled else "")
        self._train = contender.train
        self._before = _weights(self.module)
        self.error = ""
        self.facts: dict[str, Any] = {"loss before": self._loss()}

    def run(self) -> None:
        try:
            self._train(self.job)
        except BaseException:
            self.error = traceback.format_exc()
        if self.error:  # only now, when nothing refers to the frames of the error any more
            self._let_go()
        self.turns.waits.set()

    def _let_go(self) -> None:
        """Leave the memory of the device to the other contenders."""
        del self.module, self.job, self._before
        self.turns.batches.clear()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait until the training stands still or is over.

        Raises:
            RuntimeError: It failed.
        """
        self.turns.waits.wait()
        if self.error:
            raise RuntimeError(self.error)

    def go(self) -> None:
        """Let it train to the end of its turn."""
        self.turns.waits.clear()
        self.turns.go.set()
        self.wait()

    def finish(self) -> dict[str, Any]:
        """Let it train to its end; return what shows that it did the same work as others."""
        self.go()
        self.join()
        logits = str(self.module.logits_dtype)  # of the last step, before the loss makes others
        loss, after = self._loss(), _weights(self.module)
        self.facts |= {
            "loss after": loss,
            "moved": float((after - self._before).norm()),
            "updates": self.job.updates[0],
            "logits": logits,
            "weights": str(after.dtype),
            "settings": settings(),
        }
        return self.facts

    def _loss(self) -> float:
        """The loss on a batch that is not trained on, computed in the same way for all."""
        training = self.module.training
        self.module.to(self.device).eval()  # Lightning leaves it on the host
        batch = _map(self._unseen, lambda tensor: tensor.to(self.device))
        forward = type(self.module).forward  # without what a library has put around it
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16):
            loss = self.workload.loss(lambda *given: forward(self.module, *given), batch)
        self.module.train(training)
        return float(loss)


def _map(batch: Any, function: Any) -> Any:
    if isinstance(batch, dict):
        return {name: function(tensor) for name, tensor in batch.items()}
    return tuple(function(tensor) for tensor in batch)


def _weights(module: nn.Module) -> torch.Tensor:
    # In one order of elements, whatever the memory format.
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).cpu()


def settings() -> dict[str, str]:
    """Return what decides about the speed of a device and that libraries may change: the same for all contenders."""
    return {
        "float32": torch.get_float32_matmul_precision(),
        "TF32 in matrix products": str(torch.backends.cuda.matmul.allow_tf32),
        "TF32 in convolutions": str(torch.backends.cudnn.allow_tf32),
        "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        "deterministic": str(torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()),
    }


def prepare(device: str) -> None:
    """Set what decides about the speed of a device: the best algorithms of cuDNN, and TF32 as composer sets it.

    Args:
        device: "cuda" or "cpu".
    """
    from composer.devices import get_device

    if device == "cpu":
        torch.set_num_threads(1)
    get_device(device)  # sets TF32
    torch.backends.cudnn.benchmark = True


def build(name: str, work: str, tiny: bool, device: str, backend: str, **counts: int) -> None:
    """Import what a contender needs, and make its model and data.

    Args:
        name: The contender.
        work: Name of the workload.
        tiny: Whether that is tiny.
        device: "cuda" or "cpu".
        backend: That of ``torch.compile``, for contenders that compile.
        **counts: See :class:`Counts`.
    """
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # transformers would use all that there are
    # Of its own, so that nobody finds what another one has compiled.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path.cwd() / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(Path.cwd() / "triton")
    prepare(device)
    CONTENDERS[name].load()
    _trainings[name] = Training(name, workload(work, tiny), Counts(**counts), device, backend)


def warm_up(name: str) -> dict[str, Any]:
    """Begin the training of a contender, up to its first turn; return the seconds of that.

    Args:
        name: The contender.
    """
    training = _trainings[name]
    begin = time.perf_counter()
    training.start()
    training.wait()
    return {"warm-up": time.perf_counter() - begin}


def turn(name: str) -> dict[str, Any]:
    """Train for a turn; return the seconds a step by source, on the wall and on the device, and the peak in bytes.

    Args:
        name: The contender.
    """
    training = _trainings[name]
    if training.device == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
    training.go()
    peak = float(torch.cuda.max_memory_allocated()) if training.device == "cuda" else float("nan")
    return {**training.turns.stretches, "peak": peak}


def finish(name: str) -> dict[str, Any]:
    """Train to the end; return what shows that the work was that of others.

    Args:
        name: The contender.
    """
    return _trainings.pop(name).finish()
