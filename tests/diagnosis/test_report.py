"""The report as text and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer.diagnosis.remedies import Remedy
from composer.diagnosis.report import Report, Tried
from composer.diagnosis.verdict import Verdict
from composer.statistics.paired import Ratio

DATA = Verdict("data", "Bound by data.", 0.8, "train.py:3 (Rows.__getitem__)", ("a step waits 8 of 10 ms",))
SHARES = {"data": 0.8, "forward": 0.1995, "loss": 0.0002, "rest": 0.0003}


def tried(name: str, value: float, **arguments: Any) -> Tried:
    lines = arguments.pop("lines", f"Trainer(..., {name}=True)")
    remedy = Remedy(name, (f"{name}=True",), lines=lines, exact=arguments.pop("exact", True))
    return Tried(remedy, Ratio(value, value - 0.1, value + 0.1), **{"pays": True, "difference": "none", **arguments})


def report(**arguments: Any) -> Report:
    return Report(DATA, 0.01, SHARES, **arguments)


def test_text_of_a_verdict() -> None:
    text = str(report(seconds=12.3))
    assert text.startswith("Bound by data.\n  a step waits 8 of 10 ms\n")
    assert "A step takes 10 ms:\n   80.0%  waiting for data\n   19.9%  forward" in text or "20.0%  forward" in text
    assert "loss" not in text  # too small to be shown
    assert "in 12 s" in text
    assert "Remedies" not in text


def test_remedies_are_sorted_and_the_best_is_written() -> None:
    text = str(report(tried=[tried("fused", 1.3), tried("foreach", 1.1, pays=False), tried("compile", 2.0)]))
    assert text.index("compile") < text.index("fused") < text.index("foreach")
    assert "(not more than noise)" in text
    assert text.split("Write:\n")[1].splitlines()[0] == "  Trainer(..., compile=True)"


@pytest.mark.parametrize("pays", [True, False])
def test_workers_that_were_measured_to_be_useless_are_not_advised(pays: bool) -> None:
    made = report(tried=[tried("workers-1", 0.9, pays=False), tried("workers-2", 1.1, pays=pays)])
    for text in (str(made), made.to_json()["verdict"]["advice"]):
        assert ("more workers" in text) == pays
        assert "make train.py:3 (Rows.__getitem__) faster" in text


def test_lines_of_several_are_all_written() -> None:
    lines = "from composer.algorithms import ChannelsLast\nTrainer(..., algorithms=[ChannelsLast()])"
    text = str(report(tried=[tried("channels_last", 1.5, lines=lines)]))
    assert "channels_last: Trainer(..., algorithms=[ChannelsLast()])" in text
    assert "Write:\n  from composer.algorithms import ChannelsLast\n  Trainer(" in text


def test_remedies_that_change_numbers_are_not_written() -> None:
    said = [tried("bf16", 3.0, exact=False), tried("microbatch", 2.0, difference="numbers"), tried("fused", 1.2)]
    made = report(tried=said)
    assert [one.remedy.name for one in made.paying] == ["fused"]
    assert str(made).count("(changes numbers)") == 2
    assert [each["exact"] for each in made.to_json()["remedies"]] == [False, False, True]


def test_what_else_a_remedy_changes_is_told() -> None:
    told = [tried("fused", 1.2, difference="rounding"), tried("workers", 1.3, difference="batches")]
    text = str(report(tried=[*told, tried("compile", 1.5, break_even=1234)]))
    assert "last digits" in text
    assert "random augmentation" in text
    assert "1,234 steps" in text


def test_a_remedy_that_does_not_run() -> None:
    made = report(tried=[Tried(Remedy("pin"), None, error="RuntimeError: no accelerator")])
    assert "pin: does not run: RuntimeError: no accelerator" in str(made)
    assert made.to_json()["remedies"][0]["ratio"] is None


def test_the_slowest_and_the_fastest_rank() -> None:
    ranks = [
        {"rank": rank, "waiting": wait, "seconds": 0.01, "parts": {"forward": 0.01 - wait, "communication": wait}}
        for rank, wait in enumerate((0.004, 0.0, 0.002))
    ]
    text = str(report(ranks=ranks))
    assert "Of 3 ranks" in text
    assert "rank 1 waits 0 ms a step for others: forward 10 ms" in text
    assert "rank 0 waits 4 ms a step for others" in text
    assert "rank 2" not in text


def test_json_has_everything_and_can_be_read() -> None:
    waits = [{"file": "train.py", "line": 3, "in": "loss", "why": "reads a number", "count": 2.0}]
    made = report(tried=[tried("fused", 1.2)], waits=waits, would_save={"evaluation": 0.5}, noise=Ratio(1.0, 0.9, 1.1))
    told = json.loads(json.dumps(made.to_json()))
    assert (told["ok"], told["verdict"]["cause"], told["verdict"]["share"]) == (False, "data", 0.8)
    assert told["remedies"][0]["ratio"]["gain"] == 1.2 - 1
    assert told["shares"] == SHARES
    assert "train.py:3 (loss): reads a number, 2 times" in str(made)
    assert "+50%  evaluation" in str(made)


def test_the_cost_of_the_clock_is_told_if_it_matters() -> None:
    assert "A step takes 10 ms, without 0.2 ms to measure it:" in str(report(clock=2e-4))
    assert "A step takes 10 ms:" in str(report(clock=2e-5))
    assert report(clock=2e-5).to_json()["seconds_of_clock"] == 2e-5


def test_a_remedy_that_pays_without_a_bottleneck_is_a_second_finding() -> None:
    healthy = Verdict("none", "No bottleneck: forward, loss and backward take 62% of the step.", 0.62)
    found = Report(healthy, 0.01, {"forward": 1.0}, tried=[tried("fused", 1.3), tried("foreach", 1.1, pays=False)])
    lines = str(found).splitlines()
    assert lines[0] == healthy.text
    assert lines[1] == "A remedy pays nevertheless: fused makes it faster by +30% [+20%, +40%]."
    assert found.ok
    told = found.to_json()
    assert (told["ok"], told["verdict"]["cause"], told["best"]["name"]) == (True, "none", "fused")
    bound = report(tried=[tried("fused", 1.3)])
    assert "A remedy pays: fused makes it faster by" in str(bound)
    assert not bound.ok
    neither = Report(healthy, 0.01, {"forward": 1.0}, tried=[tried("foreach", 1.1, pays=False)])
    assert neither.to_json()["best"] is None
    assert "pays" not in str(neither)


def test_a_healthy_run_is_ok() -> None:
    assert Report(Verdict("none", "No bottleneck."), 0.01, {"forward": 1.0}).ok
    assert not report().ok
