"""Select the modules of a model that ``fully_shard`` wraps as FSDP units, which are all-gathered and freed together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from composer._text import one_of
from composer.precision import Precision

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from composer.parallel.config import FSDPConfig

__all__ = [
    "Unit",
    "float32_units",
    "is_norm_or_embedding",
    "model_policy",
    "prefetch",
    "repeated_blocks",
    "shared_by_blocks",
    "units_of",
]

_KEYS = ("mixed_precision", "reshard_after_forward", "sharding_strategy")
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Unit:
    """A module whose weights are all-gathered together (an FSDP unit), with its settings.

    Args:
        module: The module.
        settings: Values of ``mixed_precision``, ``reshard_after_forward`` and ``sharding_strategy`` that override the
            configuration.

    >>> Unit(nn.Linear(1, 1)).settings
    {}
    """

    def __init__(self, module: nn.Module, settings: dict[str, Any] | None = None) -> None:
        self.module = module
        self.settings = {} if settings is None else settings


def units_of(model: nn.Module, *, auto_wrap: bool = True, ignored: Sequence[nn.Module] = ()) -> list[Unit]:
    """Return the FSDP units of a model; all other weights belong to the root unit, the model itself.

    A model can select units with the attribute ``_fsdp_wrap`` of a module, or with a method ``fsdp_wrap_fn(module)`` of
    the model or one of its children that returns a bool, or the settings of the unit as a dict. By default, units are
    the repeated entries of module containers: outermost, of the same class, such as the blocks of a transformer or of a
    residual network. A block that shares a weight with the rest of the model is not a unit.

    Args:
        model: The model, which is not in the list itself.
        auto_wrap: False: the model is the only FSDP unit.
        ignored: Modules to leave unchanged.

    Raises:
        ValueError: A selected module has no forward method, or shares a weight with the rest of the model.

    >>> model = nn.Sequential(
    ...     nn.Embedding(2, 2), *[nn.Sequential(nn.Linear(2, 2)) for _ in range(3)], nn.Linear(2, 1)
    ... )
    >>> [unit.module for unit in units_of(model)]
    []
    >>> blocks = [nn.TransformerEncoderLayer(4, 2, 4) for _ in range(3)]
    >>> len(units_of(nn.Sequential(nn.Linear(2, 4), *blocks)))
    3
    """
    if not auto_wrap:
        return []
    excluded = {child for module in ignored for child in module.modules()}
    policy = model_policy(model, "_fsdp_wrap", "fsdp_wrap_fn")
    shared = _SharedParameters(model)
    if policy is None:
        chosen = [Unit(block) for block in _repeated(model) if not shared.of(block)]
    else:
        named = ((name, module) for name, module in model.named_modules() if module is not model)
        chosen = [unit for name, module in named if (unit := _as_unit(name, module, policy(module))) is not None]
        for unit in chosen:
            if names := shared.of(unit.module):
                raise ValueError(
                    f"{type(unit.module).__name__} is selected as an FSDP unit, but shares {', '.join(names)} with the "
                    f"rest of the model. Wrap the module that contains both instead, and set _fsdp_wrap=False here."
                )
    # Inner ones first, the order in which fully_shard must be applied.
    return [unit for unit in reversed(chosen) if unit.module not in excluded and _has_parameters(unit.module)]


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a model repeats, in the order in which it lists them: the units of :func:`units_of`.

    Left out are units inside of others, those whose class occurs once, and layers of ``torch.nn`` without children,
    such as the linear layers of a perceptron, which are single operations.

    Args:
        model: The model.

    >>> blocks = [nn.TransformerEncoderLayer(4, 2, 4) for _ in range(3)]
    >>> len(repeated_blocks(nn.Sequential(nn.Linear(2, 4), *blocks, nn.Linear(4, 4))))
    3
    >>> repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    []
    """
    units = [unit.module for unit in reversed(units_of(model))]
    inner = {child for module in units for child in module.modules() if child is not module}
    blocks = [module for module in units if module not in inner and not _is_single_operation(module)]
    counts = Counter(map(type, blocks))
    return [block for block in blocks if counts[type(block)] > 1]


