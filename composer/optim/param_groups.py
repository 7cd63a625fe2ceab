"""Parameter groups: no weight decay for biases and norms, and layer-wise learning-rate decay.

    learning rate of layer d = lr * layer_decay ** (L + 1 - d)     d = 1 ... L;  0: before the layers, L + 1: after them

Early layers learn general features, which should change least in fine-tuning. Paper, of the learning rates: ELECTRA,
Clark et al. 2020, https://arxiv.org/abs/2003.10555
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from composer._numbers import positive
from composer._text import did_you_mean
from composer.trees import ensure_tuple

__all__ = ["match_names", "parameter_groups"]

# Their weights have several dimensions if they normalize over several.
_NORMS = (nn.LayerNorm, nn.RMSNorm)


def parameter_groups(
    model: nn.Module,
    lr: float | None = None,
    weight_decay: float = 0.0,
    *,
    no_decay: str | Iterable[str] = (),
    layer_decay: float = 1.0,
    layers: str | Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups for an optimizer, each parameter once.

    Parameters with fewer than two dimensions (biases, norm scales) and the weights of norms get no weight decay.

    Args:
        model: The model.
        lr: Learning rate. With ``layer_decay``, that of the parameters after the layers. None uses the optimizer's.
        weight_decay: Weight decay of the other parameters, in the optimizer's convention.
        no_decay: Names of additional parameters without decay, or patterns such as ``"*.embedding.weight"``.
        layer_decay: Learning rate of a layer relative to that of the next, above 0. 1 is the same for all.
        layers: Name of the module whose children are the layers, or several names in order, such as
            ``"encoder.layer"`` or ``["layer1", "layer2"]``. Default: the ``ModuleList`` or ``Sequential`` with the most
            children that have parameters.

    Returns:
        Dicts with ``params``, ``weight_decay``, ``name`` and, if a learning rate is given, ``lr``.

    Raises:
        ValueError: ``layer_decay`` is used without ``lr``, there are no layers, or a name does not exist.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    >>> [(group["name"], len(group["params"])) for group in parameter_groups(model, weight_decay=1e-5)]
    [('decay', 2), ('no decay', 4)]
    >>> groups = parameter_groups(model, lr=0.1, layer_decay=0.5)
    >>> [(group["name"], group["lr"]) for group in groups if group["name"].endswith(", decay")]
    [('layer 1, decay', 0.0125), ('layer 3, decay', 0.05)]

    Paper: https://arxiv.org/abs/2003.10555 (Clark et al. 2020)
    """
    parameters = {name: param for name, param in model.named_parameters() if param.requires_grad}
    if not parameters:
        raise ValueError(f"model: no parameter of {type(model).__name__} requires a gradient.")
    undecayed = match_names("no_decay", no_decay, parameters)
    undecayed |= {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        if isinstance(module, _NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }
    depths, deepest = dict.fromkeys(parameters, 0), 0
    if positive("layer_decay", layer_decay) != 1:
        if lr is None:
            raise ValueError(f"layer_decay={layer_decay} gives each layer a separate learning rate and requires lr.")
        depths, deepest = _depths(model, list(parameters), layers)
    elif layers is not None:
        raise ValueError(f"layers={layers!r} has no effect without layer_decay.")

    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, param in parameters.items():
        decays = param.ndim > 1 and name not in undecayed
        key = depths[name], decays
        if key not in groups:
            label = "decay" if decays else "no decay"
            groups[key] = {
                "params": list[Tensor](),
                "weight_decay": weight_decay if decays else 0.0,
                "name": f"layer {depths[name]}, {label}" if deepest else label,
            }
            if lr is not None:
                groups[key]["lr"] = lr * layer_decay ** (deepest - depths[name])
        groups[key]["params"].append(param)
    return list(groups.values())


def match_names(argument: str, patterns: str | Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the names that match any of the patterns.

    Args:
        argument: Name of the argument, for the error message.
        patterns: One or more patterns with ``*``, ``?`` and ``[...]``, as in :mod:`fnmatch`.
        names: The names.

    Raises:
        ValueError: A pattern matches no name.

    >>> sorted(match_names("no_decay", "*.bias", ["fc.weight", "fc.bias", "bias"]))
    ['fc.bias']
    """
    known = list(names)
    found: set[str] = set()
    for pattern in ensure_tuple(patterns):
        matching = {name for name in known if fnmatchcase(name, pattern)}
        if not matching:
            raise ValueError(f"{argument}: no parameter is named {pattern!r}.{did_you_mean(pattern, known)}")
        found |= matching
    return found


def _depths(model: nn.Module, names: Sequence[str], layers: str | Sequence[str] | None) -> tuple[dict[str, int], int]:
    """Return the depth of each parameter, and the depth after all layers."""
    containers = (_find_layers(model),) if layers is None else ensure_tuple(layers)
    modules = dict(model.named_modules())
    prefixes: list[str] = []
    for container in containers:
        if container not in modules:
            raise ValueError(f"layers: no module is named {container!r}.{did_you_mean(container, modules)}")
        children = modules[container].named_children()
        prefixes += [
            f"{container}.{child}.".lstrip(".") for child, module in children if any(True for _ in module.parameters())
        ]
    if not prefixes:
        raise ValueError(f"layers: {', '.join(map(repr, containers))} has no children with parameters.")
    inside = {name: d for name in names for d, prefix in enumerate(prefixes, start=1) if name.startswith(prefix)}
    last = max((index for index, name in enumerate(names) if name in inside), default=-1)
    depths, depth = dict[str, int](), 0
    for index, name in enumerate(names):
        depth = inside.get(name, depth) if index <= last else len(prefixes) + 1
        depths[name] = depth
    return depths, len(prefixes) + 1


def _find_layers(model: nn.Module) -> str:
    sizes = {
        name: sum(any(True for _ in child.parameters()) for child in module.children())
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential))
    }
    best = max(sizes, key=lambda name: sizes[name], default=None)
    if best is None or sizes[best] < 2:
        raise ValueError(
            f"layer_decay: {type(model).__name__} has no ModuleList or Sequential of layers; name the module whose "
            f"children are the layers, as in layers='encoder.layer'."
        )
    return best
