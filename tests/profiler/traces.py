"""Traces for tests: short runs that write them, and what must hold for every trace."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from composer import Trainer
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule
from tests.common import classifier, labeled_data, trainer_of

NO_TORCH: dict[str, Any] = {"torch_prof_profile_memory": False, "torch_prof_with_flops": False}
PLAIN: dict[str, Any] = {"sys_prof_cpu": False, **NO_TORCH}


def profile(profiler: Profiler, batches: int = 4, **arguments: Any) -> Trainer:
    """Train and close a linear classifier with a profiler, on some batches an epoch."""
    with trainer_of(classifier(), labeled_data(batches), profiler=profiler, run_name="night", **arguments) as trainer:
        trainer.fit()
    return trainer


def profiler_in(folder: Path, schedule: Any = None, **arguments: Any) -> Profiler:
    """A profiler of the loop alone, unless told otherwise, that writes to a folder."""
    schedule = cyclic_schedule(warmup=1, active=2) if schedule is None else schedule
    handler = arguments.pop("handler", None) or JSONTraceHandler(str(folder))
    return Profiler(schedule, handler, **{**PLAIN, "torch_prof_folder": str(folder / "torch"), **arguments})


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, which is checked; what it says of itself is left out."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        trace = json.load(file)
    notes = notes_of(path) if isinstance(trace, list) else trace  # those of PyTorch's profiler are objects
    assert isinstance(notes["baseTimeNanoseconds"], int)
    events = trace["traceEvents"] if trace is notes else [event for event in trace if event["name"] not in notes]
    for event in events:
        assert event["ph"] in "BEXiCMsft", event
        assert event["ph"] == "M" or event["ts"] >= 0, event
        assert event["ph"] != "X" or event["dur"] >= 0, event
        assert {"name", "pid", "tid"} <= set(event), event
    check_nesting(events)
    return events


def notes_of(path: Path) -> dict[str, Any]:
    """What a trace says of itself, by name."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        trace = json.load(file)
    return {event["name"]: event["args"]["value"] for event in trace if "value" in event.get("args", {})}


def check_nesting(events: list[dict[str, Any]], slack: float = 0.002) -> None:
    """Check that of two spans of a thread one contains the other or ends before it begins; times in microseconds."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for spans in threads.values():
        open_until: list[tuple[float, str]] = []
        for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
            end = span["ts"] + span["dur"]
            while open_until and open_until[-1][0] <= span["ts"] + slack:
                open_until.pop()
            assert not open_until or end <= open_until[-1][0] + slack, (open_until[-1], span)
            open_until.append((end, span["name"]))


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The events of a name, metadata aside."""
    return [event for event in events if event["name"] == name and event["ph"] != "M"]


def is_within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether a span lies in another."""
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
