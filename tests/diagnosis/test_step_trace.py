"""The profiler's trace of the unchanged run: three steps, with the parts by name, on one rank and on two."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from composer import Callback
from composer.diagnosis.step_trace import StepTrace, TraceRecorder, copy_trace, trace_file
from composer.trials import Record, Study, Target, Trial
from tests.diagnosis import parts

_PROBE = f"{TraceRecorder.__module__}:{TraceRecorder.__name__}"


class Watched(Callback):
    """A callback to find in the trace."""

    def after_loss(self, state: Any, logger: Any) -> None:
        self.loss = state.loss


def small() -> Any:
    """Short epochs, so that the steps of the trace are in several."""
    return parts.trainer(parts.wide(8, 8), parts.ready(4, 8, number=2), callbacks=[Watched()])


def traced(folder: Path, server: Any, ranks: int = 1, fit: int = 1, function: str = "small") -> Record:
    target = Target("function", f"tests.diagnosis.test_step_trace:{function}", fit=fit)
    return Study(folder, server=server).run([Trial("trace", target, _PROBE, ranks=ranks, time_limit=60)])["trace"]


@pytest.mark.parametrize(("ranks", "fit"), [(1, 1), (1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_three_steps_are_recorded_with_their_parts(tmp_path: Path, server: Any, ranks: int, fit: int) -> None:
    record = traced(tmp_path / "a {b}", server, ranks, fit)
    assert record.is_completed, record.details
    path = tmp_path / "steps.trace.json"
    assert copy_trace(record, path) == StepTrace(str(path), 3)
    names = Counter(each.get("name") for each in json.loads(path.read_text())["traceEvents"] if each.get("ph") == "X")
    assert sum(count for name, count in names.items() if name.startswith("ProfilerStep#")) == 3
    assert names["event/forward"] == names["event/backward"] == names["callback/Watched/after_loss"] == 3
    assert names["aten::addmm"] >= 9
    assert trace_file("trace", path) == path


def test_a_trace_may_be_compressed(tmp_path: Path, server: Any) -> None:
    path = tmp_path / "steps.trace.json.gz"
    assert not copy_trace(traced(tmp_path / "trials", server), path).error
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert trace_file("trace", path) == path


def fails() -> Any:
    raise ValueError("no data")


def test_a_trace_that_failed_says_why(tmp_path: Path, server: Any) -> None:
    failed = copy_trace(traced(tmp_path, server, function="fails"), tmp_path / "x.json")
    assert "no data" in failed.error
    assert str(failed) == f"The profiler's trace could not be recorded: {failed.error}"
    gone = Record("trace", "0f", "completed", 1.0, result={"steps": 3}, folder=str(tmp_path / "gone"))
    assert "No such file" in copy_trace(gone, tmp_path / "x.json").error
