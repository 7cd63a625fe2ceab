"""AccumEquality on multiple ranks: the gradient is that of the full batch, however it is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from composer import dist
from composer.parallel import DDPSyncStrategy
from composer.trainer.label_weights import sum_of_weights
from composer.warnings import ComposerWarning
from tests.common import At, Received, Regression, regression_data, trainer_of
from tests.ranks import Ranks
from tests.trainer.test_microbatch import LanguageModel, padded

LENGTHS = [[5, 1, 7, 3, 2], [6, 2, 1, 4]]  # of the second process fewer, and a shorter last microbatch


def text(step: int) -> list[dict[str, Any]]:
    """A batch for each of two ranks; the first step has a process in which no token counts."""
    lengths = [LENGTHS[0], [0] * 4] if step == 0 else LENGTHS
    return [padded(part, 8, seed=10 * step + number) for number, part in enumerate(lengths)]


def weighted(step: int) -> list[dict[str, Any]]:
    """The same with a weight for each label, as packed documents have: those of a row sum to one."""
    batches = text(step)
    for batch in batches:
        counted = (batch["labels"] != -100).double()
        batch["loss_weights"] = counted / counted.sum(1, keepdim=True).clamp(min=1)
    return batches


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [key for key in ("input_ids", "labels", "loss_weights") if key in parts[0]]
    return {key: torch.cat([part[key] for part in parts]) for key in keys}


class WeightedModel(LanguageModel):
    """Its loss weighs the tokens by ``loss_weights``."""

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        losses = F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten(), reduction="none")
        weights = batch["loss_weights"].flatten()
        return (weights * losses).sum() / weights.sum()


def pairs(step: int) -> list[Any]:
    x, y = regression_data(1, batch_size=7, seed=step, dtype=torch.float64)[0]
    return [(x[:4], y[:4]), (x[4:], y[4:])]


def trained(kind: str, size: int | None, **arguments: Any) -> tuple[list[Any], list[float], tuple[int, ...]]:
    """Gradients of each step, logged losses and counts, with the part of the data that is this process's."""
    torch.manual_seed(1)
    model, make = {
        "text": (LanguageModel(), text),
        "weighted": (WeightedModel(), weighted),
        "pairs": (Regression(dtype=torch.float64), pairs),
    }[kind]
    if dist.get_world_size() > 1:
        data = [make(step)[dist.get_global_rank()] for step in range(3)]
    elif kind != "pairs":
        data = [joined(make(step)) for step in range(3)]
    else:
        data = [tuple(torch.cat(parts) for parts in zip(*make(step), strict=True)) for step in range(3)]
    flat = At("after_train_batch", lambda s: torch.cat([p.grad.flatten().clone() for p in s.model.parameters()]))
    log = Received()
    trainer = trainer_of(
        model, data, lr=0.1, device_train_microbatch_size=size, callbacks=flat, loggers=log, **arguments
    )
    trainer.fit()
    timestamp = trainer.state.timestamp
    trainer.close()
    losses = [float(value) for _, value in log.series("loss/train/total")]
    return flat.found, losses, (int(timestamp.batch), int(timestamp.sample), int(timestamp.token))


def all_of(kind: str, sizes: list[int | None], syncs: list[str | None]) -> list[Any]:
    return [trained(kind, size, ddp_sync_strategy=sync) for size in sizes for sync in syncs]


@pytest.mark.parametrize("kind", ["text", "weighted", "pairs"])
def test_accum_equality_on_two_ranks(two_ranks: Ranks, kind: str) -> None:
    gradients, losses, counts = trained(kind, None)
    for results in two_ranks.run(all_of, kind, [None, 2, 3], [None, *DDPSyncStrategy]):
        assert len(results) == 12
        for theirs, their_losses, their_counts in results:
            assert their_counts == counts
            torch.testing.assert_close(their_losses, losses, rtol=1e-6, atol=1e-6)  # losses travel as float32
            for a, b in zip(gradients, theirs, strict=True):
                torch.testing.assert_close(b, a, rtol=0, atol=1e-6)


