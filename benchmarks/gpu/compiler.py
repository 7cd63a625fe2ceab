"""Whether anything can be compiled: Triton needs a compiler of C and the headers of Python, which may be missing."""

from __future__ import annotations

import time
import traceback

from benchmarks.gpu.options import Options
from benchmarks.report import Report


def compile_something(device: str, backend: str) -> None:
    """Compile and call a function of a line.

    Args:
        device: "cuda" or "cpu".
        backend: That of ``torch.compile``.

    Raises:
        RuntimeError: The result is wrong; other errors are those of the compiler.
    """
    import torch

    x = torch.arange(1000.0, device=device)
    found = torch.compile(lambda x: x * 2 + 1, backend=backend)(x)
    if not torch.equal(found, x * 2 + 1):
        raise RuntimeError("A compiled function does not return what it returns in eager mode.")


def measure(options: Options) -> Report:
    """Say whether it compiles.

    Args:
        options: The device; in tiny form the compiler of Python code alone.
    """
    begin = time.perf_counter()
    failed = ""
    try:
        compile_something(options.device, "aot_eager" if options.tiny else "inductor")
    except Exception:
        failed = traceback.format_exc()[-3000:]
    rows = [["x * 2 + 1", time.perf_counter() - begin, "failed" if failed else "compiled"]]
    columns = ["what", "seconds", "how"]
    return Report("compiler", "The compiler compiles", columns, rows, [], [], {}, failed=failed)
