"""Samples are exchanged between microbatches, and only a loss that compares them is then called one that does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from composer import DataSpec
from composer.trials import Record
from composer.verification import Finding
from composer.verification._exchange import Exchange, exchanged
from composer.verification._judge_exchange import is_of_comparing_loss, judge_exchanged
from composer.verification._judge_split import COMPARES, DEPENDS_ON_EARLIER
from composer.verification.compare import STEPS_FILE, TENSORS_FILE
from tests.verification.parts import build

ROWS, D, CLASSES = 8, 6, 3


def by_strides(batch: Tensor, size: int) -> list[Tensor]:
    return [batch[k :: -(-len(batch) // size)] for k in range(-(-len(batch) // size))]


@pytest.mark.parametrize("split", [None, by_strides])
@pytest.mark.parametrize("rows", [4, 8, 16])
def test_microbatches_have_samples_of_each_other_at_the_same_places(rows: int, split: Any) -> None:
    spec = DataSpec([], split_batch=split)
    batch = torch.arange(rows)
    found, count = exchanged(spec, batch, rows // 2)
    (a, b), (c, d) = spec.split_batch(batch, rows // 2), spec.split_batch(found, rows // 2)
    moved = a != c
    assert int(moved.sum()) == count == rows // 4
    assert torch.equal(torch.where(moved, b, a), c)
    assert torch.equal(torch.where(moved, a, b), d)
    pairs = moved.reshape(-1, 2)
    assert bool((pairs[:, 0] != pairs[:, 1]).all())  # neighbors do not stay together


def test_equal_samples_are_not_exchanged() -> None:
    assert exchanged(DataSpec([]), torch.ones(8), 4)[1] == 0


def test_nothing_to_exchange_is_an_error() -> None:
    trainer = build(callbacks=[Exchange()], device_train_microbatch_size=1)
    with pytest.raises(RuntimeError, match="no two microbatches of two samples"):
        trainer.fit()


def test_microbatches_of_other_samples_are_an_error() -> None:
    spec = DataSpec([], split_batch=lambda batch, size: [batch[:size]] if size > 1 else list(batch.split(1)))
    with pytest.raises(RuntimeError, match="do not have the samples"):
        exchanged(spec, torch.arange(8), 4)


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def record(folder: Path, loss: Loss, parts: list[Tensor], rows: tuple[Tensor, Tensor]) -> Record:
    """What a step of a linear model records with these rows in each microbatch."""
    x, y = rows
    weight = torch.full((D, CLASSES), 0.3, dtype=torch.float64).add(torch.eye(D, CLASSES)).requires_grad_()
    outputs = [x[part] @ weight for part in parts]
    losses = [loss(output, y[part], weight) for output, part in zip(outputs, parts, strict=True)]
    total = torch.stack(losses).mean()
    added = [torch.autograd.grad(each, weight, retain_graph=True)[0] / len(parts) for each in losses]
    gradient, *at_outputs = torch.autograd.grad(total, [weight, *outputs])
    first = {
        "gradients": {"w": gradient},
        "samples": [[int(row) for part in parts for row in part]],
        "output gradients": [at_outputs],
        "increments": list(torch.stack(added).cumsum(0)),
        "losses": [float(each.detach()) for each in losses],
        "before": {"w": weight.detach()},
    }
    folder.mkdir()
    torch.save({"first": first, "parameters": {"w": weight.detach() - 0.1 * gradient}}, folder / TENSORS_FILE)
    steps = {"steps": [{"step": 0, "loss": {"loss/train/total": total.item().hex()}}]}
    (folder / STEPS_FILE).write_text(json.dumps(steps))
    return Record(folder.name, "0f", "completed", 1.0, folder=str(folder))


def judged(tmp_path: Path, loss: Loss, summary: str = COMPARES) -> Finding:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, D, generator=generator, dtype=torch.float64), torch.arange(ROWS) % CLASSES
    orders = {"exact": [list(range(8))], "half": [[0, 1, 2, 3], [4, 5, 6, 7]], "exchange": [[0, 5, 6, 3], [4, 1, 2, 7]]}
    orders["whole"] = orders["half"][::-1]
    records = [record(tmp_path / name, loss, list(map(torch.tensor, parts)), rows) for name, parts in orders.items()]
    return judge_exchanged(Finding("ddp", "expected", summary, "samples_interact", "the loss", "step 0"), *records)


def contrast(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(outputs @ outputs.T, torch.arange(len(y)))


def last_of_each(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(outputs[:-1], y[:-1])


@pytest.mark.parametrize(
    ("loss", "status", "cause"),
    [
        (lambda o, y, w: F.cross_entropy(o, y) + 1e-2 * o.square().sum(), "failed", "loss_scale"),
        (lambda o, y, w: F.cross_entropy(o, y) * len(o) / ROWS + 1e-2 * w.square().sum(), "failed", "loss_scale"),
        (lambda o, y, w: F.cross_entropy(o, y) + 1e-3 * w.square().sum() * len(o) / ROWS, "failed", "loss_scale"),
        (last_of_each, "failed", "ignored_samples"),
        (contrast, "expected", "samples_interact"),
        (lambda o, y, w: F.cross_entropy(o, y) + o.var(0).mean(), "expected", "samples_interact"),
        (lambda o, y, w: F.mse_loss(o, F.one_hot(y, CLASSES).double()).sqrt(), "expected", "samples_interact"),
        (
            lambda o, y, w: F.cross_entropy(o, y, reduction="none").topk(len(y) // 2)[0].mean(),
            "expected",
            "samples_interact",
        ),
        (lambda o, y, w: F.cross_entropy(o, y) + o.detach().std(0).sum(), "expected", "samples_interact"),
    ],
    ids=[
        "sum next to mean",
        "scaled next to decay",
        "scaled decay",
        "dropped",
        "contrast",
        "variance",
        "root",
        "hardest",
        "value only",
    ],
)
def test_only_losses_that_compare_samples_are_expected(tmp_path, loss, status, cause) -> None:
    found = judged(tmp_path, loss)
    assert (found.check, found.status, found.cause, found.name) == ("ddp", status, cause, "the loss")
    assert "exchange of samples" in found.evidence[0]
    if cause == "ignored_samples":
        assert found.evidence[1] == "the loss ignores 2 of 8 samples in two microbatches, and 1 in one"


def test_state_that_no_microbatch_uses_explains_nothing(tmp_path) -> None:
    found = judged(tmp_path, lambda o, y, w: F.cross_entropy(o, y) + o.square().sum(), DEPENDS_ON_EARLIER)
    assert (found.status, found.cause) == ("failed", "loss_scale")
    assert found.remedy.startswith("Let each term of the loss be a mean")


def test_state_that_the_loss_uses_is_named(tmp_path) -> None:
    calls = itertools.count()

    def ramp(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) + (next(calls) % 2 + 1) * 1e-3 * weight.abs().sum()

    _ = next(calls)  # the full batch is the second call
    found = judged(tmp_path, ramp, DEPENDS_ON_EARLIER)
    assert (found.status, found.cause) == ("expected", "samples_interact")  # that of the finding
    assert found.evidence == ("a microbatch has another loss or other gradients if it comes after the other one",)


def test_whole_microbatches_are_exchanged() -> None:
    assert exchanged(DataSpec([]), torch.arange(8), 4, whole=True)[0].tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


def test_run_that_fails_leaves_the_finding_and_says_so(tmp_path) -> None:
    finding = Finding("ddp", "expected", COMPARES, "samples_interact", "the loss", "step 0")
    records = [Record(name, "0f", "failed", 1.0, error="ValueError: no", folder=str(tmp_path)) for name in "abcd"]
    found = judge_exchanged(finding, *records)
    assert (found.status, found.cause) == ("expected", "samples_interact")
    assert found.evidence == ("whether an exchange of samples between microbatches matters is unknown: ValueError: no",)


def test_findings_about_modules_are_not_tested() -> None:
    assert not is_of_comparing_loss(Finding("ddp", "expected", "outputs for a sample depend on the rest of the batch"))
    assert not is_of_comparing_loss(Finding("ddp", "failed", COMPARES))