def shared_by_blocks(model: nn.Module) -> list[str]:
    """Return the names of the weights for which entries of containers are not among :func:`repeated_blocks`.

    These entries share them with another module, or are one module that the container holds several times.

    Args:
        model: The model.

    >>> block = nn.TransformerEncoderLayer(4, 2, 4, bias=False)
    >>> shared_by_blocks(nn.Sequential(block, block))[:2]
    ['0.self_attn.in_proj_weight', '0.self_attn.out_proj.weight']
    """
    shared = _SharedParameters(model)
    found = {name for block in _repeated(model) if not _is_single_operation(block) for name in shared.of(block)}
    for container in model.modules():
        if isinstance(container, _CONTAINERS):
            entries = Counter(container._modules.values())  # children() lists each module once
            again = [each for each, times in entries.items() if each is not None and times > 1]
            found.update(name for each in again if not _is_single_operation(each) for name in shared.names(each))
    return [name for name, _ in model.named_parameters() if name in found]


def float32_units(
    model: nn.Module, units: Sequence[Unit], config: FSDPConfig, precision: str | Precision | None
) -> tuple[list[Unit], list[Unit]]:
    """Return the units, and further ones for the normalizations and embeddings inside them, with their precision.

    In mixed precision, weights of normalizations and embeddings are all-gathered in float32. Autocast does not cast
    them: with low-precision weights their outputs would be in low precision too, and batch normalization does not
    accept them. Those that are units themselves, such as the repeated ones of an ``nn.Sequential``, keep their other
    settings; the further ones stay unsharded from their forward to their backward pass.

    Args:
        model: The model.
        units: The units, inner ones first.
        config: The configuration. Normalizations and embeddings are all-gathered in float32 if the ``mixed_precision``
            of their innermost unit, or else of the configuration, is ``"DEFAULT"`` or ``"PURE"``.
        precision: The training precision.

    >>> from composer.parallel.config import FSDPConfig
    >>> model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2), nn.LayerNorm(2))
    >>> units, others = float32_units(model, [Unit(model[2])], FSDPConfig(), "amp_bf16")
    >>> [unit.settings for unit in units], [type(unit.module).__name__ for unit in others]
    ([{'mixed_precision': 'FULL'}], ['Embedding'])
    """
    if precision is None or Precision(precision) is Precision.FP32:
        return list(units), []
    settings_of: dict[nn.Module, dict[str, Any]] = {}
    for unit in reversed(units):  # outer ones first, so that the innermost decides
        settings_of.update(dict.fromkeys(unit.module.modules(), unit.settings))

    def is_float32(module: nn.Module) -> bool:
        mixed = settings_of.get(module, {}).get("mixed_precision", config.mixed_precision)
        return is_norm_or_embedding(module) and isinstance(mixed, str) and mixed.upper() in ("DEFAULT", "PURE")

    full = {"mixed_precision": "FULL"}
    blocks = [Unit(unit.module, unit.settings | full) if is_float32(unit.module) else unit for unit in units]
    excluded = {child for module in config.ignored_modules or () for child in module.modules()}
    excluded.update((model, *(unit.module for unit in units)))
    shared = _SharedParameters(model)
    wide = [module for module in model.modules() if module not in excluded and is_float32(module)]
    further = [Unit(module, {**full, "reshard_after_forward": False}) for module in wide if not shared.of(module)]
    return blocks, further


def is_norm_or_embedding(module: nn.Module) -> bool:
    """Return whether a module is a normalization or an embedding, whose weights autocast does not cast.

    Normalizations have "norm" in their class name, and all their weights are their own.

    Args:
        module: The module.

    >>> is_norm_or_embedding(nn.LayerNorm(2)), is_norm_or_embedding(nn.Linear(2, 2))
    (True, False)
    """
    own = sum(1 for _ in module.parameters(recurse=False))
    named = isinstance(module, _EMBEDDINGS) or "norm" in type(module).__name__.lower()
    return named and 0 < own == sum(1 for _ in module.parameters())


