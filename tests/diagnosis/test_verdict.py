"""The verdict of measured steps."""

from __future__ import annotations

from typing import Any

import pytest

from composer.diagnosis.step_split import shares_of
from composer.diagnosis.verdict import judge

FACTS: dict[str, Any] = {"data": {"workers": 0}, "float64": False, "anomaly": False, "optimizers": []}
HEALTHY = {"forward": 0.3, "backward": 0.5, "data": 0.05, "optimizer": 0.1, "rest": 0.05}


def measured(parts: dict[str, float], facts: Any = (), **others: Any) -> dict[str, Any]:
    """What a recorder returns."""
    return {"steps": [parts, parts], "facts": FACTS | dict(facts), **others}


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("data", "data"),
        ("callback Slow", "callback"),
        ("method Slow", "method"),
        ("logger Slow", "logging"),
        ("logging", "logging"),
        ("evaluation", "evaluation"),
        ("saving", "saving"),
        ("metrics", "metrics"),
        ("schedules", "schedules"),
    ],
)
def test_a_part_that_takes_half_of_the_step_is_the_cause(part: str, cause: str) -> None:
    verdict = judge(measured({**HEALTHY, part: 1.0}))
    assert verdict.cause == cause
    assert 0.4 < verdict.share < 0.6
    assert verdict.advice


def test_nothing_is_wrong_if_computation_dominates() -> None:
    verdict = judge(measured(HEALTHY))
    assert not verdict.is_found
    assert "80%" in verdict.text


@pytest.mark.parametrize("part", ["data", "evaluation", "saving", "metrics"])
def test_the_line_of_the_users_code_is_named(part: str) -> None:
    line = {"part": part, "file": "data.py", "line": 7, "in": "Rows.__getitem__"}
    lines = [{**line, "seconds": 9.0}, {"part": part, "file": None, "line": None, "in": None, "seconds": 1.0}]
    verdict = judge(measured({**HEALTHY, part: 2.0}, lines=lines, sampled_seconds=10.0))
    assert verdict.where == "data.py:7 (Rows.__getitem__)"
    assert any("90%" in each for each in verdict.evidence)


def test_many_small_operators_are_bound_by_the_host() -> None:
    work = {"count": 1000, "small": 1000, "elements": 10_000, "flops": 0}
    operators = {"parts": {"forward": work, "backward": work}, "lines": [], "waits": []}
    steps = {"forward": 0.01, "backward": 0.01}
    assert judge(measured(steps, operators=operators, seconds_per_operator=3e-6)).cause == "host"
    few = {name: {**each, "small": 100} for name, each in operators["parts"].items()}
    told = {**operators, "parts": few}
    assert judge(measured(steps, operators=told, seconds_per_operator=3e-6)).cause == "none"


@pytest.mark.parametrize(("part", "cause"), [("schedules", "schedules"), ("rest", "host"), ("metrics", "metrics")])
def test_small_operators_are_not_the_cause_of_what_takes_longer_elsewhere(part: str, cause: str) -> None:
    work = {"count": 100, "small": 100, "elements": 1000, "flops": 0}
    operators = {"parts": {"forward": work, "backward": work}, "lines": [], "waits": []}
    line = {"part": part, "file": "train.py", "line": 4, "in": "slow", "seconds": 0.6}
    loop = {"part": "rest", "file": None, "line": None, "in": None, "seconds": 0.1}
    steps = {"forward": 1e-3, "backward": 1e-3, "optimizer": 1e-3, part: 6e-3}
    told = {"operators": operators, "lines": [line, loop], "sampled_seconds": 0.9, "seconds_per_operator": 3e-6}
    verdict = judge(measured(steps, **told))
    assert (verdict.cause, verdict.where) == (cause, "train.py:4 (slow)")
    assert judge(measured({**steps, part: 1e-4}, **{**told, "lines": [loop]})).text.endswith("the batches are small.")


RANKS = {"forward": 0.3, "backward": 0.4, "optimizer": 0.1, "waiting for other ranks": 0.0}


@pytest.mark.parametrize(("share", "cause"), [(0.24, "communication"), (0.16, "communication"), (0.14, "none")])
def test_communication_that_computation_does_not_hide(share: float, cause: str) -> None:
    verdict = judge(measured({**RANKS, "communication": 0.8 * share / (1 - share)}))
    assert verdict.cause == cause
    assert any(f"{share:.0%}" in each for each in (verdict.text, *verdict.evidence))


def test_communication_below_the_limit_is_told() -> None:
    verdict = judge(measured({**RANKS, "communication": 0.1, "waiting for other ranks": 0.1}))
    assert verdict.cause == "none"
    assert verdict.evidence == (
        "communication, beyond what computation hides: 100 of 1,000 ms, 10% of the step; a bottleneck from 15%",
        "waiting for other ranks: 100 of 1,000 ms, 10% of the step; a bottleneck from 15%",
    )
    assert not judge(measured({**RANKS, "communication": 0.01})).evidence


