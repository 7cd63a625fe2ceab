"""Deviations of tensors, and the first difference of two runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.trials import Record
from composer.verification.compare import STAGES, TENSORS_FILE, TOLERANCE, Runs, deviation, first_difference, updates

STEP = {
    "step": 0,
    "samples": [["a", "b"]],
    "batch": ["1"],
    "outputs": [["first", 1], ["second", 2]],
    "loss": {"loss/train/total": (0.5).hex()},
    "gradients": {"w": 1},
    "learning rate": ["0x1"],
    "parameters": {"w": 1},
    "buffers": {"mean": 1},
    "optimizer": {"w exp_avg": "1"},
}
CHANGED = {
    "samples": [["b", "a"]],
    "batch": ["2"],
    "outputs": [["first", 1], ["second", 3]],
    "loss": {"loss/train/total": (0.75).hex()},
    "gradients": {"w": 2},
    "learning rate": ["0x2"],
    "parameters": {"w": 2},
    "buffers": {"mean": 2},
    "optimizer": {"w exp_avg": "2"},
}


def tensors(scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: scale * torch.randn(5, generator=generator, dtype=torch.float64) for name in ("a", "b")}


@given(st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_a_common_factor_is_found(factor) -> None:
    found = deviation(tensors(), tensors(factor))
    assert found is not None
    assert found.name == "a"
    assert found.factor == pytest.approx(factor)
    assert found.relative == pytest.approx(abs(factor - 1))


@given(st.floats(0, 1e-7), st.floats(1e-5, 1.0))
def test_rounding_is_no_deviation_and_more_is(small, large) -> None:
    expected = tensors()
    near = {name: value * (1 + small) for name, value in expected.items()}
    assert deviation(expected, near) is None
    assert deviation(expected, {**near, "b": expected["b"] + large * expected["a"]}).factor is None


def test_tensors_that_are_zero_but_for_rounding_do_not_count() -> None:
    expected = {**tensors(), "zero": torch.full((5,), 1e-15, dtype=torch.float64)}
    assert deviation(expected, {**expected, "zero": -expected["zero"]}) is None
    assert deviation(expected, {**expected, "zero": torch.ones(5)}).name == "zero"


def test_rounding_of_float32_in_a_tensor_that_is_zero_but_for_it_does_not_count() -> None:
    expected = {**tensors(), "bias": torch.full((5,), 5e-10, dtype=torch.float64)}
    assert deviation(expected, {**expected, "bias": -expected["bias"]}) is None


def test_small_tensors_that_are_not_rounding_count() -> None:
    expected = {**tensors(), "small": torch.full((5,), 1e-6, dtype=torch.float64)}
    found = deviation(expected, {**expected, "small": 2 * expected["small"]})
    assert (found.name, found.relative) == ("small", pytest.approx(1.0))


def test_a_factor_of_one_explains_no_deviation() -> None:
    expected = {**tensors(), "zero": torch.zeros(5, dtype=torch.float64)}
    found = deviation(expected, {**expected, "zero": torch.full((5,), 1e-7, dtype=torch.float64)})
    assert (found.name, found.factor) == ("zero", None)


def test_updates_of_parameters_whose_gradient_is_rounding_are_left_out() -> None:
    gradients = {"weight": torch.tensor([1.0, 0.0]), "bias": torch.tensor([3e-17, -2e-17])}
    before = {name: torch.zeros(2) for name in gradients}
    signs = {name: gradient.sign() for name, gradient in gradients.items()}
    found = updates({"first": {"gradients": gradients, "before": before}, "parameters": signs})
    assert {name: value.tolist() for name, value in found.items()} == {"weight": [1.0, 0.0], "bias": [0.0, 0.0]}


@pytest.mark.parametrize("found", [{"a": torch.ones(5)}, {"a": torch.ones(5), "b": torch.ones(4)}])
def test_missing_tensors_and_other_shapes(found) -> None:
    assert deviation({"a": torch.ones(5), "b": torch.ones(5)}, found).name == "b"


def test_nan_is_a_deviation() -> None:
    assert deviation({"a": torch.ones(2)}, {"a": torch.tensor([1.0, float("nan")])}).relative == float("inf")
    assert TOLERANCE < 1e-5


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_stage_that_differs_is_named(stage) -> None:
    later = STAGES[STAGES.index(stage) :]
    other = {**STEP, **{name: CHANGED[name] for name in later}}
    found = first_difference([STEP, STEP], [STEP, {**other, "step": 1}])
    assert found is not None
    assert (found.step, found.stage) == (0, stage)
    assert found.name == {"outputs": "second", "loss": "loss/train/total", "buffers": "mean"}.get(
        stage, {"gradients": "w", "parameters": "w", "optimizer": "w exp_avg"}.get(stage, "")
    )


def test_samples_in_another_order_are_told_apart_from_other_samples() -> None:
    assert "the same samples in another order" in str(first_difference([STEP], [{**STEP, "samples": [["b", "a"]]}]))
    assert "1 of 2 are the same" in str(first_difference([STEP], [{**STEP, "samples": [["a", "c"]]}]))


def test_equal_runs_and_runs_of_other_lengths() -> None:
    assert first_difference([STEP], [STEP]) is None
    assert first_difference([STEP, STEP], [STEP]).stage == "steps"


def test_tensors_of_references_are_read_once(tmp_path) -> None:
    torch.save({"parameters": {}}, tmp_path / TENSORS_FILE)
    records = {name: Record(name, "0", "completed", 1.0, folder=str(tmp_path)) for name in ("exact", "ddp")}
    runs = Runs(records)
    assert runs.tensors("exact") is runs.tensors("exact")
    assert runs.tensors("ddp") is not runs.tensors("ddp")  # read by one check only
    assert (dict(runs), len(runs)) == (records, 2)
