"""Run contenders in separate processes, and describe the host and its versions."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# MosaicML Composer has the import name of this package, so it is only on the path of its own processes.
PREDECESSOR = ROOT / ".bench" / "predecessor"
# fmt: off
LIBRARIES = (
    "torch", "numpy", "torchmetrics", "rich", "tqdm", "accelerate", "lightning", "transformers", "traceml-ai",
    "mosaicml", "isal", "composer",
)
# fmt: on
_TERMINAL_ROWS, _TERMINAL_COLUMNS = 30, 120


class Worker:
    """A process with one thread that calls functions until it is closed, to be asked in turns with another.

    Args:
        predecessor: Whether ``import composer`` finds the predecessor.
    """

    def __init__(self, *, predecessor: bool = False) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.environment"],
            env=variables(predecessor),
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def call(self, target: str, **arguments: Any) -> Any:
        """Call ``"module:function"``; return its result.

        Args:
            target: The function; arguments and result must be what JSON can hold.
            **arguments: By name.

        Raises:
            RuntimeError: The function failed, and the process goes on; or the process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([target, arguments]) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise RuntimeError(f"{target}({arguments}) ended its process:\n{self._errors.read()[-2000:]}")
        result, error = json.loads(answer)
        if error:
            raise RuntimeError(error)
        return result

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        # At the end of its input it ends by itself.
        self._process.communicate()
        self._errors.close()
        self._folder.cleanup()


def variables(predecessor: bool = False) -> dict[str, str]:
    """Return the environment variables of a measured process.

    Args:
        predecessor: Whether ``import composer`` finds the predecessor.
    """
    path = [str(PREDECESSOR)] if predecessor else []
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    terminal = {"TERM": "xterm-256color", "COLUMNS": str(_TERMINAL_COLUMNS), "PYTHONWARNINGS": "ignore"}
    # Bytecode is cached, as for users, even where the environment says otherwise: imports would take far longer.
    python = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])}
    return {**os.environ, **threads, **terminal, **python}


def call(target: str, arguments: dict[str, Any], *, predecessor: bool = False) -> Any:
    """Call ``"module:function"`` in a fresh process with one thread, on a terminal of its own; return its result.

    The terminal is what progress bars find when a person runs a script; what they draw there is thrown away.

    Args:
        target: The function; arguments and result must be what JSON can hold.
        arguments: By name.
        predecessor: Whether ``import composer`` finds the predecessor.

    Raises:
        RuntimeError: The process failed; the message ends with the last lines that it wrote.
    """
    with tempfile.TemporaryDirectory() as folder, _terminal() as (stream, written):
        result = Path(folder) / "result.json"
        command = [sys.executable, "-P", "-m", "benchmarks.environment", target, json.dumps(arguments), str(result)]
        code = subprocess.run(
            command,
            env=variables(predecessor),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            check=False,
        ).returncode
        if code == 0:
            return json.loads(result.read_text())
    tail = bytes(written).decode(errors="replace")[-2000:]
    raise RuntimeError(f"{target}({arguments}) ended with code {code}:\n{tail}")


@contextlib.contextmanager
def _terminal():
    """A pseudo-terminal to write to, and the last of what was written, read by a thread so that nobody waits."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _TERMINAL_ROWS, _TERMINAL_COLUMNS, 0, 0))
    written = bytearray()

    def read() -> None:
        # Linux reports the end, when nobody holds the other side any more, as an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 1 << 16):
                written.extend(chunk)
                del written[:-10_000]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield theirs, written
    finally:
        os.close(theirs)
        reader.join(timeout=10)
        os.close(ours)


def describe(device: str = "cpu") -> dict[str, Any]:
    """Return what the figures depend on: machine, versions, date and load."""
    description = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name)) is not None},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load average (1 min)": round(os.getloadavg()[0], 2),
    }
    if device != "cpu":
        import torch

        description["accelerator"] = torch.cuda.get_device_name()
    return description


def resident_peak() -> float:
    """Most bytes of this program in memory, as Linux counts them.

    ``getrusage`` begins with the peak of the process that starts it, which measures other things before.
    """
    _, _, rest = Path("/proc/self/status").read_text().partition("VmHWM:")
    return float(int(rest.split(maxsplit=1)[0]) * 1024)


def has(module: str) -> bool:
    """Tell whether a module can be imported here."""
    return importlib.util.find_spec(module) is not None


def _version(name: str) -> str | None:
    if name == "composer":
        from composer import __version__

        return __version__
    where = importlib.metadata.distributions(name=name, path=[*sys.path, str(PREDECESSOR)])
    return next((distribution.version for distribution in where), None)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _answer(target: str, arguments: dict[str, Any]) -> Any:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)


def _serve() -> None:
    """The other side of :class:`Worker`."""
    # What a library prints goes to the errors, and only answers to who asked.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            target, arguments = json.loads(line)
            try:
                reply = [_answer(target, arguments), ""]
            except Exception as error:
                reply = [None, f"{type(error).__name__}: {error}"]
            answers.write(json.dumps(reply) + "\n")
            answers.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[3]).write_text(json.dumps(_answer(sys.argv[1], json.loads(sys.argv[2]))))
    else:
        _serve()