def test_a_line_without_operators_is_bound_by_the_host() -> None:
    lines = [{"part": "loss", "file": "train.py", "line": 3, "in": "loss", "seconds": 6.0}]
    verdict = judge(measured({"forward": 0.2, "loss": 0.6, "backward": 0.2}, lines=lines, sampled_seconds=10.0))
    assert (verdict.cause, verdict.where) == ("host", "train.py:3 (loss)")
    flops = {"parts": {}, "waits": [], "lines": [{**lines[0], "elements": 0, "flops": 2e9, "count": 1, "small": 0}]}
    told = measured({"forward": 0.2, "loss": 0.6, "backward": 0.2}, lines=lines, sampled_seconds=10.0, operators=flops)
    assert judge(told).cause == "none"  # it computes


def test_an_optimizer_in_python_and_one_that_is_not_fused() -> None:
    parts = {**HEALTHY, "optimizer": 0.8}
    own = {"name": "Mine", "module": "__main__", "tensors": 2, "accepts": []}
    torchs = {"name": "AdamW", "module": "torch.optim.adamw", "tensors": 2, "accepts": ["fused"], "fused": None}
    assert judge(measured(parts, {"optimizers": [own]})).where == "Mine"
    assert judge(measured(parts, {"optimizers": [torchs]})).where == "AdamW"
    assert judge(measured(parts, {"optimizers": [{**torchs, "fused": True}]})).cause == "none"


def test_a_hook_of_the_optimizer_is_named_instead_of_the_optimizer() -> None:
    sgd = {"name": "SGD", "module": "torch.optim.sgd", "tensors": 2, "accepts": ["fused"], "fused": None}
    line = {"part": "optimizer", "file": "train.py", "line": 8, "in": "average_weights", "seconds": 9.0}
    slow = measured({**HEALTHY, "optimizer": 0.4}, {"optimizers": [sgd]}, lines=[line], sampled_seconds=10.0)
    verdict = judge(slow)
    assert (verdict.cause, verdict.where) == ("optimizer", "train.py:8 (average_weights)")
    assert verdict.text.endswith("most of it in train.py:8 (average_weights).")
    assert not any("fused=" in each for each in verdict.evidence)
    assert judge({**slow, "lines": []}).cause != "optimizer" or judge({**slow, "lines": []}).where == "SGD"


def test_an_optimizer_that_takes_longer_than_small_operators_is_the_cause() -> None:
    adam = {"name": "Adam", "module": "torch.optim.adam", "tensors": 900, "accepts": ["fused"], "fused": None}
    work = {"count": 1000, "small": 1000, "elements": 10_000, "flops": 0}
    operators = {"parts": {"forward": work, "backward": work}, "lines": [], "waits": []}
    steps = {"forward": 0.005, "backward": 0.005, "optimizer": 0.02}
    told = {"operators": operators, "seconds_per_operator": 3e-6}
    assert judge(measured(steps, {"optimizers": [adam]}, **told)).cause == "optimizer"
    assert judge(measured({**steps, "optimizer": 0.009}, {"optimizers": [adam]}, **told)).cause == "host"


@pytest.mark.parametrize(("small", "calls", "cause"), [(900, 300, "host"), (500, 300, "none"), (900, 20, "none")])
def test_a_loop_over_small_tensors_in_one_function(small: int, calls: int, cause: str) -> None:
    line = {"part": "backward", "file": "train.py", "line": 14, "in": "Norm.backward"}
    work = {"elements": 0, "flops": 0}
    lines = [{**line, **work, "count": calls, "small": small * calls / 1000} for _ in range(1000 // calls)]
    large = {"count": 2000, "small": 1000, **work}
    operators = {"parts": {"backward": large}, "lines": lines, "waits": []}
    sampled = [{**line, "seconds": 2.0}, {**line, "part": "forward", "file": None, "seconds": 8.0}]
    steps = {"forward": 0.02, "backward": 0.03}
    told = {"operators": operators, "lines": sampled, "sampled_seconds": 10.0, "seconds_per_operator": 3e-6}
    verdict = judge(measured(steps, **told))
    assert verdict.cause == cause
    assert verdict.where == ("train.py:14 (Norm.backward)" if cause == "host" else "")


def test_a_large_loss_is_told() -> None:
    line = {"part": "loss", "file": "train.py", "line": 6, "in": "Twice.loss", "seconds": 4.0}
    work = {**line, "count": 8, "small": 0, "elements": 0, "flops": 4e9}
    operators = {"parts": {}, "lines": [work], "waits": []}
    steps = {"forward": 0.3, "loss": 0.4, "backward": 0.3}
    verdict = judge(measured(steps, lines=[line], sampled_seconds=10.0, operators=operators))
    assert verdict.cause == "none"
    assert verdict.evidence == ("loss: 400 of 1,000 ms of a step", "100% of it is in train.py:6 (Twice.loss)")


def test_shares_add_up() -> None:
    assert sum(shares_of(measured(HEALTHY)).values()) == pytest.approx(1)
