"""Run programs in new processes that have imported torch, and nothing else: forks of a process that waits for them.

The import is most of what a process costs that tests what composer imports, or what happens at exit.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_LIMIT = 120  # seconds that a program may take on a busy machine
_servers: list[subprocess.Popen[str]] = []


def run(program: str, *, warn: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program like ``python -c``, in the root of the repository.

    Args:
        program: The source.
        warn: What becomes of warnings, as with ``python -W``; None is the default of Python.
    """
    if not _servers:
        _start()
    (server,) = _servers
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        server.stdin.write(json.dumps([program, warn, folder]) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(program, code, out, err)


def _start() -> None:
    from tests import leaked_processes  # not in the other process: it imports more

    # The program becomes what the main module does last, so that the process ends as with ``python -c``.
    command = [sys.executable, "-c", "from tests import after_torch as _; exec(compile(_.wait(), '<string>', 'exec'))"]
    server = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    leaked_processes.kept.add(server.pid)
    _servers.append(server)
    atexit.register(server.communicate)  # it ends at the end of its input


def wait() -> str:
    """Fork for each program that is asked for, and return it in the fork; return an empty one in the end."""
    import torch  # noqa: F401

    while line := sys.stdin.readline():
        program, warn, folder = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(_LIMIT)
            flags = os.O_WRONLY | os.O_CREAT
            for number, (path, how) in enumerate([(os.devnull, 0), (f"{folder}/out", flags), (f"{folder}/err", flags)]):
                os.dup2(os.open(path, how), number)
            if warn is not None:
                warnings.simplefilter(warn)
            return program
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return ""
