"""JSONTraceHandler: real traces, their files, and the merged trace of one and of two processes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer import Callback, Engine, State, Timestamp
from composer.profiler import JSONTraceHandler, Profiler, ProfilerAction, cyclic_schedule
from composer.profiler.json_trace_handler import _clock_offset_ns
from composer.profiler.trace_merging import TraceFile
from composer.warnings import ComposerWarning
from tests import loop
from tests.callbacks.memory import Keeper
from tests.profiler.traces import events_of, is_within, named, notes_of, profile, profiler_in
from tests.ranks import Ranks

TORCH: dict[str, Any] = {"torch_prof_profile_memory": True}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Mark(Callback):
    """A moment and a curve, in each step, and a span of another thread."""

    def batch_start(self, state, logger):
        state.profiler.marker("now", categories=["a", "b"]).instant()
        state.profiler.marker("curve").counter({"x": 1.5})
        thread = threading.Thread(target=self.work, args=(state,), name="helper")
        thread.start()
        thread.join()

    def work(self, state):
        with state.profiler.marker("elsewhere"):
            pass


@pytest.mark.parametrize(("batches", "active", "expected"), [(2, 1000, "BEBE"), (2, 3, "BEBE"), (4, 2, "BEBE")])
def test_epochs_have_a_beginning_and_an_end(tmp_path, batches, active, expected) -> None:
    schedule = cyclic_schedule(wait=0, warmup=0, active=active, repeat=0)
    profile(profiler_in(tmp_path, schedule), batches, max_duration="2ep")
    ends = named(json.loads((tmp_path / "merged_trace.json").read_text()), "event/epoch")
    assert "".join(event["ph"] for event in ends) == expected
    assert [event["args"]["epoch"] for event in ends if event["ph"] == "B"] == [0, 1]


def test_a_trace_of_the_loop(tmp_path) -> None:
    before = time.time_ns()
    profile(profiler_in(tmp_path, cyclic_schedule(warmup=0, active=2)), callbacks=Mark())
    after = time.time_ns()
    path = tmp_path / "ep0-ba2-rank0.json"
    notes, events = notes_of(path), events_of(path)
    for file in tmp_path.glob("*.json"):  # the merged trace too
        assert type(json.loads(file.read_text())) is list
    assert {**notes, "baseTimeNanoseconds": 0} == {
        "baseTimeNanoseconds": 0,
        "run_name": "night",
        "global_rank": 0,
        "clock_offset_ns": 0,
    }
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert before <= notes["baseTimeNanoseconds"] + times[0] * 1e3
    assert notes["baseTimeNanoseconds"] + times[-1] * 1e3 <= after

    for name in ("dataloader", "batch", "train_batch", "forward", "loss", "backward"):
        assert [event["args"]["batch"] for event in named(events, f"event/{name}")] == [0, 1]
    for inner, outer in (("forward", "train_batch"), ("train_batch", "batch")):
        pairs = zip(named(events, f"event/{inner}"), named(events, f"event/{outer}"), strict=True)
        assert all(is_within(*pair) for pair in pairs)

    moment, curve = named(events, "now")[0], named(events, "curve")[0]
    assert (moment["ph"], moment["cat"], moment["args"]) == ("i", "a,b", {"epoch": 0, "batch": 0})
    assert (curve["ph"], curve["args"]) == ("C", {"x": 1.5})
    main = named(events, "event/batch")[0]["tid"]
    helpers = {event["tid"] for event in named(events, "elsewhere")}
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads[main] == "MainThread"
    assert main not in helpers
    assert {threads[helper] for helper in helpers} == {"helper"}


def test_curves_have_gaps_where_a_value_is_not_finite(tmp_path) -> None:
    handler = JSONTraceHandler(str(tmp_path), "trace.json", merged_trace_filename=None)
    state = State(model=nn.Linear(1, 1))
    engine = Engine(state, callbacks=handler)
    for number in (torch.tensor(1.5), float("nan"), float("inf")):
        handler.process_counter_event("curve", [], state.timestamp, 10**18, {"x": number, "y": 2})
    handler.save(state, engine.logger)
    points = named(events_of(tmp_path / "trace.json"), "curve")
    assert [point["args"] for point in points] == [{"x": 1.5, "y": 2.0}, {"y": 2.0}, {"y": 2.0}]


def test_operators_lie_within_the_spans_of_the_loop(tmp_path) -> None:
    profile(profiler_in(tmp_path, **TORCH))
    events = events_of(tmp_path / "merged_trace.json")
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(rows.values()) >= {"rank 0: loop", "rank 0: python"}
    spans = [event for event in named(events, "event/forward") if rows[event["pid"]] == "rank 0: loop"]
    steps = [event for event in named(events, "event/batch") if rows[event["pid"]] == "rank 0: loop"]
    operators = named(events, "aten::linear")
    assert len(spans) == len(operators) == 2
    assert all(is_within(*pair) for pair in zip(operators, spans, strict=True))
    updates = [event for event in events if event["name"].startswith("Optimizer.step")]
    assert all(is_within(*pair) for pair in zip(updates, steps, strict=True))


def test_a_file_for_each_window_and_one_for_all(tmp_path) -> None:
    schedule = cyclic_schedule(warmup=0, active=1, wait=1, repeat=0)
    profile(profiler_in(tmp_path, schedule, **TORCH), max_duration="2ep")
    windows = ["ep0-ba2-rank0.json", "ep0-ba4-rank0.json", "ep1-ba6-rank0.json", "ep1-ba8-rank0.json"]
    assert names_in(tmp_path) == [*windows, "merged_trace.json", "torch"]
    merged = events_of(tmp_path / "merged_trace.json")
    batches = [event["args"]["batch"] for event in named(merged, "event/backward") if "batch" in event["args"]]
    assert batches == [1, 3, 5, 7]
    assert len(named(merged, "aten::linear")) == 4


@pytest.mark.parametrize(("keep", "windows", "merged"), [(1, [4], [4]), (2, [3, 4], [3, 4]), (9, [1, 2, 3, 4], None)])
def test_keeps_the_newest(keep, windows, merged, tmp_path) -> None:
    handler = JSONTraceHandler(str(tmp_path), "ba{batch}.json", num_traces_to_keep=keep)
    profile(profiler_in(tmp_path, lambda state: ProfilerAction.ACTIVE_AND_SAVE, handler=handler))
    assert names_in(tmp_path) == [*(f"ba{batch}.json" for batch in windows), "merged_trace.json"]
    events = named(events_of(tmp_path / "merged_trace.json"), "event/batch")
    assert [event["args"]["batch"] + 1 for event in events] == (merged or windows)


def test_keeps_none_where_a_logger_does(tmp_path) -> None:
    keeper = Keeper()
    handler = JSONTraceHandler(str(tmp_path), "ba{batch}.json", "{run_name}/{batch}", num_traces_to_keep=0)
    profiler = profiler_in(
        tmp_path,
        lambda state: ProfilerAction.ACTIVE_AND_SAVE,
        handler=handler,
        torch_prof_num_traces_to_keep=0,
        torch_prof_remote_file_name="{run_name}/t{batch}",
        **TORCH,
    )
    profile(profiler, batches=2, loggers=keeper)
    assert [path.name for path in tmp_path.rglob("*.json")] == ["merged_trace.json"]
    events = events_of(tmp_path / "merged_trace.json")
    assert len(named(events, "aten::linear")) == 1
    merged = ("night/traces/merged_trace.json", True)
    assert keeper.files == [
        *(("night/t1", False), ("night/1", False), merged),
        *(("night/t2", False), ("night/2", False), merged),
    ]


def test_without_a_merged_trace(tmp_path) -> None:
    keeper = Keeper()
    handler = JSONTraceHandler(str(tmp_path), remote_file_name=None, merged_trace_filename=None)
    profile(profiler_in(tmp_path, handler=handler), loggers=keeper)
    assert names_in(tmp_path) == ["ep0-ba3-rank0.json"]
    assert keeper.files == []


@pytest.mark.parametrize(("overwrite", "names"), [(True, []), (False, ["ep0-ba3-rank0.1.json", "merged_trace.1.json"])])
def test_files_of_an_earlier_run(overwrite, names, tmp_path) -> None:
    for _ in range(2):
        profile(profiler_in(tmp_path, handler=JSONTraceHandler(str(tmp_path), overwrite=overwrite)))
    assert names_in(tmp_path) == sorted(["ep0-ba3-rank0.json", "merged_trace.json", *names])
    for path in tmp_path.iterdir():
        assert len(named(events_of(path), "event/batch")) == 2


def test_a_span_over_several_windows_is_in_the_one_in_which_it_ends(tmp_path) -> None:
    handler = JSONTraceHandler(str(tmp_path), "ba{batch}.json", merged_trace_filename=None)
    state = State(model=nn.Linear(1, 1))
    engine = Engine(state, callbacks=handler)
    engine.run_event("init")
    for batch, is_start in ((1, True), (2, False), (3, False)):  # nothing is left to end in the third
        state.timestamp = Timestamp(batch=batch)
        handler.process_duration_event("long", [], is_start, state.timestamp, 10**18 + batch)
        handler.save(state, engine.logger)
    found = [len(named(events_of(tmp_path / f"ba{batch}.json"), "long")) for batch in (1, 2, 3)]
    assert found == [0, 1, 0]


def test_says_which_traces_lie_elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = TraceFile(tmp_path / "of_another_machine.json", 1)
    monkeypatch.setattr("composer.dist.all_gather_object", lambda mine: [mine, [there]])
    handler = JSONTraceHandler(str(tmp_path))
    state = State(model=nn.Linear(1, 1))
    engine = Engine(state, callbacks=handler)
    engine.run_event("init")
    handler.process_instant_event("here", [], state.timestamp, 10**18)
    with pytest.warns(ComposerWarning, match=r"merged_trace\.json lacks the traces of ranks 1, which are on other"):
        handler.save(state, engine.logger)
    assert len(named(events_of(tmp_path / "merged_trace.json"), "here")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"merged_trace_filename": "{batch}.json"}, "merged_trace_filename='{batch}.json' has the placeholder {batch}"),
        ({"merged_trace_remote_file_name": "{runname}"}, "Did you mean 'run_name'"),
        ({"filename": "{bach}"}, "Did you mean 'batch'"),
        ({"num_traces_to_keep": -3}, "num_traces_to_keep"),
    ],
)
def test_refuses_impossible_arguments(arguments, message) -> None:
    with pytest.raises(ValueError) as raised:
        JSONTraceHandler(**arguments)
    assert message in str(raised.value)


# ---------------------------------------------------------------------------------------------------- processes


@pytest.mark.parametrize(("mine", "first", "wait", "expected"), [(5000, 0, 900, 5000), (500, 0, 900, 0), (0, 0, 1, 0)])
def test_clocks_differ_where_waiting_does_not_explain_it(mine, first, wait, expected, monkeypatch) -> None:
    times = iter([mine - wait, mine, mine + wait])
    monkeypatch.setattr("composer.dist.get_world_size", lambda: 2)
    monkeypatch.setattr("composer.dist.barrier", lambda: None)
    monkeypatch.setattr("composer.dist.all_gather_object", lambda value: [first, value])
    monkeypatch.setattr("composer.profiler.json_trace_handler.time.time_ns", lambda: next(times))
    assert _clock_offset_ns() == expected


def _train(folder: str) -> None:
    """Profile three batches on each rank."""
    state = State(torch.nn.Sequential(torch.nn.Linear(4, 1)), max_duration="3ba", run_name="night")
    handler = JSONTraceHandler(folder, num_traces_to_keep=1)
    schedule = cyclic_schedule(warmup=0, active=1, repeat=2)
    profiler = Profiler(schedule, handler, torch_prof_folder=folder + "/torch", sys_prof_cpu=False)
    profiler.bind_to_state(state)
    state.model.loss = lambda outputs, batch: outputs.sum()
    state.optimizers = [torch.optim.SGD(state.model.parameters(), lr=0.1)]
    engine = Engine(state)
    engine.run_event("init")
    loop.fit(engine, [torch.ones(2, 4)] * 3)
    engine.close()


def test_two_processes(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.run(_train, str(tmp_path))
    assert names_in(tmp_path) == ["ep0-ba2-rank0.json", "ep0-ba2-rank1.json", "merged_trace.json", "torch"]
    events = events_of(tmp_path / "merged_trace.json")
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(rows.values()) >= {f"rank {rank}: {kind}" for rank in (0, 1) for kind in ("loop", "python")}
    for rank in (0, 1):
        [span] = [e for e in named(events, "event/forward") if rows[e["pid"]] == f"rank {rank}: loop"]
        [operator] = [e for e in named(events, "aten::linear") if rows[e["pid"]] == f"rank {rank}: python"]
        assert is_within(operator, span)
