"""Image classifiers from the package timm."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from composer._lazy import import_extra
from composer._numbers import whole_number
from composer._text import did_you_mean
from composer.models._builder_classes import init_from_builder
from composer.models.classifier import ComposerClassifier

__all__ = ["Timm", "composer_timm"]


def composer_timm(
    model_name: str,
    pretrained: bool = False,
    num_classes: int = 1000,
    drop_rate: float = 0.0,
    drop_path_rate: float | None = None,
    drop_block_rate: float | None = None,
    global_pool: str | None = None,
    bn_momentum: float | None = None,
    bn_eps: float | None = None,
) -> ComposerClassifier:
    """Build a timm network as a classifier of batches (images, targets).

    The metrics are the accuracy, and in evaluation also the cross entropy. Rates and pooling default to those of the
    network.

    Args:
        model_name: Name in timm, optionally with the tag of its weights (``"resnet50.a1_in1k"``), or a location such as
            ``"hf-hub:..."`` or ``"local-dir:..."``.
        pretrained: Whether to load pretrained weights, downloaded on first use.
        num_classes: C.
        drop_rate: Probability of dropout before the last layer.
        drop_path_rate: Largest stochastic depth probability of the residual blocks.
        drop_block_rate: Probability of DropBlock, in networks that support it.
        global_pool: Global pooling: ``"avg"``, ``"max"``, ``"avgmax"``, ``"catavgmax"``, ...
        bn_momentum: Momentum of all batch norms.
        bn_eps: Epsilon of all batch norms.

    Raises:
        ValueError: timm has no model of this name, or there is no class.
        TypeError: The model does not support an option.
        MissingConditionalImportError: timm is not installed.

    >>> model = composer_timm("test_resnet", num_classes=10, bn_momentum=0.01)
    >>> model((torch.zeros(2, 3, 32, 32), torch.tensor([1, 7]))).shape
    torch.Size([2, 10])
    """
    timm: Any = import_extra("timm", "vision", "composer_timm")
    base = model_name.partition(".")[0]
    if ":" not in model_name and not timm.is_model(base):
        raise ValueError(f"model_name={model_name!r} is not a timm model.{did_you_mean(base, timm.list_models())}")
    network: nn.Module = timm.create_model(
        model_name,
        pretrained=pretrained,
        num_classes=whole_number("num_classes", num_classes, minimum=1),
        drop_rate=drop_rate,
        drop_path_rate=drop_path_rate,
        drop_block_rate=drop_block_rate,
        global_pool=global_pool,
    )
    # Few timm networks have arguments for these.
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = module.momentum if bn_momentum is None else bn_momentum
            module.eps = module.eps if bn_eps is None else bn_eps
    return ComposerClassifier(network, num_classes=num_classes)


class Timm(ComposerClassifier):
    """:func:`composer_timm` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(composer_timm)