class WeightedErrors(LanguageModel):
    """A weighted mean over the labels of a batch, each with a loss that is 0 where it is ignored."""

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        labels, weights = batch["labels"].double(), batch["loss_weights"].double()
        errors = (outputs.mean(-1).view(*outputs.shape[:2], *[1] * (labels.ndim - 2)) - labels) ** 2
        return (weights * errors).sum() / weights.sum()


def _weights(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Weights whose sum differs between the rows; those of the last row are 0."""
    mask = torch.arange(8).view(1, 8) < torch.tensor([[8], [2], [5], [1], [0]])
    return mask.view(5, 8, *[1] * (len(shape) - 2)).expand(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("labels", ["tokens", "fractions", "pixels"])
def test_loss_weights_of_any_type_are_summed(dtype: torch.dtype, labels: str) -> None:
    generator = torch.Generator().manual_seed(2)
    shape = (5, 8, 3) if labels == "pixels" else (5, 8)
    values = torch.randint(0, 4, shape, generator=generator)
    batch = {
        "input_ids": torch.randint(0, 7, (5, 8), generator=generator),
        "labels": values / 8 if labels == "fractions" else values,
        "loss_weights": _weights(shape, dtype),
    }
    torch.manual_seed(1)
    check_gradients(WeightedErrors(), batch)


def check_gradients(model: Any, batch: Any) -> None:
    """Check that microbatches of two samples give the gradients of the full batch."""
    model.loss(model(batch), batch).backward()
    full = [p.grad.clone() for p in model.parameters()]
    found = At("after_train_batch", lambda s: [p.grad.clone() for p in s.model.parameters()])
    trainer_of(model, [batch], max_duration="1ba", device_train_microbatch_size=2, callbacks=found).fit()
    for expected, gradient in zip(full, found.found[0], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


class WeightedSamples(Regression):
    """A weighted mean over samples."""

    def forward(self, batch: Any) -> Tensor:
        return super().forward((batch["x"], None))

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        errors = (outputs - batch["labels"].view(-1, 1).double()).square().flatten()
        return (errors * batch["loss_weights"].flatten()).sum() / batch["loss_weights"].sum()


@pytest.mark.parametrize("signed", [False, True])
def test_weights_of_samples_are_summed(signed: bool) -> None:
    (x, _), *_ = regression_data(1, 6, dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0, 3.0, 0.1], dtype=torch.float64)
    if signed:  # as of advantages: their sums are negative in the batch and in a microbatch
        weights *= torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0])
    batch = {"x": x, "labels": torch.arange(6), "loss_weights": weights}
    model = WeightedSamples().double()
    check_gradients(model, batch)
    other = batch | {"loss_weights": weights.view(6, 1)}
    trainer_of(model, [other], max_duration="1ba").fit()
    with pytest.warns(ComposerWarning, match=r"'loss_weights' of shape \(2, 1\) and 'labels' of shape \(2,\)"):
        trainer_of(model, [other], max_duration="1ba", device_train_microbatch_size=2).fit()


class Unreduced(LanguageModel):
    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten(), reduction="none")


def test_an_unreduced_loss_of_tokens_is_told() -> None:
    (batch, _) = text(1)
    with pytest.warns(ComposerWarning, match=r"the shape \(\d+,\), and its mean over all .*on_tokens=False"):
        trainer_of(Unreduced(), [batch], max_duration="1ba", device_train_microbatch_size=2).fit()
    for arguments in ({}, {"device_train_microbatch_size": 2, "accumulate_train_batch_on_tokens": False}):
        trainer_of(Unreduced(), [batch], max_duration="1ba", **arguments).fit()


def test_many_weights_of_low_precision_do_not_overflow() -> None:
    weights = torch.ones(40, 2048, dtype=torch.float16)  # their sum is beyond the largest number of float16
    labels = torch.zeros(40, 2048, dtype=torch.int64)
    assert sum_of_weights({"labels": labels, "loss_weights": weights}) == 40 * 2048
