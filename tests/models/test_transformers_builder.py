"""What the builders of image classifiers have in common, and what each is published with."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import composer.models
from composer._lazy import MissingConditionalImportError
from composer.loss import loss_registry
from composer.models import (
    ComposerClassifier,
    ComposerModel,
    Initializer,
    composer_deeplabv3,
    composer_efficientnetb,
    composer_efficientnetb0,
    composer_resnet,
    composer_resnet_cifar,
    composer_timm,
    composer_unet,
    composer_vit,
    mnist_model,
    vit_small_patch16,
)
from composer.warnings import ComposerWarning

pytest.importorskip("torchvision")
pytest.importorskip("timm")


def number_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "size", "published"),
    [
        # Rows of torchvision's and timm's tables of weights, to the parameter.
        (lambda: composer_resnet("resnet18"), 32, 11_689_512),
        (lambda: composer_resnet("resnet50"), 32, 25_557_032),
        (lambda: composer_resnet("resnet50", groups=32, width_per_group=4), 32, 25_028_904),
        (lambda: composer_efficientnetb0(), 32, 5_288_548),
        (lambda: composer_efficientnetb("efficientnet_b1"), 32, 7_794_184),
        (lambda: vit_small_patch16(), 224, 22_050_664),
        (lambda: composer_vit("vit_base_patch32"), 224, 88_224_232),
        (lambda: composer_timm("resnet18", num_classes=1000), 32, 11_689_512),
        # He et al. give 0.27, 0.46, 0.66, 0.85 and 1.7 million, with shortcuts that have no weights;
        # those of 1 x 1 add (16 * 32 + 64) + (32 * 64 + 128).
        (lambda: composer_resnet_cifar("resnet_20"), 32, 269_722 + 2_752),
        (lambda: composer_resnet_cifar("resnet_32"), 32, 464_154 + 2_752),
        (lambda: composer_resnet_cifar("resnet_44"), 32, 658_586 + 2_752),
        (lambda: composer_resnet_cifar("resnet_56"), 32, 853_018 + 2_752),
        (lambda: composer_resnet_cifar("resnet_110"), 32, 1_727_962 + 2_752),
    ],
)
def test_number_of_parameters_is_the_published_one(build, size, published) -> None:
    with torch.device("meta"):
        model = build()
        outputs = model((torch.zeros(2, 3, size, size), None))
    assert number_of(model) == published
    assert outputs.shape == (2, model.num_classes)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (
            lambda: composer_resnet("resnet18", num_classes=7, initializers=["kaiming_normal", "bn_uniform"]),
            (3, 32, 32),
        ),
        (lambda: composer_resnet_cifar("resnet_9", num_classes=7), (3, 32, 32)),
        (lambda: composer_resnet_cifar("resnet_20", 7, [Initializer.KAIMING_NORMAL, "bn_ones"]), (3, 32, 32)),
        (lambda: composer_timm("test_resnet", num_classes=7), (3, 32, 32)),
        (lambda: composer_vit("vit_tiny_patch16", num_classes=7, image_size=32, channels=1), (1, 32, 32)),
        (lambda: mnist_model(num_classes=7, initializers="xavier_uniform"), (1, 28, 28)),
    ],
    ids=["resnet", "resnet_9", "resnet_20", "timm", "vit", "mnist"],
)
def test_a_few_steps_lower_the_loss(build, shape) -> None:
    model = build()
    assert isinstance(model, ComposerModel)
    assert model.num_classes == 7
    assert sorted(model.get_metrics(is_train=True)) == ["MulticlassAccuracy"]
    assert sorted(model.get_metrics(is_train=False)) == ["CrossEntropy", "MulticlassAccuracy"]
    batch = (torch.randn(8, *shape), torch.arange(8) % 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        loss = model.loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    assert all(parameter.grad is not None for parameter in model.parameters())
    for metric in model.get_metrics(is_train=False).values():
        model.update_metric(batch, model.eval_forward(batch), metric)
        assert metric.compute().isfinite()


CLASSES: dict[str, tuple[Callable[..., ComposerClassifier], dict[str, Any]]] = {
    "ComposerDeepLabV3": (composer_deeplabv3, {"num_classes": 5, "backbone_weights": None}),
    "ComposerResNet": (composer_resnet, {"model_name": "resnet18", "num_classes": 5}),
    "ComposerResNetCIFAR": (composer_resnet_cifar, {"model_name": "resnet_20", "num_classes": 5}),
    "EfficientNetB0": (composer_efficientnetb0, {"num_classes": 5}),
    "MNIST_Classifier": (mnist_model, {"num_classes": 5}),
    "Timm": (composer_timm, {"model_name": "resnet10t", "num_classes": 5}),
    "UNet": (composer_unet, {"num_classes": 4}),
    "ViTSmallPatch16": (vit_small_patch16, {"num_classes": 5, "image_size": 32}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_forms_are_what_the_builders_return(name: str) -> None:
    builder, arguments = CLASSES[name]
    form: Any = getattr(composer.models, name)
    assert list(inspect.signature(form).parameters.values()) == list(inspect.signature(builder).parameters.values())
    torch.manual_seed(7)
    expected = builder(**arguments)
    torch.manual_seed(7)

    class Mine(form):
        """A subclass with arguments of its own."""

        def __init__(self, **others: Any) -> None:
            super().__init__(**others)
            self.mine = 1

    model = Mine(**arguments)
    assert isinstance(model, form)
    assert model.num_classes == expected.num_classes
    assert type(model._loss_fn) is type(expected._loss_fn)
    for is_train in (True, False):
        assert repr(model.get_metrics(is_train)) == repr(expected.get_metrics(is_train))
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    with pytest.raises(TypeError, match="nonsense"):
        form(**arguments, nonsense=1)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("base", "ComposerModel"),
        ("classify_mnist", "mnist_model"),
        ("deeplabv3", "composer_deeplabv3"),
        ("efficientnetb0", "composer_efficientnetb0"),
        ("initializers", "Initializer"),
        ("resnet", "composer_resnet"),
        ("resnet_cifar", "composer_resnet_cifar"),
        ("timm", "composer_timm"),
    ],
)
def test_old_modules_have_their_names(module: str, name: str) -> None:
    assert getattr(importlib.import_module(f"composer.models.{module}"), name) is getattr(composer.models, name)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: composer_resnet("resnet51"), "model_name must be one of .*Did you mean 'resnet50'"),
        (lambda: composer_resnet("resnet18", loss_name="soft_cross_entrop"), "Did you mean 'soft_cross_entropy'"),
        (lambda: composer_resnet("resnet18", weights="IMAGENET1K_V3"), "weights must be one of .*IMAGENET1K_V1"),
        (lambda: composer_resnet("resnet18", initializers=["kaiming"]), "initializer must be one of"),
        (lambda: composer_resnet_cifar("resnet20"), "Did you mean 'resnet_20'"),
        (lambda: composer_timm("resnet_50"), "not a timm model.* Did you mean 'resnet50"),
        (lambda: composer_efficientnetb("efficientnet_b9"), "model_name must be one of"),
        (lambda: composer_efficientnetb0(drop_connect_rate=1.5), "drop_connect_rate must be between 0 and 1"),
        (lambda: composer_vit("vit_smal_patch16"), "Did you mean 'vit_small_patch16'"),
        (lambda: vit_small_patch16(image_size=40), "image_size must be a multiple of the patch size, 16"),
        (lambda: vit_small_patch16(dropout=-0.1), "dropout must be between 0 and 1"),
        (lambda: vit_small_patch16(embedding_dropout=2), "embedding_dropout must be between 0 and 1"),
        (lambda: mnist_model(initializers="zeros"), "initializer must be one of"),
    ],
)
def test_wrong_arguments_are_refused(build, message) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("package", "build"),
    [
        ("torchvision.models", lambda: composer_resnet("resnet18")),
        ("torchvision.models", lambda: composer_efficientnetb0()),
        ("timm", lambda: composer_timm("resnet18")),
        ("timm.models.vision_transformer", lambda: vit_small_patch16()),
    ],
)
def test_a_missing_package_is_named(package, build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingConditionalImportError, match=r"composer-torch\[vision\]"):
        build()


# ------------------------------------------------------------------------------------------------ weights


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where weights would be downloaded from; what comes is those of a network of ones."""
    from torchvision.models import _api, get_model

    asked: list[str] = []

    def download(url: str, **_) -> dict[str, torch.Tensor]:
        asked.append(url)
        name = "efficientnet_b0" if "efficientnet" in url else "resnet18"
        return {key: torch.ones_like(value) for key, value in get_model(name).state_dict().items()}

    monkeypatch.setattr(_api, "load_state_dict_from_url", download)
    return asked


@pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1", "ResNet18_Weights.IMAGENET1K_V1"])
def test_weights_are_loaded_and_the_last_layer_is_made_anew(weights, downloaded) -> None:
    model = composer_resnet("resnet18", num_classes=5, weights=weights, initializers=["linear_log_constant_bias"])
    network = model.module
    assert (network.conv1.weight == 1).all()
    assert network.fc.weight.shape == (5, 512)
    torch.testing.assert_close(network.fc.bias.exp(), torch.full((5,), 0.2))
    assert len(downloaded) == 1


def test_weights_as_objects_and_whole(downloaded) -> None:
    from torchvision.models import ResNet18_Weights, ResNet50_Weights

    network = composer_resnet("resnet18", weights=ResNet18_Weights.DEFAULT).module
    assert (network.fc.weight == 1).all()
    network = composer_efficientnetb("efficientnet_b0", weights="DEFAULT", num_classes=5).module
    assert network.classifier[1].weight.shape == (5, 1280)
    assert (network.features[0][0].weight == 1).all()
    with pytest.raises(TypeError, match="ResNet18_Weights"):
        composer_resnet("resnet18", weights=ResNet50_Weights.DEFAULT)
    with pytest.raises(ValueError, match="would overwrite"):
        composer_resnet("resnet18", weights="DEFAULT", initializers=["kaiming_normal"])


