"""The start of each rank: tie its lifetime to the launcher, redirect its logs, and exec the user's program.

Runs as a separate script, ``launch_rank.py PID COMMAND...``, with the standard library only, so that it takes
milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = [
    "FORMAT_NAMES",
    "STDERR_FILE",
    "STDOUT_FILE",
    "exec_program",
    "expand",
    "log_files",
    "rank_environment",
    "usable_cores",
]

# Environment variables with the log files of a rank; removed before the program starts.
STDOUT_FILE = "COMPOSER_LAUNCHER_STDOUT"
STDERR_FILE = "COMPOSER_LAUNCHER_STDERR"

# Placeholders in the patterns of these files.
FORMAT_NAMES = ("rank", "local_rank", "world_size", "local_world_size", "node_rank")

_PR_SET_PDEATHSIG = 1


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use.

    >>> usable_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rank_environment(local_world_size: int, environ: Mapping[str, str], bound: bool = False) -> dict[str, str]:
    """Return further environment variables of each rank, in addition to its rank and world size.

    Args:
        local_world_size: Number of ranks on this node. If there are several and ``OMP_NUM_THREADS`` is not set, the
            cores are split evenly among them; by default each would use all cores.
        environ: The environment variables of the launcher.
        bound: Whether this process is bound to the cores of one rank, rather than to those of all ranks of the node.

    >>> rank_environment(2, {"OMP_NUM_THREADS": "3"})
    {'PYTHONUNBUFFERED': '1'}
    >>> int(rank_environment(2, {})["OMP_NUM_THREADS"]) == max(usable_cores() // 2, 1)
    True
    """
    added = {"PYTHONUNBUFFERED": "1"}
    if local_world_size > 1 and not environ.get("OMP_NUM_THREADS"):
        added["OMP_NUM_THREADS"] = str(max(usable_cores() // (1 if bound else local_world_size), 1))
    return added


def log_files(stdout: str | None, stderr: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with the log files of a rank, and create their folders.

    Args:
        stdout: Pattern of the file for stdout; ``None`` for no redirection.
        stderr: Pattern of the file for stderr; ``None`` for no redirection.
        environ: The environment variables of the rank, which replace the placeholders.

    Raises:
        OSError: A folder cannot be created.

    >>> environ = {name.upper(): "1" for name in FORMAT_NAMES}
    >>> log_files("rank{rank:02}.txt", None, environ)
    {'COMPOSER_LAUNCHER_STDOUT': 'rank01.txt'}
    """
    names = {name: int(environ[name.upper()]) for name in FORMAT_NAMES}
    files: dict[str, str] = {}
    for variable, pattern in ((STDOUT_FILE, stdout), (STDERR_FILE, stderr)):
        if pattern is not None:
            files[variable] = pattern.format(**names)
            Path(files[variable]).parent.mkdir(parents=True, exist_ok=True)
    return files


def expand(arguments: Sequence[str]) -> list[str]:
    """Return arguments with ``~`` and ``$NAME`` replaced, as a shell on the node of the rank would.

    Args:
        arguments: The arguments of the program. Undefined variables stay unchanged.

    >>> os.environ["EXAMPLE"] = "7"
    >>> expand(["run-$EXAMPLE", "${EXAMPLE}th", "$NO_SUCH_VARIABLE", "50$"])
    ['run-7', '7th', '$NO_SUCH_VARIABLE', '50$']
    >>> del os.environ["EXAMPLE"]
    """
    return [os.path.expandvars(os.path.expanduser(argument)) for argument in arguments]  # noqa: PTH111 - paths or not


def exec_program(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this process with a program (``exec``); return only by raising an error.

    Args:
        command: The program and its arguments, which are expanded.
        environ: Environment variables that are added to those of this process.

    Raises:
        OSError: The program does not exist or cannot be run.

    >>> exec_program(["/no/such/program"], {})
    Traceback (most recent call last):
    ...
    FileNotFoundError: [Errno 2] No such file or directory
    """
    os.environ.update(environ)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream, name in ((1, STDOUT_FILE), (2, STDERR_FILE)):
        if path := os.environ.pop(name, ""):
            # Append, since a restart must keep earlier output, and both streams may go to one file.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file, stream)
            os.close(file)
    # Python ignores these signals, which the program would inherit.
    ignored = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
    before = [signal.signal(signum, signal.SIG_DFL) for signum in ignored]
    try:
        os.execvp(command[0], [command[0], *expand(command[1:])])
    finally:
        for signum, handler in zip(ignored, before, strict=True):
            signal.signal(signum, handler)


def _kill_with_parent(launcher: int) -> None:
    """Make the kernel kill this process when the launcher exits for any reason; on Linux this survives ``exec``."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != launcher:  # the launcher has already exited
        raise SystemExit(128 + signal.SIGKILL)


def _main(arguments: Sequence[str]) -> int:
    launcher, *command = arguments
    try:
        _kill_with_parent(int(launcher))
        exec_program(command, {})
    except OSError as error:
        print(f"composer: cannot run {command[0]!r}: {error}", file=sys.stderr)  # noqa: T201 - this is a program
    return 126


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
