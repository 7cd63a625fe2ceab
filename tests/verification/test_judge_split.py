"""Runs that split the batch: whether the loss is a weighted mean of those of its microbatches, and what is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.verification import CAUSES, Finding
from composer.verification._by_sample import first_mixing_module, output_gradients_agree
from composer.verification._judge_split import judge_ranks, judge_split
from composer.verification._not_finite import judge_finite
from composer.verification._weighted_mean import is_weighted_mean

N, D = 6, 20


def recorded(loss: Callable[[Tensor], Tensor]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """What the first step records of a loss of N per-sample values, with the full batch and with single samples."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(N, D, generator=generator, dtype=torch.float64)
    weight = torch.randn(D, generator=generator, dtype=torch.float64, requires_grad=True)

    def gradient(rows: Tensor) -> tuple[Tensor, float]:
        value = loss((rows @ weight) ** 2 + 0.1)
        return torch.autograd.grad(value, weight)[0], value.item()

    total, value = gradient(matrix)
    singles = [gradient(matrix[i : i + 1]) for i in range(N)]
    added = torch.stack([grad / N for grad, _ in singles]).cumsum(0)
    return (
        {"increments": [total], "losses": [value]},
        {"increments": list(added), "losses": [loss for _, loss in singles]},
    )


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: x.mean(), True),
        (lambda x: (x * torch.linspace(1, 2, 6)[: len(x)]).sum() / torch.linspace(1, 2, 6)[: len(x)].sum(), True),
        (lambda x: x.mean().sqrt(), False),
        (lambda x: x.topk(max(len(x) // 2, 1)).values.mean(), False),
        (lambda x: torch.logsumexp(x, 0), False),
        (lambda x: x.mean() + x.var(correction=0), False),
    ],
    ids=["mean", "weighted", "root", "hardest", "logsumexp", "variance"],
)
def test_kinds_of_losses(loss, expected) -> None:
    first, second = recorded(loss)
    ratio = sum(second["losses"]) / N / first["losses"][0]
    assert is_weighted_mean(first, second, ratio) == expected


FACTS = {
    "algorithms": ["Clip"],
    "schedules": ["LinearLR"],
    "changes": {"Clip": ["gradients", "loss"], "Rate": ["learning rate"], "Log": ["random state"], "evaluation": ["x"]},
    "token_function": "",
    "gradient hooks": [],
    "changed in forward": [],
    "classes": {"net.1": "Center"},
    "ignored labels": {"labels": "batch['y']", "ignored": -1, "counts": [1, 5]},
}


def first_step(scale: float, increments: list[Tensor]) -> dict[str, Any]:
    return {
        "samples": [[0, 1]],
        "outputs": [{}],
        "gradients": {"w": scale * torch.ones(2, dtype=torch.float64)},
        "increments": increments,
        "losses": [1.0],
    }


def judged(scale: float, loss: float, facts: dict[str, Any] = FACTS) -> Finding:
    """Judge a first step whose gradient and loss are those of the reference times some numbers."""
    steps = [{"steps": [{"step": 4, "loss": {"loss/train/total": value.hex()}}]} for value in (1.0, loss)]
    tensors = [{"first": first_step(value, [])} for value in (1.0, scale)]
    return judge_split("microbatch-4", *steps, *tensors, facts)


def test_scaled_loss() -> None:
    found = judged(0.5, 0.5)
    assert (found.cause, found.name, found.factor) == ("loss_scale", "the loss", pytest.approx(0.5))
    assert found.summary == "the gradients are 0.5 times as large"
    assert found.where == "step 4, gradient of w (relative difference 0.5)"
    assert found.evidence == (
        "the outputs of all modules agree; the loss is scaled by the same factor",
        "the method Clip changes the gradients and the loss",
    )


def test_scaled_gradients_are_of_what_changes_them() -> None:
    found = judged(2.0, 1.0)
    assert (found.cause, found.name) == ("gradients_modified", "Clip")
    hooked = judged(2.0, 1.0, {**FACTS, "changes": {}, "gradient hooks": ["the hook clip of w"]})
    assert (hooked.cause, hooked.name, hooked.factor) == ("gradients_modified", "the hook clip of w", pytest.approx(2))
    assert judged(2.0, 1.0, {**FACTS, "changes": {}}).name == "what changes the gradient of w"


@pytest.mark.parametrize(
    ("losses", "at_outputs", "status", "cause"),
    [
        ([1.5, 0.5], [[1.0], [2.0]], "failed", "gradients_modified"),  # the wrong ones are inside of the model
        ([1.0, 1.0], [[1.0], [1.0]], "expected", "samples_interact"),
        ([1.5, 0.5], [[1.0], [1.0]], "failed", "unknown"),  # a wrong backward pass of the loss, or a comparison
        ([1.0, 1.0], [[1.0]], "failed", "unknown"),
        ([], [[1.0], [1.0]], "failed", "unknown"),
    ],
    ids=["inside of the model", "equal by chance", "in the loss", "not recorded", "too many microbatches"],
)
def test_gradients_that_differ_at_an_equal_loss(losses, at_outputs, status, cause) -> None:
    first = first_step(1.0, [torch.tensor([1.0, 2.0, 3.0])])
    second = first_step(1.0, [torch.tensor([1.0, 0.0, 0.0]), torch.tensor([2.0, 1.0, 0.0])])
    first["output gradients"] = [[torch.tensor([[1.0], [2.0]])]]
    second |= {"losses": losses, "output gradients": [[torch.tensor([row]) for row in at_outputs]]}
    second["gradients"] = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    steps = {"steps": [{"step": 4, "loss": {"loss/train/total": (1.0).hex()}}]}
    found = judge_split("microbatch-4", steps, steps, {"first": first}, {"first": second}, {**FACTS, "changes": {}})
    assert (found.status, found.cause) == (status, cause)
    assert found.evidence[0].startswith("the outputs of all modules")


def test_outputs_of_the_model_itself_are_compared() -> None:
    first = {"samples": [["a", "b"]], "outputs": [{"": [torch.tensor([[1.0], [2.0]])]}]}
    assert first_mixing_module(first, first) is None
    assert first_mixing_module(first, {**first, "outputs": [{"": [torch.tensor([[1.0], [3.0]])]}]}) == ""


@pytest.mark.parametrize(
    ("state", "cause"),
    [("net.weight.0: u", "state_per_microbatch"), ("net.inner: calls", "samples_interact"), ("", "samples_interact")],
    ids=["of a parametrization", "of a module whose outputs agree", "none"],
)
def test_state_inside_of_a_module_may_be_why_its_outputs_differ(state, cause) -> None:
    rows = torch.tensor([[1.0], [2.0]])
    first, second = ({**first_step(1.0, []), "output gradients": [[]]} for _ in range(2))
    first["outputs"] = [{"net.weight.0": [torch.ones(3)], "net.inner": [rows], "net": [rows]}]
    second["outputs"] = [{"net.weight.0": [torch.ones(3)], "net.inner": [rows], "net": [rows + 1]}]
    steps = {"steps": [{"step": 4, "loss": {"loss/train/total": (1.0).hex()}}]}
    classes = {"": "Model", "net": "Linear", "net.weight.0": "Norm", "net.inner": "Linear"}
    facts = {**FACTS, "classes": classes, "suspects": {}, "random_modules": [], "statistics_modules": []}
    facts["changed in forward"] = [f"module {state}"] if state else []
    found = judge_split("microbatch-1", steps, steps, {"first": first}, {"first": second}, facts)
    assert (found.status, found.cause) == ("expected", cause)


def test_each_rank_has_the_gradient_of_its_loss() -> None:
    first = {"samples": [["a", "b"]], "output gradients": [[torch.tensor([[1.0], [2.0]])]]}
    second = {"samples": [["b"], ["a"]], "output gradients": [[torch.tensor([[4.0]])], [torch.tensor([[2.0]])]]}
    assert output_gradients_agree(first, second)
    assert not output_gradients_agree(
        first, {**second, "output gradients": [[torch.tensor([[6.0]])], [torch.ones(1, 1)]]}
    )


def test_remedy_has_the_labels_of_the_batch() -> None:
    tensors = [{"first": first_step(1.0, [])} for _ in range(2)]
    tensors[1]["first"]["gradients"] = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    steps = [{"steps": [{"step": 4, "loss": {"loss/train/total": value.hex()}}]} for value in (1.0, 1.5)]
    found = judge_split("ddp", *steps, *tensors, FACTS)
    assert found.cause == "ragged_mean"
    assert "lambda batch: int((batch['y'] != -1).sum())" in found.remedy
    assert "samples have 1 to 5 values other than -1 in batch['y']" in found.evidence
    plain = judge_split("ddp", *steps, *tensors, {**FACTS, "ignored labels": None})
    assert plain.remedy == CAUSES["ragged_mean"].remedy


@pytest.mark.parametrize(
    ("rates_differ", "expected"),
    [
        (True, "the learning rates differ too, perhaps by the callback Rate or the schedule LinearLR"),
        (False, "perhaps by the method Clip, which changes the gradients"),
    ],
)
def test_who_lets_ranks_diverge(rates_differ, expected) -> None:
    step = {
        "step": 0,
        "samples": [["a"]],
        "indices": [[0]],
        "ranks differ": ["w"],
        "rates differ": rates_differ,
    }
    found = judge_ranks("ddp", {"steps": [step]}, {"steps": [step]}, {}, {}, {**FACTS, "exact_batch_size": 4})
    assert (found.cause, found.name) == ("ranks_diverge", "w")
    assert found.evidence == (expected,)


def not_finite(**changes: Any) -> Finding:
    """Judge microbatches with values that are not finite in place of some that are."""
    first = first_step(1.0, [torch.ones(2)])
    second = first_step(1.0, [torch.tensor([1.0, float("nan")]), torch.tensor([float("nan"), 1.0])])
    second |= {"losses": [1.0, 1.0], **changes}
    loss = changes.get("losses", [1.0])[0]
    steps = [{"steps": [{"step": 4, "loss": {"loss/train/total": value.hex()}}]} for value in (1.0, loss)]
    return judge_split("microbatch-1", *steps, {"first": first}, {"first": second}, FACTS)


def test_gradients_that_are_not_finite() -> None:
    found = not_finite(gradients={"w": torch.tensor([1.0, float("nan")])})
    assert (found.status, found.cause, found.name) == ("failed", "not_finite_in_microbatch", "the gradient of w")
    assert found.where == "step 4, gradient of w"
    assert "correction=0" in found.remedy


def test_loss_that_is_not_finite() -> None:
    found = not_finite(losses=[float("nan"), 1.0])
    assert (found.status, found.cause, found.name) == ("failed", "not_finite_in_microbatch", "the loss")
    assert found.where == "step 4, loss"
    assert found.evidence == (
        "the logged loss is nan, and 1 unsplit",
        "the loss is not finite in 1 of 2 microbatches of 1 sample",
    )


def test_first_module_that_is_not_finite_is_named() -> None:
    first, second = first_step(1.0, []), first_step(1.0, [])
    finite, infinite = torch.ones(2, 1), torch.full((1, 1), float("inf"))
    masked = torch.full((2, 1), -float("inf"))  # on purpose: also with the full batch
    first["outputs"] = [{"net.0": [masked], "net.1": [finite], "": [finite]}]
    second["outputs"] = [{"net.0": [masked], "net.1": [infinite, infinite], "": [infinite, infinite]}]
    found = judge_finite("microbatch-1", 0, (1.0, float("inf")), first, second, FACTS["classes"])
    assert found is not None
    assert (found.cause, found.name, found.where) == (
        "not_finite_in_microbatch",
        "net.1 (Center)",
        "step 0, outputs of net.1",
    )


def test_full_batch_that_is_not_finite_is_not_compared() -> None:
    first = {"gradients": {"w": torch.tensor(float("nan"))}}
    found = judge_finite("ddp", 0, (1.0, 1.0), first, first, {})
    assert found is not None
    assert (found.status, found.cause) == ("undecided", "")


def test_increments_that_are_not_finite_tell_nothing() -> None:
    first, second = {"increments": [torch.ones(3)]}, {"increments": [torch.full((3,), float("nan"))] * 2}
    assert is_weighted_mean(first, second, 1.0)
