"""Build torchvision networks with pretrained weights by name and a head for any number of classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from composer._lazy import import_extra
from composer._numbers import whole_number
from composer._text import one_of
from composer.models.initializers import Initializer, ensure_initializers, initialize

__all__ = ["make_network", "resolve_weights"]


def make_network(
    name: str,
    head: str,
    num_classes: int,
    weights: Any,
    initializers: Iterable[Initializer | str] | Initializer | str | None,
    purpose: str,
    **options: Any,
) -> nn.Module:
    """Build a torchvision network.

    With ``weights``, the head is replaced if the number of classes differs, and only the new head is initialized.

    Args:
        name: Name of the network in torchvision.
        head: Dotted name of the last linear layer.
        num_classes: Number of outputs of the head.
        weights: A name such as ``"IMAGENET1K_V1"`` or ``"DEFAULT"``, a torchvision weights object, or None.
        initializers: Initializers to apply.
        purpose: Name of the function that needs torchvision, for the error.
        **options: Passed to torchvision.

    Raises:
        MissingConditionalImportError: torchvision is not installed.
        ValueError: There is no class, the weights are unknown, or the initializers would overwrite the loaded weights.

    >>> network = make_network("resnet18", "fc", 10, None, None, "This example")
    >>> network.fc
    Linear(in_features=512, out_features=10, bias=True)
    """
    num_classes = whole_number("num_classes", num_classes, minimum=1)
    models: Any = import_extra("torchvision.models", "vision", purpose)
    rules = ensure_initializers(initializers)
    chosen = resolve_weights(models, name, weights)
    if chosen is None:
        network: nn.Module = models.get_model(name, num_classes=num_classes, **options)
        initialize(network, rules)
        return network
    network = models.get_model(name, weights=chosen, **options)
    last = network.get_submodule(head)
    assert isinstance(last, nn.Linear)
    if last.out_features != num_classes:
        last = nn.Linear(last.in_features, num_classes)
        parent, _, attribute = head.rpartition(".")
        setattr(network.get_submodule(parent), attribute, last)
        initialize(last, rules)
    elif rules:
        raise ValueError(
            f"initializers={[rule.value for rule in rules]} would overwrite the loaded weights={weights!r}, since "
            f"num_classes={num_classes} keeps the last layer too. Pass only one of the two."
        )
    return network


def resolve_weights(models: Any, name: str, weights: Any) -> Any:
    """Return the torchvision weights object for a name, or None.

    Args:
        models: The module ``torchvision.models``.
        name: Name of the network.
        weights: Name of the weights, with or without the class name; a torchvision weights object; or None.

    Raises:
        ValueError: The weights are unknown.
        TypeError: The object belongs to another network.

    >>> import torchvision
    >>> resolve_weights(torchvision.models, "resnet50", "IMAGENET1K_V2")
    ResNet50_Weights.IMAGENET1K_V2
    """
    if weights is None:
        return None
    enum = models.get_model_weights(name)
    if isinstance(weights, str):
        return enum[one_of("weights", weights.removeprefix(f"{enum.__name__}."), enum.__members__)]
    return enum.verify(weights)
