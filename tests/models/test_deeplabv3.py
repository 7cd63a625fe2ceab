from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from composer import dist
from composer._lazy import MissingConditionalImportError
from composer.models import composer_deeplabv3
from composer.models.deeplabv3 import AtrousPyramid
from composer.warnings import ComposerWarning
from tests.common import trainer_of

torchvision = pytest.importorskip("torchvision")

# An auxiliary head on the third stage, which the published counts include: 3 x 3 to 256 channels, and 1 x 1 to 150.
AUXILIARY = 1024 * 256 * 9 + 512 + 256 * 150 + 150


def batch(classes: int = 5, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, size, size, generator=generator)
    y = torch.randint(-1, classes, (2, size // 16, size // 16), generator=generator)
    return x, y.repeat_interleave(16, 1).repeat_interleave(16, 2)


@pytest.mark.parametrize(
    ("backbone", "use_plus", "published"),
    # Millions of parameters with 150 classes and the deep stem of 0.02 million; table 2 of Xie et al. 2021,
    # https://arxiv.org/abs/2105.15203, has the second.
    [("resnet50", False, 68.1), ("resnet101", True, 62.7)],
)
def test_number_of_parameters_is_the_published_one(backbone, use_plus, published) -> None:
    with torch.device("meta"):
        model = composer_deeplabv3(150, backbone, use_plus=use_plus)
        outputs = model((torch.zeros(2, 3, 65, 97), None))
    count = sum(parameter.numel() for parameter in model.parameters()) + AUXILIARY
    assert count / 1e6 == pytest.approx(published, abs=0.1)
    assert outputs.shape == (2, 150, 65, 97)


def test_the_backbone_is_an_eighth_of_the_size_and_that_of_torchvision() -> None:
    model = composer_deeplabv3(3, "resnet50").eval()
    ours = model.module.backbone
    reference = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None).backbone.eval()
    theirs = dict(zip(reference.state_dict(), ours.state_dict().values(), strict=True))
    reference.load_state_dict(theirs)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        features = x
        for stage in ours.values():
            features = stage(features)
        assert features.shape == (1, 2048, 8, 8)
        torch.testing.assert_close(features, reference(x)["out"])


def test_the_pyramid_by_hand() -> None:
    """Each branch, the mean of the image, and what joins them, from the weights and plain functions."""
    pyramid = AtrousPyramid(3, 4, dilations=(1, 2), separable=False).eval()
    x = torch.randn(2, 3, 7, 9)

    def convolved(layers: nn.Sequential, x: torch.Tensor, **how: int) -> torch.Tensor:
        # A fresh batch norm divides by sqrt(1 + eps).
        return (F.conv2d(x, layers[0].weight, **how) / (1 + 1e-5) ** 0.5).relu()

    one, three = pyramid.branches
    image = convolved(pyramid.of_image[1], x.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, 7, 9)
    joined = torch.cat([image, convolved(one, x), convolved(three, x, padding=2, dilation=2)], dim=1)
    torch.testing.assert_close(pyramid(x), convolved(pyramid.join, joined, padding=1))


def test_separable_convolutions_are_for_plus() -> None:
    with torch.device("meta"):
        plus, plain = (composer_deeplabv3(3, "resnet50", use_plus=use).module.classifier for use in (True, False))

    def depthwise(head: nn.Module) -> int:
        return sum(isinstance(module, nn.Conv2d) and module.groups > 1 for module in head.modules())

    assert depthwise(plus) == 3 + 2
    assert depthwise(plain) == 0
    assert plain.reduce is None


def test_a_few_steps_lower_the_loss_and_the_metrics_are_right() -> None:
    model = composer_deeplabv3(5, "resnet50", dice_weight=0.5, initializers=["kaiming_normal", "bn_ones"])
    data = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    trainer = trainer_of(model, [data], optimizers=optimizer, max_duration="3ba", eval_dataloader=[data])
    losses = []
    with torch.no_grad():
        losses.append(model.loss(model(data), data)["total"].item())
    trainer.fit()
    with torch.no_grad():
        losses.append(model.loss(model(data), data)["total"].item())
    assert losses[1] < losses[0] - 0.1
    values = trainer.state.eval_metric_values
    assert {"MIoU", "CrossEntropy"} <= {name.rpartition("/")[2] for name in values}
    assert all(torch.as_tensor(value).isfinite() for value in values.values())
    assert sorted(model.get_metrics(is_train=True)) == ["CrossEntropy", "MIoU"]


def test_arguments_reach_loss_and_metrics() -> None:
    model = composer_deeplabv3(5, "resnet50", ignore_index=255, cross_entropy_weight=0.25, dice_weight=2.0)
    outputs, y = torch.randn(2, 5, 4, 4), torch.randint(5, (2, 4, 4))
    y[:, 0] = 255
    parts = model.loss(outputs, (None, y))
    torch.testing.assert_close(parts["cross_entropy"], F.cross_entropy(outputs, y, ignore_index=255))
    torch.testing.assert_close(parts["total"], 0.25 * parts["cross_entropy"] + 2 * parts["dice"])
    metric = model.get_metrics()["MIoU"]
    perfect = F.one_hot(y.clamp(max=4), 5).movedim(-1, 1).float()
    model.update_metric((None, y), perfect, metric)
    assert metric.compute() == 100


def test_initializers_leave_a_trained_backbone_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import _api

    ones = {key: torch.ones_like(value) for key, value in torchvision.models.resnet50().state_dict().items()}
    monkeypatch.setattr(_api, "load_state_dict_from_url", lambda *_, **__: ones)
    network = composer_deeplabv3(3, "resnet50", "IMAGENET1K_V1", initializers="xavier_normal").module
    assert (network.backbone["layer4"][0].conv1.weight == 1).all()
    assert network.classifier.to_logits.weight.std() < 0.2


def test_batch_norms_are_synchronised_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def number_of_synchronised(**arguments: bool) -> int:
        with torch.device("meta"):
            model = composer_deeplabv3(3, "resnet50", **arguments)
        return sum(isinstance(module, nn.SyncBatchNorm) for module in model.modules())

    assert number_of_synchronised() == 0
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.warns(ComposerWarning, match="sync_bn=True has no effect without an accelerator"):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
        assert number_of_synchronised() == 0
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert number_of_synchronised(sync_bn=False) == 0
    assert number_of_synchronised() == 53 + 9 + 1 + 4  # backbone, pyramid, early features, decoder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone_arch": "resnet18"}, "backbone_arch must be one of"),
        ({"backbone_arch": "resnet50", "backbone_weights": "IMAGENET"}, "weights must be one of"),
        ({"cross_entropy_weight": -1.0}, "cross_entropy_weight must be 0 or greater"),
        ({"cross_entropy_weight": 0.0}, "must not both be 0"),
        ({"initializers": ["bn_twos"]}, "initializer must be one of"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        composer_deeplabv3(3, **arguments)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MissingConditionalImportError, match=r"composer-torch\[vision\]"):
        composer_deeplabv3(3)
