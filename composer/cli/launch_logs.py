"""Log files of ranks, and the report of failed ranks: exit code, signal (such as SIGKILL after OOM), last output."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from composer.cli.launch_rank import STDERR_FILE, STDOUT_FILE, log_files, rank_environment

__all__ = ["RankLogs", "exit_code", "print_message", "report_failures"]

_TAIL_BYTES = 16_000
# Exit codes of ranks that the launcher terminated, which are not the cause of a failure.
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
# Signals after which a program saves what it has, and ends with 128 plus their number.
_REQUESTS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
]


class RankLogs(LogsSpecs):
    """Redirects the output of ranks to files, except that of local rank 0, which goes to the terminal.

    Files are opened in append mode, so they contain all attempts of an elastic run.

    Args:
        stdout: Pattern of the files for stdout; ``None`` for files in a temporary folder.
        stderr: Pattern of the files for stderr. With the same pattern, both streams go to one file.
        expected: The expected ``RANK`` of the first rank of this node and ``WORLD_SIZE``, if given by the user.
        on_rendezvous: Called after the rendezvous, before the ranks start.

    Attributes:
        failures: The ranks of this node that failed in the last attempt.

    >>> logs = RankLogs(f"{tmp_path}/{{rank}}.txt", None)
    >>> same = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    >>> _ = logs.reify({i: {"RANK": str(i), "LOCAL_RANK": str(i), **same} for i in range(2)})
    >>> logs.files(1)[0].name
    '1.txt'
    >>> logs.close(keep=False)
    """

    def __init__(
        self,
        stdout: str | None,
        stderr: str | None,
        expected: Mapping[str, int] | None = None,
        on_rendezvous: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="composer-launch-"))
        self._patterns = (stdout, stderr)
        self._expected = dict(expected or {})
        self._on_rendezvous = on_rendezvous
        self.failures: Mapping[int, ProcessFailure] = {}
        self._files: dict[int, tuple[Path, Path]] = {}

    @property
    def root_log_dir(self) -> str:
        """Folder of the logs without a pattern."""
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environment variables of the ranks of this node, and return their log files.

        Args:
            envs: The environment variables of each local rank.

        Raises:
            ValueError: The ranks are not the expected ones.
        """
        if self._on_rendezvous is not None:
            self._on_rendezvous()
        attempt = envs[0].get("TORCHELASTIC_RESTART_COUNT", "0")
        if attempt != "0":
            if self.failures:
                report_failures(self.failures, self)
            print_message(f"restart {attempt} of {envs[0].get('TORCHELASTIC_MAX_RESTARTS')}")
            self.failures = {}
        self._check(envs[0])
        self._files = {}  # ranks may change in a restart
        error_files: dict[int, str] = {}
        for local_rank, env in envs.items():
            env["NODE_RANK"] = env["GROUP_RANK"]
            env.update(rank_environment(len(envs), os.environ))
            error_file = self.folder / f"attempt{attempt}-rank{env['RANK']}.json"
            error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = str(error_file)
            if local_rank != 0:
                for variable, stream in ((STDOUT_FILE, "stdout"), (STDERR_FILE, "stderr")):
                    env[variable] = str(error_file.with_suffix(f".{stream}.txt"))
                env.update(log_files(*self._patterns, env))
                self._files[int(env["RANK"])] = (Path(env[STDOUT_FILE]), Path(env[STDERR_FILE]))
        terminal = dict.fromkeys(envs, "")
        return LogsDest(stdouts=terminal, stderrs=dict(terminal), error_files=error_files)

    def files(self, rank: int) -> tuple[Path, Path] | None:
        """Return the stdout and stderr files of a rank; ``None`` if it writes to the terminal.

        Args:
            rank: The global rank.
        """
        return self._files.get(rank)

    def close(self, keep: bool) -> None:
        """Remove the temporary folder.

        Args:
            keep: Keep the folder if it is not empty, and print its path.
        """
        if keep and any(path.stat().st_size for path in self.folder.iterdir()):
            print_message(f"the output of the ranks is in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self, env: Mapping[str, str]) -> None:
        expected = self._expected.items()
        wrong = [f"{name} is {env[name]}, not {value}" for name, value in expected if int(env[name]) != value]
        if wrong:
            raise ValueError(
                f"The nodes do not match the options: {', '.join(wrong)}. Set --nproc and --node_rank on each node, "
                "and the same --nnodes and --world_size on all nodes."
            )


def report_failures(failures: Mapping[int, ProcessFailure], logs: RankLogs, stream: TextIO | None = None) -> int:
    """Report which rank failed first, the end of its output, and how the other ranks exited.

    Args:
        failures: The failures by global rank, in the order in which they were detected.
        logs: The log files of the ranks.
        stream: Where to print; stderr by default.

    Returns:
        The exit code for the launcher: that of the rank that failed first.

    >>> import io
    >>> failures = {
    ...     rank: ProcessFailure(rank, 100 + rank, code, "") for rank, code in {0: 143, 1: 3}.items()
    ... }
    >>> logs, stream = RankLogs(None, None), io.StringIO()
    >>> report_failures(failures, logs, stream)
    3
    >>> print(stream.getvalue().strip())
    composer: rank 1 (process 101) failed with exit code 3; its output is above
    >>> logs.close(keep=False)
    """
    causes = [rank for rank, failure in failures.items() if failure.exitcode not in _TERMINATED] or list(failures)
    first, *others = sorted(causes, key=lambda rank: (failures[rank].timestamp, _last_write(logs.files(rank))))
    files = logs.files(first)
    failure = f"rank {first} (process {failures[first].pid}) {_describe_exit(failures[first].exitcode)}"
    if files is None:
        print_message(f"{failure}; its output is above", stream)
    elif ends := [(path, text) for path in reversed(files) if (text := _tail(path))]:
        print_message(f"{failure}. The end of {ends[0][0]}:\n\n{ends[0][1].rstrip()}\n", stream)
    else:
        print_message(f"{failure}; it wrote nothing", stream)
    for rank in others:
        files = logs.files(rank)
        log = "" if files is None else f": {files[1]}"
        print_message(f"then rank {rank} {_describe_exit(failures[rank].exitcode)}{log}", stream)
    return exit_code(failures[first].exitcode)


def exit_code(code: int) -> int:
    """Return the exit code of a process as in a shell: 128 plus the signal number for a process killed by a signal.

    Args:
        code: The exit code of :mod:`subprocess`: the negative signal number.

    >>> exit_code(3), exit_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def print_message(text: str, stream: TextIO | None = None) -> None:
    """Write a line of the launcher.

    Args:
        text: The message.
        stream: Where to write it; standard error by default.

    >>> print_message("restart 1 of 3", sys.stdout)
    composer: restart 1 of 3
    """
    print(f"composer: {text}", file=stream or sys.stderr, flush=True)


def _describe_exit(code: int) -> str:
    if code - 128 in _REQUESTS:
        return f"stopped after {signal.Signals(code - 128).name} (exit code {code})"
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", which the system sends when it is out of memory (OOM)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _last_write(files: tuple[Path, Path] | None) -> float:
    """Return the time of a rank's last write to stderr, in seconds; infinity without a file."""
    try:
        return float("inf") if files is None else files[1].stat().st_mtime
    except OSError:
        return float("inf")


def _tail(path: Path) -> str:
    """Return the last lines of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text if size <= _TAIL_BYTES else text.partition("\n")[2]
