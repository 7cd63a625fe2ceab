"""A thread that holds the interpreter is named where the training waits for it, and no other thread is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.diagnosis.doctor import doctor
from composer.diagnosis.line_sampler import LineSampler
from composer.diagnosis.thread_watch import ThreadWatch, holding_thread
from composer.diagnosis.verdict import _LIMITS, judge
from tests.diagnosis.test_doctor import _SCRIPT, forked

assert forked  # a fixture
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads clocks of threads by their numbers")
stop = threading.Event()
_values = np.random.default_rng(0).random(2000)


def count() -> None:
    total = 0
    while not stop.is_set():
        total += sum(range(50))


def nap() -> None:
    while not stop.wait(0.005):
        pass


def sort() -> None:
    values = np.random.default_rng(0).random(200_000)
    while not stop.is_set():
        np.sort(values)  # without the lock


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Starts a function in a thread that ends with the test."""
    threads: list[threading.Thread] = []

    def begin(function: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=function, name=function.__name__))
        threads[-1].start()

    yield begin
    stop.set()
    for each in threads:
        each.join()
    stop.clear()


def steps(seconds: float) -> None:
    """What a training does: Python, with the lock released now and then."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.sort(_values)  # releases the lock
        sum(range(500))


def watched() -> dict[str, Any]:
    watch = ThreadWatch()
    watch.begin()
    steps(0.4)
    watch.end()
    with LineSampler(lambda: "forward", threads=watch):
        steps(0.4)
    return watch.to_json()


def test_a_thread_in_python_code_is_found_with_its_line(start: Any) -> None:
    start(count)
    start(nap)
    found = watched()
    assert [each["thread"] for each in found["threads"]] == ["count"]
    assert found["threads"][0]["in"] == "count"
    assert Path(found["threads"][0]["file"]).name == "test_thread_watch.py"
    assert found["threads"][0]["held"] > 0.05  # little on a busy computer
    assert found["blocked"] > 0.05


@pytest.mark.parametrize("function", [nap, sort])
def test_a_thread_that_leaves_the_interpreter_to_others_is_none(start: Any, function: Callable[[], None]) -> None:
    start(function)
    found = watched()
    share, _ = holding_thread({"threads": found, "facts": {"data": {}}}, {})
    assert share < 0.15


def test_threads_that_end_are_left_out(start: Any) -> None:
    watch = ThreadWatch()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    watch.begin()
    ended.set()
    thread.join()
    watch.end()
    watch.sample(sys._current_frames())
    assert watch.to_json()["threads"] == []


THREAD = {"thread": "poll", "held": 0.5, "file": "train.py", "line": 7, "in": "poll"}
FACTS = {"data": {"workers": 2}, "float64": False, "anomaly": False, "optimizers": [], "device": "cpu"}


def result(parts: dict[str, float], blocked: float, **facts: Any) -> dict[str, Any]:
    return {"steps": [parts], "facts": {**FACTS, **facts}, "threads": {"threads": [THREAD], "blocked": blocked}}


def test_the_thread_is_the_verdict_if_the_training_waits_for_it() -> None:
    verdict = judge(result({"forward": 1.0}, blocked=0.4))
    assert verdict.text == "Bound by the host: thread poll runs train.py:7 (poll) for 50% of the time."
    assert (verdict.cause, verdict.share, verdict.where) == ("host", 0.4, "train.py:7 (poll)")
    assert judge(result({"forward": 1.0}, blocked=0.1)).cause == "none"


def test_waits_for_data_workers_are_not_those_for_a_thread() -> None:
    assert judge(result({"data": 0.5, "forward": 0.5}, blocked=0.55)).cause == "data"
    own = judge(result({"data": 0.2, "forward": 0.8}, blocked=0.5, data={"workers": 0}))
    assert own.cause == "host"


def test_a_larger_cause_comes_first_and_the_thread_is_evidence() -> None:
    verdict = judge(result({"callback Nap": 0.9, "forward": 0.1}, blocked=0.2))
    assert verdict.cause == "callback"
    assert verdict.evidence[-1].startswith("also bound by the host: thread poll runs train.py:7")


def test_a_device_that_always_has_work_does_not_wait_for_the_thread() -> None:
    busy = {**result({"forward": 1.0}, blocked=0.6, device="cuda"), "starved": [{"forward": 0.05}]}
    assert judge(busy).cause == "none"
    assert judge({**busy, "starved": [{"forward": 0.4}]}).share == pytest.approx(0.4)


_POLLS = """
def polls():
    total = 0
    while True:
        total += sum(range(50))

import threading
threading.Thread(target=polls, name="poller", daemon=True).start()
width = 512
layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(4)]
net = torch.nn.Sequential(*layers, torch.nn.Linear(width, 2))
model = ComposerClassifier(net, num_classes=2)
data = DataLoader(TensorDataset(torch.randn(1024, width), torch.randint(2, (1024,))), batch_size=128)
Trainer(model=model, train_dataloader=data, max_duration="99ep", progress_bar=False,
        optimizers=torch.optim.SGD(net.parameters(), 0.01)).fit()
"""


@pytest.mark.usefixtures("forked")
def test_the_doctor_names_a_thread_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_LIMITS, "thread", 0.03)  # on a busy computer, both threads wait for a core too
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT + _POLLS)
    report = doctor([str(script)], steps=20, remedies=[])
    told = " ".join([report.verdict.text, *report.verdict.evidence])
    assert "ound by the host: thread poller runs train.py:" in told
