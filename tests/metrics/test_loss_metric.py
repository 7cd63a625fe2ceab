from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.loss import DiceLoss, soft_cross_entropy
from composer.metrics import LossMetric
from tests.metrics.laws import every_law, value_of


@every_law
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_laws(law, reduction: str) -> None:
    batches = [(torch.randn(5, 2), torch.randn(5, 2)), (torch.randn(3, 2), torch.randn(3, 2))]
    law(lambda: LossMetric(nn.MSELoss(reduction=reduction)), batches)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_batches_count_by_their_samples(reduction: str) -> None:
    outputs, target = torch.randn(9, 2), torch.randn(9, 2)
    batches = [(outputs[:8], target[:8]), (outputs[8:], target[8:])]
    value = value_of(lambda: LossMetric(nn.MSELoss(reduction=reduction)), batches)
    torch.testing.assert_close(value, nn.functional.mse_loss(outputs, target))


def test_functions_and_modules_with_weights_are_taken() -> None:
    logits, target = torch.randn(6, 3), torch.randint(3, (6,))
    torch.testing.assert_close(
        value_of(lambda: LossMetric(soft_cross_entropy), [(logits, target)]), soft_cross_entropy(logits, target)
    )
    weighted = LossMetric(nn.CrossEntropyLoss(weight=torch.ones(3)))
    assert weighted.to("meta").loss_function.weight.device.type == "meta"
    images, masks = torch.randn(2, 3, 4), torch.randint(3, (2, 4))
    dice = DiceLoss(softmax=True)
    torch.testing.assert_close(value_of(lambda: LossMetric(dice), [(images, masks)]), dice(images, masks))


def test_targets_may_be_a_collection() -> None:
    def loss(outputs, target):
        return (outputs - target["y"]).abs().mean()

    batches = [(torch.zeros(3), {"y": torch.ones(3)}), (torch.zeros(1), {"y": torch.full((1,), 5.0)})]
    assert value_of(lambda: LossMetric(loss), batches) == 2


def test_no_place_is_no_mean() -> None:
    metric = LossMetric(nn.MSELoss(reduction="none"))
    metric.update(torch.zeros(0), torch.zeros(0))
    metric.update(torch.zeros(1), torch.ones(1))
    assert metric.compute() == 1
    assert value_of(lambda: LossMetric(nn.L1Loss(reduction="none")), [(torch.zeros(0), torch.zeros(0))]).isnan()


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match=r"loss_function must be callable.*'mse'"):
        LossMetric("mse")  # type: ignore[arg-type]
