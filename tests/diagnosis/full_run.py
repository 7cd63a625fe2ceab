"""Run a training program in full, with and without a change: the gain that ``composer doctor`` should have promised.

Nothing of the doctor runs in these processes: the program writes its own checkpoints and logs, into an empty working
directory, and has no probe. Only its duration is made endless, and a callback reads the clock once a step.

    python -m tests.diagnosis.full_run FILE

runs what the JSON file describes (``before``, ``after``: changes and edits; ``path``, ``ranks``, ``seconds``,
``repetitions``), and adds the seconds of a step of each run to it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR

from composer import Callback
from composer.core.time import Time
from composer.diagnosis.edits import edit
from composer.diagnosis.report import Tried
from composer.dist.rendezvous.loopback import LOOPBACK, get_free_tcp_port
from composer.trainer.overrides import TrainerOverrides, override_trainers
from composer.trees import ensure_tuple
from composer.trials import Target, assignments
from composer.trials.assignments import Assignment
from composer.trials.leader import rank_variables

# Steps that are not measured, and how many times as long as planned a run may take to reach the end of an epoch.
_WARMUP, _OVERTIME = 10, 2.0
_RESULT = "full_run.json"
_LIMIT = 300.0


@dataclass(frozen=True)
class FullGain:
    """How many times as fast the full run is with a remedy.

    Args:
        ratio: Ratio of the medians of the seconds of a step.
        low: The smallest ratio of two runs that followed each other.
        high: The largest one.
        steps: Number of steps of the runs without the remedy, together.
    """

    ratio: float
    low: float
    high: float
    steps: int


def full_gain(target: Target, tried: Tried, ranks: int, seconds: float, repetitions: int) -> FullGain:
    """Run a program in alternation without and with a remedy."""
    remedy = tried.remedy
    given = {
        "target": vars(target),
        "ranks": ranks,
        "seconds": seconds,
        "repetitions": repetitions,
        "before": {"changes": [], "edits": []},
        "after": {"changes": remedy.changes, "edits": remedy.edits},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "runs.json")
        file.write_text(json.dumps(given))
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
        subprocess.run(
            [sys.executable, "-m", "tests.diagnosis.full_run", str(file)],
            check=True,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.DEVNULL,
        )
        found = json.loads(file.read_text())["found"]
    before, after = ([one["step"] for one in found[name]] for name in ("before", "after"))
    ratios = [one / two for one, two in zip(before, after, strict=True)]
    steps = sum(one["steps"] for one in found["before"])
    return FullGain(median(before) / median(after), min(ratios), max(ratios), steps)


class _Clock(Callback):
    """Measures whole epochs, or steps where an epoch is too long."""

    def __init__(self, seconds: float, ended: Callable[[float, int], None]) -> None:
        self._seconds, self._ended = seconds, ended
        self._count, self._first = 0, 0.0
        self._start: tuple[float, int, bool] | None = None

    def epoch_start(self, state: Any, logger: Any) -> None:
        self._mark(time.perf_counter(), is_epoch=True)

    def batch_start(self, state: Any, logger: Any) -> None:
        self._count += 1
        now = time.perf_counter()
        self._first = self._first or now
        self._mark(now, is_epoch=False)

    def _mark(self, now: float, *, is_epoch: bool) -> None:
        done = self._count if is_epoch else self._count - 1
        if self._start is None:
            if done >= _WARMUP and (is_epoch or now > self._first + self._seconds / 2):
                self._start = now, done, is_epoch
            return
        began, count, at_epoch = self._start
        late = now > began + self._seconds * (_OVERTIME if at_epoch and not is_epoch else 1)
        if late and (is_epoch or not at_epoch or now > began + self._seconds * _OVERTIME) and done > count:
            self._ended((now - began) / (done - count), done - count)


class _FullRun(TrainerOverrides):
    """Applies changes to the trainer, and ends the process when it has been measured."""

    def __init__(self, change: Mapping[str, Any], seconds: float, fit: int) -> None:
        self._changes = [Assignment.parse(text) for text in change["changes"]]
        self._edits, self._seconds, self._fit, self._calls = change["edits"], seconds, fit, 0

    def init(self, trainer: Any, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        self._absent = {name for name, value in arguments.items() if value is None}
        changed = assignments.apply(self._changes, arguments)
        for name in self._edits:
            changed = edit(name, changed)
        init(**_endless(changed, "max_duration"))

    def fit(self, trainer: Any, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        self._calls += 1
        changed = assignments.apply_to_fit(self._changes, arguments, self._absent)
        for name in self._edits:
            changed = edit(name, changed)
        if self._calls < self._fit:
            changed["duration"] = "2ba"
        else:
            trainer.state.callbacks.append(_Clock(self._seconds, _end))
            if changed.get("duration") is None:
                trainer.state.max_duration = Time(10**9, "ep")
        fit(**changed)


def _endless(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Return arguments without an end, and without schedules that raise after their last step."""
    kept = [one for one in ensure_tuple(arguments.get("schedulers")) if not isinstance(one, OneCycleLR)]
    changed = {**arguments, "schedulers": kept or None}
    if changed.get(name) is not None:
        changed[name] = Time(10**9, "ep")
    return changed


def _end(step: float, steps: int) -> None:
    if os.environ.get("RANK", "0") == "0":
        partial = Path(os.environ["FULL_RUN"])
        partial.with_suffix(".partial").write_text(json.dumps({"step": step, "steps": steps}))
        partial.with_suffix(".partial").replace(partial)
        time.sleep(60)  # until the parent ends all processes
    time.sleep(_LIMIT)


def _child(given: Mapping[str, Any], change: Mapping[str, Any], folder: Path, rank: int) -> None:
    """Train in a forked process; never returns."""
    try:
        os.chdir(folder)
        os.environ["FULL_RUN"] = str(folder / _RESULT)
        os.environ.update(rank_variables(rank, given["ranks"]))
        target = Target(**{**given["target"], "arguments": tuple(given["target"]["arguments"])})
        with override_trainers(_FullRun(change, given["seconds"], target.fit)):
            target.run()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise
    finally:
        os._exit(1)


def _run(given: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Train once, and return the seconds of a step."""
    with tempfile.TemporaryDirectory() as name:
        folder, result = Path(name), Path(name, _RESULT)
        os.environ.update({"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(get_free_tcp_port())})
        children: list[int] = []
        for rank in range(given["ranks"]):
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _child(given, change, folder, rank)
            children.append(pid)
        end = time.monotonic() + _LIMIT
        try:
            while not result.exists() and time.monotonic() < end:
                if os.waitpid(children[0], os.WNOHANG)[0]:
                    raise RuntimeError(f"A run with {change} ended early.")
                time.sleep(0.05)
            return json.loads(result.read_text())
        finally:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def main() -> None:
    file = Path(sys.argv[1])
    given = json.loads(file.read_text())
    gc.collect()
    found: dict[str, list[Any]] = {"before": [], "after": []}
    for _ in range(given["repetitions"]):
        for name, runs in found.items():
            runs.append(_run(given, given[name]))
    file.write_text(json.dumps({**given, "found": found}))


if __name__ == "__main__":
    main()