def prefetch(units: Sequence[FSDPModule], root: FSDPModule, config: FSDPConfig) -> None:
    """Set up prefetching (early all-gathers) of blocks, in the order in which the model lists them.

    Args:
        units: The blocks.
        root: The model.
        config: The configuration with the prefetch limits.

    >>> from composer import dist
    >>> from composer.parallel.config import FSDPConfig
    >>> from torch.distributed.fsdp import fully_shard
    >>> dist.initialize_dist("cpu")
    >>> model = fully_shard(nn.Linear(1, 1), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    >>> prefetch([], model, FSDPConfig(forward_prefetch=True))
    >>> torch.distributed.destroy_process_group()
    """
    ahead, behind = config.forward_prefetch_limit, config.backward_prefetch_limit
    if config.forward_prefetch:
        root.set_modules_to_forward_prefetch(list(units[:ahead]))
        for index, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(list(units[index + 1 : index + 1 + ahead]))
    if behind > 1:
        root.set_modules_to_backward_prefetch(list(reversed(units[-behind:])))
        for index, unit in enumerate(units):
            unit.set_modules_to_backward_prefetch(list(reversed(units[max(index - behind, 0) : index])))


def model_policy(model: nn.Module, attribute: str, method: str) -> Callable[[nn.Module], Any] | None:
    """Return the model's wrapping policy, a function of a module, or None if the model defines none.

    Args:
        model: The model.
        attribute: Name of the module attribute that holds the result for this module.
        method: Name of the method, of the model or one of its children, that returns the result for a module below.

    >>> model_policy(nn.Linear(1, 1), "_fsdp_wrap", "fsdp_wrap_fn") is None
    True
    """
    deciders = {module: getattr(top, method) for top in (model, *model.children()) for module in top.modules()
                if callable(getattr(top, method, None))}  # fmt: skip
    if not deciders and not any(hasattr(module, attribute) for module in model.modules()):
        return None

    def policy(module: nn.Module) -> Any:
        if hasattr(module, attribute):
            return getattr(module, attribute)
        return deciders[module](module) if module in deciders else False

    return policy


def _as_unit(name: str, module: nn.Module, selected: Any) -> Unit | None:
    """Return the unit for the result of a policy."""
    if not selected:
        return None
    if type(module).forward is nn.Module.forward or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        raise ValueError(
            f"{name} ({type(module).__name__}) is selected as an FSDP unit, but has no forward method, before which "
            f"FSDP all-gathers weights; select its entries instead."
        )
    settings = dict(cast("dict[str, Any]", selected)) if isinstance(selected, dict) else {}
    for key in settings:
        one_of(f"{name}: the key of fsdp_wrap_fn", key, _KEYS)
    return Unit(module, settings)


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost container entries whose class occurs in the container more than once."""
    children = list(module.children())
    counts = Counter(type(child) for child in children)
    for child in children:
        is_block = isinstance(module, _CONTAINERS) and counts[type(child)] > 1 and not isinstance(child, _CONTAINERS)
        if is_block and _has_parameters(child):
            yield child
        else:
            yield from _repeated(child)


def _is_single_operation(module: nn.Module) -> bool:
    # fully_shard derives a class of its own from that of the module.
    is_layer = any(base.__module__.startswith("torch.nn.") and base is not nn.Module for base in type(module).__mro__)
    return is_layer and next(module.children(), None) is None


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


class _SharedParameters:
    """Finds parameters that several modules share (tied weights)."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._holders: dict[int, list[nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._holders.setdefault(id(parameter), []).append(module)

    def of(self, module: nn.Module) -> list[str]:
        """Return the names of a module's weights that modules outside of it hold too."""
        inside = set(module.modules())
        shared = [key for key in map(id, module.parameters()) if not inside.issuperset(self._holders[key])]
        return [self._names[key] for key in shared]

    def names(self, module: nn.Module) -> list[str]:
        """Return the names of a module's weights in the model."""
        return [self._names[key] for key in map(id, module.parameters())]
