"""A process from which tests fork others: it imports everything once, which takes seconds of CPU."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests import leaked_processes

ROOT = Path(__file__).resolve().parents[1]


class Parent:
    """Calls functions in another process, which is started with the first and has one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = 600.0) -> Any:
        """Return what a function returns there, as JSON has it.

        Args:
            function: At the top of a module.
            args: Numbers, texts, and paths, which it gets as texts.
            timeout: Seconds until the process is ended: for one that hangs, not for one that is slow.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        asked = [function.__module__, function.__name__, *args]
        print(json.dumps(asked, default=str), file=process.stdin, flush=True)
        ended = not connection.wait([process.stdout], timeout)
        answer = "" if ended else process.stdout.readline()
        if not answer:
            self.close()
            self._errors.seek(0)
            raise AssertionError(f"{function.__name__} did not come back: {self._errors.read()[-3000:]}")
        is_right, found = json.loads(answer)
        assert is_right, found
        return found

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.forking"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        leaked_processes.kept.add(self._process.pid)
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def given() -> Iterator[Parent]:
    """Give the process and end it; the body of a fixture."""
    parent = Parent()
    yield parent
    parent.close()
    parent._errors.close()


def share() -> None:
    """Keep collections in children from what they share with this process, which the system would have to copy."""
    gc.collect()
    gc.freeze()


def main() -> None:
    """Call what each line of the input names, and answer with a line."""
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # children may print
    for line in sys.stdin:
        module, name, *args = json.loads(line)
        try:
            answer = True, getattr(importlib.import_module(module), name)(*args)
        except Exception:
            answer = False, traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
