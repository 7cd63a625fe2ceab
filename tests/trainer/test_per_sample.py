"""Per-sample losses and gradient norms: against separate forward passes with the same random state, and fallbacks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer import ComposerModel
from composer.models import ComposerClassifier
from composer.trainer.per_sample import ForwardContext, measure, per_sample
from composer.trainer.sampled_loss import SampledLoss
from tests.common import CLASSES, FEATURES

N = 6


def network(dtype=torch.float64) -> ComposerClassifier:
    torch.manual_seed(1)
    layers = (nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, CLASSES))
    return ComposerClassifier(nn.Sequential(*layers).to(dtype), num_classes=CLASSES)


def labeled(dtype=torch.float64) -> tuple:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(N, FEATURES, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randint(CLASSES, (N,), generator=generator)


def norm_of(model) -> float:
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat(gradients).norm().item() if gradients else 0.0


class Tokens(ComposerModel):
    """Predicts a token for each position of ragged rows, and may compute its loss in the forward pass."""

    def __init__(self, loss_in_forward: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.drop = nn.Embedding(9, 8, dtype=torch.float64), nn.Dropout(0.3)
        self.head = nn.Linear(8, 9, dtype=torch.float64)
        self.loss_in_forward = loss_in_forward

    def forward(self, batch):
        logits = self.head(self.drop(self.embed(batch["input_ids"])).cumsum(1))
        if not self.loss_in_forward:
            return {"logits": logits}
        return {"logits": logits, "loss": self._loss(logits, batch)}

    def loss(self, outputs, batch):
        return outputs["loss"] if self.loss_in_forward else self._loss(outputs["logits"], batch)

    def _loss(self, logits, batch):
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def ragged() -> dict:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(9, (N, 5), generator=generator)
    labels = torch.randint(9, (N, 5), generator=generator)
    for row, length in enumerate((5, 1, 3, 2, 4, 0)):
        labels[row, length:] = -100
    return {"input_ids": ids, "labels": labels}


def test_equals_a_backward_pass_for_each_row_of_the_same_forward_pass() -> None:
    model, (x, y) = network(), labeled()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = per_sample(model, (x, y))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert (found.method, found.reason, found.is_exact) == ("sliced", "", True)
    for row in range(N):
        model.load_state_dict(before)
        model.zero_grad()
        torch.set_rng_state(state)
        loss = nn.functional.cross_entropy(model((x, y)), y, reduction="none")[row]
        loss.backward()
        assert found.losses[row] == pytest.approx(loss.item(), rel=1e-12)
        assert found.gradient_norms[row] == pytest.approx(norm_of(model), rel=1e-10)


@pytest.mark.parametrize("loss_in_forward", [False, True], ids=["sliced", "masked"])
def test_ragged_tokens_are_weighted_by_their_targets(loss_in_forward) -> None:
    model, batch = Tokens(loss_in_forward), ragged()
    state = torch.get_rng_state()
    found = per_sample(model, batch)
    assert found.method == ("masked" if loss_in_forward else "sliced")
    assert found.is_exact
    assert torch.allclose(found.weights * 15, torch.tensor([5.0, 1, 3, 2, 4, 0], dtype=torch.float64))
    for row in range(N):
        model.zero_grad()
        torch.set_rng_state(state)
        labels = torch.where((torch.arange(N) == row).unsqueeze(1), batch["labels"], -100)
        if row < N - 1:  # the last has no targets
            loss = model.loss(model({**batch, "labels": labels}), {**batch, "labels": labels})
            loss.backward()
            assert found.losses[row] == pytest.approx(loss.item(), rel=1e-12)
            assert found.gradient_norms[row] == pytest.approx(norm_of(model), rel=1e-10)
    assert found.losses[-1] == found.gradient_norms[-1] == 0


def test_a_sum_over_samples_has_weight_one_each() -> None:
    class Sum(ComposerClassifier):
        def loss(self, outputs, batch):
            return nn.functional.cross_entropy(outputs, batch[1], reduction="sum")

    found = per_sample(Sum(nn.Linear(FEATURES, CLASSES), num_classes=CLASSES), labeled(torch.float32))
    assert found.weights.tolist() == [1.0] * N
    assert found.method == "sliced"


def test_a_contrastive_loss_is_told_so_and_samples_are_run_alone() -> None:
    class Contrastive(ComposerClassifier):
        def loss(self, outputs, batch):
            return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))

    model = Contrastive(network().module, num_classes=CLASSES)
    found = per_sample(model, labeled())
    assert (found.method, found.is_mean, found.is_exact) == ("separate", False, False)
    assert "compare samples with each other" in found.reason
    assert all(module.training for module in model.modules())


def test_outputs_without_rows_fall_back_to_single_samples() -> None:
    class Transposed(ComposerClassifier):
        def forward(self, batch):
            return super().forward(batch).T

        def loss(self, outputs, batch):
            return super().loss(outputs.T, batch)

    torch.manual_seed(3)
    model = Transposed(nn.Linear(FEATURES, CLASSES), num_classes=CLASSES)
    plain = ComposerClassifier(model.module, num_classes=CLASSES)
    found, expected = per_sample(model, labeled(torch.float32)), per_sample(plain, labeled(torch.float32))
    assert (found.method, expected.method) == ("separate", "sliced")
    assert "the outputs have 3 rows, the batch 6 samples" in found.reason.lower()
    assert torch.allclose(found.losses, expected.losses)
    assert torch.allclose(found.gradient_norms, expected.gradient_norms)


def test_a_loss_that_raises_for_a_row_is_told() -> None:
    class Picky(ComposerClassifier):
        def loss(self, outputs, batch):
            if len(outputs) == 1 and self.training:
                raise ZeroDivisionError("one row")
            return super().loss(outputs, batch)

    model = Picky(nn.Linear(FEATURES, CLASSES), num_classes=CLASSES)
    with pytest.raises(ZeroDivisionError, match="one row"):  # alone neither
        per_sample(model, labeled(torch.float32))


def test_losses_that_algorithms_mix_are_mixed_for_each_sample() -> None:
    model, (x, y) = network(), labeled()
    other = y.roll(1)
    sampled = SampledLoss(model.loss)
    context = ForwardContext(model)
    with context.restored():
        outputs = model((x, y))
        loss = torch.lerp(sampled(outputs, (x, y)), sampled(outputs, (x, other)), 0.3)
        found = measure(context, (x, y), sampled, loss)
    one, two = (nn.functional.cross_entropy(outputs, target, reduction="none") for target in (y, other))
    assert torch.allclose(found.losses, (0.7 * one + 0.3 * two).detach())
    assert found.method == "sliced"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_close_to_full(dtype) -> None:
    model, batch = network(torch.float32).eval(), labeled(torch.float32)
    full = per_sample(model, batch)
    found = per_sample(model, batch, autocast=lambda: torch.autocast("cpu", dtype))
    assert found.method == "sliced"
    assert torch.allclose(found.losses, full.losses, rtol=0.05)
    assert torch.allclose(found.gradient_norms, full.gradient_norms, rtol=0.05)


def test_the_loss_of_a_nan_stays_in_its_row() -> None:
    x, y = labeled(torch.float32)
    x[3, 1] = float("nan")
    found = per_sample(ComposerClassifier(nn.Linear(FEATURES, CLASSES), num_classes=CLASSES), (x, y))
    assert found.losses.isnan().tolist() == [row == 3 for row in range(N)]
    assert found.gradient_norms.isnan().all()  # 0 * NaN in the gradient of the weight


def test_a_graph_that_can_be_differentiated_once_falls_back() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.used = False
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            if ctx.used:
                raise RuntimeError("donated buffers")
            ctx.used = True
            return gradient * 2

    class Doubled(ComposerClassifier):
        def forward(self, batch):
            return Once.apply(super().forward(batch))

    found = per_sample(Doubled(nn.Linear(FEATURES, CLASSES), num_classes=CLASSES), labeled(torch.float32))
    assert found.method == "separate"
    assert "donated buffers" in found.reason
    assert (found.gradient_norms > 0).all()
