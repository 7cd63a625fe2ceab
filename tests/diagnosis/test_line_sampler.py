"""Samples of the lines that a thread executes."""

from __future__ import annotations

import threading
import time

import pytest

from composer.diagnosis.line_sampler import LineSampler


def waits(samples: int, sampler: LineSampler) -> None:
    """Wait until there are so many more samples."""
    enough = sampler.total + samples
    end = time.monotonic() + 30
    while sampler.total < enough and time.monotonic() < end:
        time.sleep(0.001)


def test_the_line_and_part_that_run_are_sampled() -> None:
    part = ["data"]
    with LineSampler(lambda: part[0], seconds=0.001) as sampler:
        waits(10, sampler)
        part[0] = "forward"
        waits(10, sampler)
    told = sampler.to_json()
    assert {each["part"] for each in told} == {"data", "forward"}
    assert all(each["in"] == "waits" for each in told if each["file"] == __file__)
    assert sum(each["count"] for each in told if each["file"] == __file__) > 10
    assert [each["count"] for each in told] == sorted((each["count"] for each in told), reverse=True)


def test_only_the_thread_that_creates_it_is_sampled() -> None:
    stop = threading.Event()

    def elsewhere() -> None:
        while not stop.wait(0.001):
            pass

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        with LineSampler(lambda: "data", seconds=0.001) as sampler:
            waits(5, sampler)
    finally:
        stop.set()
        thread.join()
    assert not any("elsewhere" in (each["in"] or "") for each in sampler.to_json())


def test_the_thread_ends_with_an_exception() -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), LineSampler(lambda: "data"):
        raise KeyError
    assert threading.active_count() == before
