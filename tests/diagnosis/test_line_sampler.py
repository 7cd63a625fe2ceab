"""Samples of the lines that a thread executes."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from composer.diagnosis.line_sampler import LineSampler


def waits(seconds: float, sampler: LineSampler) -> None:
    """Wait until so many seconds more have been sampled."""
    enough = sampler.total + seconds
    end = time.monotonic() + 30
    while sampler.total < enough and time.monotonic() < end:
        time.sleep(0.001)


def test_the_line_and_part_that_run_are_sampled() -> None:
    part = ["data"]
    with LineSampler(lambda: part[0], seconds=0.001) as sampler:
        waits(0.1, sampler)
        part[0] = "forward"
        waits(0.1, sampler)
    told = sampler.to_json()
    assert {each["part"] for each in told} == {"data", "forward"}
    waiting = sum(each["seconds"] for each in told if each["file"] == __file__ and each["in"] == "waits")
    assert waiting > 0.8 * sampler.total > 0.15
    assert [each["seconds"] for each in told] == sorted((each["seconds"] for each in told), reverse=True)


def holds_the_lock(seconds: float) -> None:
    """Run Python code and long calls into C, which let no other thread run."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(number * number for number in range(2000))
        sum(range(200_000))


def test_code_that_holds_the_lock_counts_as_much_as_code_that_releases_it() -> None:
    spent = {"holds": 0.0, "releases": 0.0}
    with LineSampler(lambda: "data") as sampler:
        for _ in range(20):
            begin = time.perf_counter()
            holds_the_lock(0.01)
            spent["holds"] += time.perf_counter() - begin
            begin = time.perf_counter()
            time.sleep(0.01)
            spent["releases"] += time.perf_counter() - begin
    told = sampler.to_json()
    held = sum(each["seconds"] for each in told if (each["in"] or "").startswith("holds_the_lock"))
    # With equal weights and the usual interval of switches it is a third of that.
    assert held / sampler.total == pytest.approx(spent["holds"] / sum(spent.values()), abs=0.2)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_only_the_thread_that_creates_it_is_sampled() -> None:
    stop = threading.Event()

    def elsewhere() -> None:
        while not stop.wait(0.001):
            pass

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        with LineSampler(lambda: "data", seconds=0.001) as sampler:
            waits(0.01, sampler)
    finally:
        stop.set()
        thread.join()
    assert not any("elsewhere" in (each["in"] or "") for each in sampler.to_json())


def test_the_thread_ends_with_an_exception() -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), LineSampler(lambda: "data"):
        raise KeyError
    assert threading.active_count() == before
