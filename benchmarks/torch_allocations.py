"""Count what torch allocates on the CPU, on every thread, by a library that is preloaded into processes.

torch's profiler counts the threads that torch knows; it misses what a thread of gloo releases.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["TorchAllocations", "can_preload", "preloaded"]

_SOURCE = Path(__file__).with_suffix(".cpp")
# Until a thread of gloo has released the tensors of a collective that has ended.
_PAUSE_MICROSECONDS = 5000


def can_preload() -> bool:
    """Return whether there are a dynamic loader and a compiler to preload the library with."""
    return sys.platform == "linux" and shutil.which("g++") is not None


@contextmanager
def preloaded() -> Generator[None]:
    """Compile the library, and preload it into the processes that are started in a ``with`` block.

    Raises:
        RuntimeError: There is no compiler, or it fails.
    """
    if not can_preload():
        raise RuntimeError("Counting what torch allocates on all threads needs Linux and the compiler g++; install it.")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "torch_allocations.so")
        command = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", str(_SOURCE), "-o", str(library), "-ldl"]
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        if made.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with exit code {made.returncode}:\n{made.stderr}")
        before = os.environ.get("LD_PRELOAD")
        os.environ["LD_PRELOAD"] = " ".join([str(library), *([before] if before else [])])
        try:
            yield
        finally:
            if before is None:
                del os.environ["LD_PRELOAD"]
            else:
                os.environ["LD_PRELOAD"] = before


class TorchAllocations:
    """Counts the bytes that torch's allocator of the CPU gives out in a ``with`` block, on all threads.

    Works in processes that were started with :func:`preloaded`. Memory that a process group allocates without torch,
    such as the buffers of sockets, is not counted.

    Args:
        paced: Whether to wait after each collective until gloo has released its tensors; its thread does so a moment
            after the collective has ended, so that the peak of a run depends on chance otherwise.

    Raises:
        RuntimeError: The library is not preloaded.
    """

    def __init__(self, *, paced: bool = True) -> None:
        library = ctypes.CDLL(None)
        if not hasattr(library, "composer_mark"):
            raise RuntimeError("The library is not preloaded; start the process in a block of preloaded().")
        self._paced, self._library = paced, library
        library.composer_live.restype = library.composer_peak.restype = ctypes.c_int64
        library.composer_pause.argtypes = [ctypes.c_int64]
        self.peak = self.end = 0

    def __enter__(self) -> Self:
        gc.collect()
        self._library.composer_pause(_PAUSE_MICROSECONDS if self._paced else 0)
        self._library.composer_mark()
        self._start: int = self._library.composer_live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.peak = self._library.composer_peak() - self._start
        self.end = self._library.composer_live() - self._start
        self._library.composer_pause(0)
