"""What torch allocates on all threads, counted by a preloaded library: equal to the profiler where that sees all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.torch_allocations import TorchAllocations, can_preload, preloaded

needs_compiler = pytest.mark.skipif(not can_preload(), reason="needs Linux and g++")

PROGRAM = """
import threading
import torch
from benchmarks.allocations import Allocations
from benchmarks.estimate_memory import Configuration, Samples, arguments_of, measured
from benchmarks.estimate_models import MODELS
from benchmarks.torch_allocations import TorchAllocations

torch.set_num_threads(1)
with TorchAllocations() as allocations:
    kept = [torch.empty(1000, dtype=torch.uint8)]
    thread = threading.Thread(target=kept.clear)  # as those of gloo
    thread.start()
    thread.join()
    kept.append(torch.empty(700, dtype=torch.uint8))
print(allocations.peak, allocations.end)

configuration = Configuration("convnet", "adamw-foreach", batch=4)
data = Samples(MODELS["convnet"].sample, 16)
with TorchAllocations() as allocations:
    print(measured(lambda: arguments_of(configuration, data, None)))
print(allocations.peak)
"""


@needs_compiler
def test_all_threads_count_and_one_thread_counts_as_the_profiler_does() -> None:
    with preloaded():
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    threads, by_profiler, counted = (line for line in done.stdout.splitlines() if line[:1].isdigit())
    assert threads == "1000 700"
    assert int(by_profiler) == int(counted) > 10**6


def test_a_process_without_the_library_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"start the process in a block of preloaded\(\)"):
        TorchAllocations()


def test_a_machine_without_a_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not can_preload()
    with pytest.raises(RuntimeError, match=r"needs Linux and the compiler g\+\+"), preloaded():
        pass
