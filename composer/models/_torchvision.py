"""Networks of torchvision, with weights by name and a head of any number of classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from composer._lazy import import_extra
from composer._text import one_of
from composer.models.initializers import Initializer, ensure_initializers, initialize

__all__ = ["make_network", "weights_of"]


def make_network(
    name: str,
    head: str,
    num_classes: int,
    weights: Any,
    initializers: Iterable[Initializer | str] | Initializer | str | None,
    purpose: str,
    **options: Any,
) -> nn.Module:
    """Build a network of torchvision.

    With ``weights``, a head for another number of classes is made anew, and only it is initialised.

    Args:
        name: As torchvision has it.
        head: Dotted name of the linear layer at the end.
        num_classes: Outputs of the head.
        weights: A name such as ``"IMAGENET1K_V1"`` or ``"DEFAULT"``, torchvision's object, or None.
        initializers: What to initialise with.
        purpose: What needs torchvision, for the message.
        **options: Handed to torchvision.

    Raises:
        MissingConditionalImportError: torchvision is not installed.
        ValueError: There are no such weights, or the initializers would overwrite all that was loaded.

    >>> network = make_network("resnet18", "fc", 10, None, None, "This example")
    >>> network.fc
    Linear(in_features=512, out_features=10, bias=True)
    """
    models: Any = import_extra("torchvision.models", "vision", purpose)
    rules = ensure_initializers(initializers)
    chosen = weights_of(models, name, weights)
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
            f"initializers={[rule.value for rule in rules]} would overwrite what weights={weights!r} loads, since "
            f"num_classes={num_classes} keeps the last layer too. Pass one of the two."
        )
    return network


def weights_of(models: Any, name: str, weights: Any) -> Any:
    """Return torchvision's object for weights that may be given by name, or None for none.

    Args:
        models: The module ``torchvision.models``.
        name: The network.
        weights: The name of the weights, alone or after that of their class; torchvision's object; or None.

    Raises:
        ValueError: There are no such weights.
        TypeError: The object belongs to another network.

    >>> import torchvision
    >>> weights_of(torchvision.models, "resnet50", "IMAGENET1K_V2")
    ResNet50_Weights.IMAGENET1K_V2
    """
    if weights is None:
        return None
    kind = models.get_model_weights(name)
    if isinstance(weights, str):
        return kind[one_of("weights", weights.removeprefix(f"{kind.__name__}."), kind.__members__)]
    return kind.verify(weights)
