"""Where ranks write, and what is told of those that failed."""

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

__all__ = ["RankLogs", "exit_code", "report_failures", "tell"]

_TAIL_BYTES = 16_000
# A rank that was told to end does so with one of these; it is no cause.
_TOLD_TO_END = (-signal.SIGTERM, 128 + signal.SIGTERM)


class RankLogs(LogsSpecs):
    """Sends what ranks write to files, that of the first of each node to the terminal.

    Files are appended to, so that the attempts of an elastic run follow each other.

    Args:
        stdout: Pattern of the files for standard output; ``None`` makes a temporary folder.
        stderr: The same for standard error. With the same pattern both go to one file.
        expected: What the user said of the ranks of this node (``RANK`` of its first one, ``WORLD_SIZE``).
        when_met: Called when the nodes have met, before the ranks start.

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
        when_met: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="composer-launch-"))
        self._patterns = (stdout, stderr)
        self._expected = dict(expected or {})
        self._when_met = when_met
        self._files: dict[int, tuple[Path, Path]] = {}

    @property
    def root_log_dir(self) -> str:
        """Folder of the logs for which no pattern was given."""
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environment variables of the ranks of this node, and say where they write.

        Args:
            envs: Local rank -> its environment variables.

        Raises:
            ValueError: The ranks are not those that the user said.
        """
        if self._when_met is not None:
            self._when_met()
        attempt = envs[0].get("TORCHELASTIC_RESTART_COUNT", "0")
        if attempt != "0":
            tell(f"restart {attempt} of {envs[0].get('TORCHELASTIC_MAX_RESTARTS')}{self._first_words()}")
        self._check(envs[0])
        self._files = {}  # the ranks of a restart may be others
        error_files: dict[int, str] = {}
        for local_rank, env in envs.items():
            env["NODE_RANK"] = env["GROUP_RANK"]
            env.update(rank_environment(len(envs), os.environ))
            error_file = self.folder / f"attempt{attempt}-rank{env['RANK']}.json"
            error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = str(error_file)
            if local_rank != 0:
                for variable, kind in ((STDOUT_FILE, "stdout"), (STDERR_FILE, "stderr")):
                    env[variable] = str(error_file.with_suffix(f".{kind}.txt"))
                env.update(log_files(*self._patterns, env))
                self._files[int(env["RANK"])] = (Path(env[STDOUT_FILE]), Path(env[STDERR_FILE]))
        terminal = dict.fromkeys(envs, "")
        return LogsDest(stdouts=terminal, stderrs=dict(terminal), error_files=error_files)

    def files(self, rank: int) -> tuple[Path, Path] | None:
        """Return where a rank writes its output and its errors; ``None`` is the terminal.

        Args:
            rank: Its global number.
        """
        return self._files.get(rank)

    def close(self, keep: bool) -> None:
        """Remove the temporary folder.

        Args:
            keep: Leave it if something was written to it, and say where it is.
        """
        if keep and any(path.stat().st_size for path in self.folder.iterdir()):
            tell(f"what the ranks wrote is in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _first_words(self) -> str:
        """What the rank wrote that was the first to write an error, though not to the terminal."""
        ends = {files[1]: text for files in self._files.values() if (text := _tail(files[1]))}
        if not ends:
            return ""
        path = min(ends, key=lambda path: path.stat().st_mtime)
        return f". The end of {path}:\n\n{ends[path].rstrip()}\n"

    def _check(self, env: Mapping[str, str]) -> None:
        said = self._expected.items()
        wrong = [f"{name} is {env[name]}, not {value}" for name, value in said if int(env[name]) != value]
        if wrong:
            raise ValueError(
                f"The nodes do not add up to what was said: {', '.join(wrong)}. Give each node its --nproc and its "
                "--node_rank, and all the same --nnodes and --world_size."
            )


def report_failures(failures: Mapping[int, ProcessFailure], logs: RankLogs, stream: TextIO | None = None) -> int:
    """Tell which rank failed first, the end of what it wrote, and what became of the others.

    Args:
        failures: Global rank -> how it ended, in the order in which that was seen.
        logs: Where they write.
        stream: Where to tell; standard error by default.

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
    composer: rank 1 (process 101) failed with exit code 3; what it wrote is above
    >>> logs.close(keep=False)
    """
    causes = [rank for rank, failure in failures.items() if failure.exitcode not in _TOLD_TO_END] or list(failures)
    first, *others = sorted(causes, key=lambda rank: (failures[rank].timestamp, _last_write(logs.files(rank))))
    files = logs.files(first)
    said = f"rank {first} (process {failures[first].pid}) {_how(failures[first].exitcode)}"
    if files is None:
        tell(f"{said}; what it wrote is above", stream)
    elif ends := [(path, text) for path in reversed(files) if (text := _tail(path))]:
        tell(f"{said}. The end of {ends[0][0]}:\n\n{ends[0][1].rstrip()}\n", stream)
    else:
        tell(f"{said}; it wrote nothing", stream)
    for rank in others:
        files = logs.files(rank)
        tell(f"then rank {rank} {_how(failures[rank].exitcode)}{'' if files is None else f': {files[1]}'}", stream)
    return exit_code(failures[first].exitcode)


def exit_code(code: int) -> int:
    """Return the exit code of a process as a shell gives it: 128 and the number of the signal that ended it.

    Args:
        code: As Python gives it: minus the number of the signal.

    >>> exit_code(3), exit_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def tell(text: str, stream: TextIO | None = None) -> None:
    """Write a line of the launcher.

    Args:
        text: What it says.
        stream: Where; standard error by default.

    >>> tell("restart 1 of 3", sys.stdout)
    composer: restart 1 of 3
    """
    print(f"composer: {text}", file=stream or sys.stderr, flush=True)


def _how(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", which the system sends where memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def _last_write(files: tuple[Path, Path] | None) -> float:
    """When a rank last wrote an error, in seconds; without a file, as if after all others."""
    try:
        return float("inf") if files is None else files[1].stat().st_mtime
    except OSError:
        return float("inf")


def _tail(path: Path) -> str:
    """The last lines of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text if size <= _TAIL_BYTES else text.partition("\n")[2]