# ------------------------------------------------------------------------------------------------ options


def test_loss_by_name() -> None:
    model = composer_resnet(
        "resnet18",
        num_classes=4,
        initializers=["linear_log_constant_bias"],
        loss_name="binary_cross_entropy_with_logits",
    )
    assert model._loss_fn is loss_registry["binary_cross_entropy_with_logits"]
    with torch.device("meta"), pytest.warns(ComposerWarning, match="linear_log_constant_bias"):
        composer_resnet("resnet18", loss_name="binary_cross_entropy_with_logits")


def test_options_of_timm() -> None:
    model = composer_timm(
        "test_resnet",
        num_classes=10,
        drop_rate=0.3,
        drop_path_rate=0.2,
        global_pool="max",
        bn_momentum=0.02,
        bn_eps=0.01,
    )
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.02, 0.01)}
    assert model.module.drop_rate == 0.3
    assert model.module.global_pool.pool_type == "max"
    assert max(getattr(module, "drop_prob", 0.0) or 0.0 for module in model.modules()) == pytest.approx(0.2)
    unchanged = composer_timm("test_resnet").module
    assert {module.momentum for module in unchanged.modules() if isinstance(module, nn.BatchNorm2d)} == {0.1}


def test_drop_connect_rate_grows_to_the_last_block() -> None:
    from torchvision.ops import StochasticDepth

    with torch.device("meta"):
        model = composer_efficientnetb("efficientnet_b0", drop_connect_rate=0.4)
    rates = [module.p for module in model.modules() if isinstance(module, StochasticDepth)]
    assert rates == pytest.approx([0.4 * block / 16 for block in range(16)])


def test_dropout_of_the_vision_transformer() -> None:
    with torch.device("meta"):
        network = composer_vit("vit_tiny_patch16", dropout=0.1, embedding_dropout=0.2).module
    assert network.pos_drop.p == 0.2
    assert {block.attn.attn_drop.p for block in network.blocks} == {0.1}
    assert {module.p for module in network.blocks.modules() if isinstance(module, nn.Dropout)} == {0.1}


def test_shallow_and_deep_of_cifar() -> None:
    from composer.models.resnet_cifar import BasicBlock, ResNet9, ResNetCIFAR

    assert sum(isinstance(module, BasicBlock) for module in ResNetCIFAR(26).modules()) == 12
    norms = [module for module in ResNet9(10).modules() if isinstance(module, nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {0.9}
    assert len(norms) == 8
    with pytest.raises(ValueError, match="depth must be"):
        ResNetCIFAR(21)


def test_it_computes_what_torchvisions_blocks_compute() -> None:
    from torchvision.models.resnet import BasicBlock as Reference

    from composer.models.resnet_cifar import BasicBlock

    ours = BasicBlock(4, 8, stride=2).eval()
    theirs = Reference(4, 8, stride=2, downsample=ours.downsample).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 9, 9)
    assert torch.equal(ours(x), theirs(x))
