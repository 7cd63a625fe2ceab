"""TorchProfiler: traces of PyTorch's profiler, with the spans of the loop in them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback
from composer.profiler import Profiler, ProfilerAction, TorchProfiler, TraceHandler, cyclic_schedule
from tests.callbacks.memory import Keeper
from tests.profiler.traces import events_of, is_within, named, profile

MEMORY: dict[str, Any] = {"torch_prof_record_shapes": True, "torch_prof_with_stack": True}


class Files(TraceHandler):
    def __init__(self) -> None:
        self.paths: list[Path] = []

    def process_chrome_json_trace_file(self, filepath):
        self.paths.append(filepath)


def run(folder: Path, schedule: Any = None, batches: int = 4, trainer: Any = None, **arguments: Any) -> list[Path]:
    """Train with the profiler of PyTorch; return the traces that it handed on."""
    files = Files()
    schedule = cyclic_schedule(warmup=1, active=2) if schedule is None else schedule
    arguments = {"sys_prof_cpu": False, "torch_prof_folder": str(folder), **arguments}
    profile(Profiler(schedule, files, **arguments), batches, **(trainer or {}))
    return files.paths


def test_spans_are_annotations_around_the_operators(tmp_path) -> None:
    [path] = run(tmp_path)
    assert path == tmp_path / "rank0.3.pt.trace.json"
    events = events_of(path)
    assert json.loads(path.read_text())["composer"] == {"rank": 0}
    operators, spans = named(events, "aten::linear"), named(events, "event/forward")
    assert len(operators) == 2
    assert all(is_within(*pair) for pair in zip(operators, spans, strict=True))
    steps = sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep#"))
    assert steps == ["ProfilerStep#1", "ProfilerStep#2"]
    assert all(is_within(span, named(events, step)[0]) for span, step in zip(spans, steps, strict=True))
    assert named(events, "[memory]")


def test_what_it_records_is_chosen(tmp_path) -> None:
    [path] = run(tmp_path, torch_prof_profile_memory=False, torch_prof_record_shapes=True)
    events = events_of(path)
    assert not named(events, "[memory]")
    assert named(events, "aten::linear")[0]["args"]["Input Dims"][0] == [2, 4]


def test_compresses(tmp_path) -> None:
    [path] = run(tmp_path, torch_prof_use_gzip=True)
    assert path.name == "rank0.3.pt.trace.json.gz"
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert named(events_of(path), "aten::linear")


def test_keeps_the_newest_and_hands_over_all(tmp_path) -> None:
    keeper = Keeper()
    run(tmp_path, lambda state: "active_and_save", torch_prof_num_traces_to_keep=2, trainer={"loggers": keeper})
    names = [f"rank0.{batch}.pt.trace.json" for batch in (3, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    folder = "night/torch_traces"
    assert keeper.files == [(f"{folder}/rank0.{batch}.pt.trace.json", False) for batch in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["warmup", "skip", "active_and_save"], [1]),  # the warm-up came to nothing
        (["active", "warmup", "active"], [1, 1]),
        (["skip", "skip", "active"], [1]),
        (["warmup", "warmup", "warmup"], []),
    ],
)
def test_windows_hold_their_batches(actions, expected, tmp_path) -> None:
    paths = run(tmp_path, lambda state: actions[state.timestamp.batch.value], batches=3)
    assert [len(named(events_of(path), "aten::linear")) for path in paths] == expected


def test_spans_that_began_before_or_end_after_do_no_harm(tmp_path) -> None:
    class Mark(Callback):
        def batch_start(self, state, logger):
            marker = state.profiler.marker("across", actions=list(ProfilerAction))
            if state.timestamp.batch.value in (0, 2):
                marker.start()
            else:
                marker.finish()

    actions = ["skip", "active", "active_and_save", "skip"]
    [path] = run(tmp_path, lambda state: actions[state.timestamp.batch.value], trainer={"callbacks": Mark()})
    assert len(named(json.loads(path.read_text())["traceEvents"], "across")) == 1


def test_an_error_leaves_no_profiler_at_work(tmp_path) -> None:
    class Fail(Callback):
        def after_loss(self, state, logger):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run(tmp_path, cyclic_schedule(warmup=0), trainer={"callbacks": Fail()})
    assert not list(tmp_path.iterdir())
    [path] = run(tmp_path)  # PyTorch refuses to have two
    assert path.exists()


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_timeline_of_memory(ending, tmp_path) -> None:
    keeper = Keeper()
    arguments = {"torch_prof_memory_filename": "{batch}.memory" + ending, **MEMORY}
    run(tmp_path, torch_prof_memory_remote_file_name="m{batch}", trainer={"loggers": keeper}, **arguments)
    assert (tmp_path / f"3.memory{ending}").stat().st_size > 0
    assert ("m3", False) in keeper.files


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_picture_of_memory(tmp_path) -> None:
    if torch.__version__ < (2, 11):
        with pytest.raises(ValueError, match=r"cannot be an HTML plot with torch 2\.10.* Use \.json\.gz"):
            run(tmp_path, torch_prof_memory_filename="{batch}.html", **MEMORY)
        return
    run(tmp_path, torch_prof_memory_filename="{batch}.html", **MEMORY)
    assert "<img" in (tmp_path / "3.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_filename": "a.html"}, "requires record_shapes=True and with_stack=True"),
        (
            {"memory_filename": "a.html", "record_shapes": True, "with_stack": True, "profile_memory": False},
            "requires pr",
        ),
        ({"memory_filename": "a.png", "record_shapes": True, "with_stack": True}, "must end in one of .html, .json"),
        ({"memory_filename": "{a}.json", "record_shapes": True, "with_stack": True}, "memory_filename='{a}.json' has"),
        ({"filename": "{bach}"}, "Did you mean 'batch'"),
        ({"num_traces_to_keep": -2}, "num_traces_to_keep"),
    ],
)
def test_refuses_impossible_arguments(arguments, message) -> None:
    with pytest.raises(ValueError) as raised:
        TorchProfiler(**arguments)
    assert message in str(raised.value)


@pytest.mark.gpu
def test_records_an_accelerator(tmp_path) -> None:
    if torch.accelerator.current_accelerator().type != "cuda":
        pytest.skip("needs CUDA")
    [path] = run(tmp_path, trainer={"device": "gpu"})
    categories = {event.get("cat") for event in events_of(path)}
    assert {"kernel", "gpu_user_annotation"} <= categories
