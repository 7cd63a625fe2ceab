"""OOMObserver: the files that it writes when memory runs out, and that it does not interfere."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest

import composer.callbacks.oom_observer as module
from composer.callbacks import OOMObserver
from composer.callbacks._flamegraph import render_flamegraph
from composer.warnings import NoEffectWarning
from tests.callbacks.cases import Case, Run, run_with
from tests.callbacks.memory import SNAPSHOT, Keeper, history
from tests.common import At

__all__ = ["history"]

CASE = Case(make=lambda folder: OOMObserver(folder=str(folder)), warns=True)

ENDINGS = [
    "memory_flamegraph.svg",
    "segment_flamegraph.svg",
    "segment_plot.html",
    "snapshot.pickle",
    "trace_plot.html",
]


def run_out_of_memory(observer: OOMObserver, history: Any, loggers: Any = None, **arguments: Any) -> Run:
    """Return a run whose second batch has a failing allocation."""

    def fail(state: Any) -> None:
        if state.timestamp.batch == 1:
            for observe in history.observers:
                observe(0, 1, 2, 3)

    run = run_with(observer, At("before_forward", fail), run_name="night", loggers=loggers, **arguments)
    run.trainer.fit()
    return run


def test_writes_its_files_when_memory_runs_out(history, tmp_path, caplog) -> None:
    run = run_out_of_memory(OOMObserver(50, str(tmp_path / "{run_name}"), "rank{rank}-ba{batch}"), history)
    run.trainer.close()
    names = sorted(path.name for path in (tmp_path / "night").iterdir())
    assert names == [f"rank0-ba1_{ending}" for ending in ENDINGS]
    with (tmp_path / "night" / "rank0-ba1_snapshot.pickle").open("rb") as file:
        assert pickle.load(file) == SNAPSHOT
    picture = (tmp_path / "night" / "rank0-ba1_memory_flamegraph.svg").read_text()
    assert "forward" in picture
    assert history.calls == [("record", 50), ("stop", None)]
    assert "Out of memory; see" in caplog.text


def test_a_run_with_enough_memory_leaves_nothing(history, tmp_path) -> None:
    run = run_with(OOMObserver(folder=str(tmp_path)))
    run.trainer.fit()
    run.trainer.close()
    assert not list(tmp_path.iterdir())


def test_uploads_the_files_and_replaces_its_own(history, tmp_path) -> None:
    keeper = Keeper()
    observer = OOMObserver(folder=str(tmp_path), remote_file_name="{run_name}/oom")
    run = run_out_of_memory(observer, history, [keeper])
    first, keeper.files = sorted(keeper.files), []
    assert first == [(f"night/oom/rank0_oom_{ending}", False) for ending in ENDINGS]
    observer.on_out_of_memory()
    assert sorted(keeper.files) == [(name, True) for name, _ in first]
    run.trainer.close()
    observer.on_out_of_memory()
    assert len(keeper.files) == 5


@pytest.mark.parametrize("broken", ["one", "all"])
def test_a_failure_to_write_hides_nothing(broken, history, tmp_path, monkeypatch, caplog) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("the host, too")

    if broken == "one":
        monkeypatch.setattr(module, "WRITERS", {**module.WRITERS, "trace_plot.html": fail})
    else:
        monkeypatch.setattr(module, "take_snapshot", fail)
    run_out_of_memory(OOMObserver(folder=str(tmp_path)), history).trainer.close()
    assert len(list(tmp_path.iterdir())) == (4 if broken == "one" else 0)
    assert "the host, too" in caplog.text


def test_the_allocator_does_not_keep_it_alive(history, tmp_path) -> None:
    observer = OOMObserver(folder=str(tmp_path))
    run = run_out_of_memory(observer, history)
    run.trainer.close()
    alive = weakref.ref(observer)
    del observer, run
    gc.collect()
    assert alive() is None
    history.observers[0](0, 1, 2, 3)


def test_does_not_overwrite_files_of_an_earlier_run(history, tmp_path) -> None:
    run_out_of_memory(OOMObserver(folder=str(tmp_path)), history).trainer.close()
    with pytest.raises(FileExistsError, match=r"rank0_oom_snapshot\.pickle exists"):
        run_with(OOMObserver(folder=str(tmp_path)))
    run_out_of_memory(OOMObserver(folder=str(tmp_path), overwrite=True), history).trainer.close()


def test_warns_without_cuda() -> None:
    with pytest.warns(NoEffectWarning, match="this run is on cpu"):
        run_with(OOMObserver())


@pytest.mark.parametrize(
    ("arguments", "message"), [({"max_entries": 0}, "max_entries"), ({"filename": "{rnk}"}, "Did you mean 'rank'")]
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        OOMObserver(**arguments)


# ---------------------------------------------------------------------------------------------------- flame graphs


def boxes(picture: str) -> dict[str, tuple[float, float, float]]:
    """Return left edge, width and top of each frame's box."""
    import xml.etree.ElementTree as ElementTree

    space = "{http://www.w3.org/2000/svg}"
    found = {}
    for group in ElementTree.fromstring(picture).iter(f"{space}g"):
        title, box = group.find(f"{space}title"), group.find(f"{space}rect")
        found[title.text.split(":")[0]] = tuple(float(box.get(key)) for key in ("x", "width", "y"))
    return found


def test_boxes_are_as_wide_as_their_fraction_and_on_top_of_their_callers() -> None:
    found = boxes(render_flamegraph("main;a;x 1\nmain;b 3\n\nother 4\n"))
    assert {name: box[1] for name, box in found.items()} == {
        "all": 1200,
        "main": 600,
        "a": 150,
        "x": 150,
        "b": 450,
        "other": 600,
    }
    assert found["b"][0] == found["a"][0] + 150
    assert found["x"][2] < found["a"][2] == found["b"][2] < found["main"][2] < found["all"][2]


def test_names_may_be_anything() -> None:
    assert '<a & "b">' in boxes(render_flamegraph('<a & "b"> 3'))
    assert boxes(render_flamegraph("")) == {"all": (0, 0, 0)}
    with pytest.raises(ValueError, match="must end in a space and its size"):
        render_flamegraph("main")


@pytest.mark.gpu
def test_observes_a_device(tmp_path) -> None:
    import torch

    if torch.accelerator.current_accelerator().type != "cuda":
        pytest.skip("needs CUDA")

    def fail(state: Any) -> None:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**60, device="cuda")

    run = run_with(OOMObserver(folder=str(tmp_path)), At("fit_start", fail), device="gpu")
    run.trainer.fit()
    run.trainer.close()
    assert len(list(tmp_path.iterdir())) == 5
