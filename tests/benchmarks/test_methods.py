"""The methods are timed by the same work on both sides, and the report counts what can be compared."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from benchmarks import environment, method_cases, methods, own_cases
from benchmarks.method_cases import CASES, KINDS, Case, Work
from composer import functional

# Those that the predecessor has too.
FORMS = [
    "apply_alibi",
    "apply_blurpool",
    "apply_channels_last",
    "apply_factorization",
    "apply_gated_linear_units",
    "apply_ghost_batchnorm",
    "apply_gradient_clipping",
    "apply_gyro_dropout",
    "apply_low_precision_groupnorm",
    "apply_low_precision_layernorm",
    "apply_squeeze_excite",
    "apply_stochastic_depth",
    "apply_weight_standardization",
    "augmix_image",
    "colout_batch",
    "compute_ema",
    "cutmix_batch",
    "cutout_batch",
    "freeze_layers",
    "mixup_batch",
    "randaugment_image",
    "resize_batch",
    "select_using_loss",
    "set_batch_sequence_length",
    "should_selective_backprop",
    "smooth_labels",
]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_timed(form: str) -> None:
    assert hasattr(functional, form)
    assert any(case.name.partition(" ")[0] == form for case in CASES.values())


@pytest.mark.parametrize(
    "label",
    [label for label, case in CASES.items() if "ResNet" not in label and not (case.kind == "step" and "BERT" in label)],
)
def test_cases_run(label: str) -> None:
    case = CASES[label]
    assert case.kind in KINDS
    work = case.build()
    for _ in range(2):
        work.run(work.prepare() if work.prepare else None)


def test_a_step_leaves_no_gradient() -> None:
    """Or the second pass would add to the first, which costs more."""
    model = torch.nn.Linear(4, 2)
    build = method_cases.step(lambda: model, lambda f, m: None, lambda: {"args": [torch.ones(3, 4)], "kwargs": {}})
    build().run(None)
    assert model.weight.grad is None


def test_surgery_is_on_a_fresh_copy() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5))
    found = []
    work = method_cases.surgery(lambda: model, lambda f, m: found.append(m))()
    assert work.prepare is not None
    work.run(work.prepare())
    work.run(work.prepare())
    assert len({id(model), *map(id, found)}) == 3


@pytest.mark.parametrize("pair", [pair for pair in own_cases.PAIRS if "96" not in pair.label], ids=lambda p: p.label)
def test_pairs_run(pair: own_cases.Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_cases, "NUMBER", 4)
    form, instead = pair.build()
    assert form() is not None
    assert instead() is not None


def test_work_is_repeated_until_a_sample_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    short, once = Work(lambda _: ran.append("short")), Work(lambda given: ran.append(given), lambda: "once")
    cases = {name: Case(name, "", "batch", lambda work=work: work) for name, work in (("s", short), ("o", once))}
    monkeypatch.setattr(methods, "CASES", {case.label: case for case in cases.values()})
    monkeypatch.setattr(methods, "_built", {})
    found = methods.time_case("ours", "s, ", samples=3)
    assert len(found["cpu"]) == len(found["wall"]) == 3
    assert ran.count("short") > 100
    methods.time_case("ours", "o, ", samples=2)
    assert ran.count("once") == 1 + 2 + 2  # the first, those that tell how long it takes, and the samples
    built = ran.count("short")
    methods.time_case("ours", "o, ", samples=1)
    assert (ran.count("once"), ran.count("short")) == (6, built)


def test_a_process_of_the_wrong_side_is_refused() -> None:
    with pytest.raises(RuntimeError, match="was to be theirs"):
        methods.time_case("theirs", next(iter(CASES)), samples=1)


def _times(ours: list[float], theirs: list[float]) -> dict[str, dict[str, list[list[float]]]]:
    sides = zip(methods.SIDES, (ours, theirs), strict=True)
    return {side: {"cpu": [[value] for value in values], "wall": []} for side, values in sides}


def test_report_compares_within_rounds() -> None:
    """A round in which everything is ten times as slow moves no ratio."""
    cases = [Case(name, "x", "batch", lambda: Work(lambda _: None)) for name in ("a", "b", "c")]
    cases.append(Case("d", "x", "model", cases[0].build, unlike="it does less"))
    found = {
        "a, x": _times([1.0, 10.0, 1.0], [2.0, 20.0, 2.0]),
        "b, x": _times([3.0, 3.0, 30.0], [2.0, 2.0, 20.0]),
        "c, x": {"ours": _times([1.0], [])["ours"], "error": "ImportError: it is gone"},
        "d, x": _times([9.0], [1.0]),
    }
    report = methods._report(cases, found, {}, 1, 3, 1)
    assert [row[3] for row in report.rows] == [0.5, 1.5, "-", 9.0]
    assert report.rows[2][:3] == ["batch: c, x", 1000.0, "fails"]
    mean, worst = report.goals
    assert mean.value == pytest.approx(statistics.geometric_mean([0.5, 1.5]))
    assert (worst.value, worst.met) == (1.5, False)
    assert "b, x" in worst.what
    assert any("ImportError: it is gone" in note for note in report.notes)
    assert any("it does less" in note for note in report.notes)


def test_a_side_that_fails_is_told_apart() -> None:
    class Side:
        def __init__(self, error: str) -> None:
            self.error = error

        def call(self, target: str, **arguments: object) -> dict[str, list[float]]:
            if self.error:
                raise RuntimeError(self.error)
            return {"cpu": [1.0], "wall": [2.0]}

    def compare(ours: str, theirs: str) -> dict[str, Any]:
        found: dict[str, Any] = {side: {"cpu": [], "wall": []} for side in methods.SIDES}
        workers: Any = {"ours": Side(ours), "theirs": Side(theirs)}
        methods._compare(workers, "x", found, rounds=2, samples=1)
        return found

    assert compare("", "")["theirs"]["wall"] == [[2.0], [2.0]]
    failed = compare("", "ValueError: no\nmore")
    assert failed["error"] == "ValueError: no"
    assert failed["ours"]["cpu"] == [[1.0], [1.0]]
    with pytest.raises(RuntimeError, match="no"):
        compare("no", "")


def test_a_worker_answers_until_it_ends() -> None:
    with environment.Worker() as worker:
        assert worker.call("benchmarks.environment:has", module="json") is True
        with pytest.raises(RuntimeError, match=r"No module named 'benchmarks\.nothing'"):
            worker.call("benchmarks.nothing:at_all")
        assert worker.call("benchmarks.environment:has", module="no_such_module") is False
        with pytest.raises(RuntimeError, match="ended its process"):
            worker.call("os:_exit", status=3)
