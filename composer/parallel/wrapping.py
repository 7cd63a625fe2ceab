"""Which parts of a model are gathered, used and freed together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

from composer._text import one_of
from composer.precision import Precision

if TYPE_CHECKING:
    from composer.parallel.config import FSDPConfig

__all__ = ["Unit", "float32_units", "prefetch", "said_by_model", "units_of"]

_KEYS = ("mixed_precision", "reshard_after_forward", "sharding_strategy")
_WIDE = (nn.Embedding, nn.EmbeddingBag)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Unit:
    """A module whose weights are gathered together, and what the model says of it.

    Args:
        module: The module.
        settings: Values of ``mixed_precision``, ``reshard_after_forward`` and ``sharding_strategy`` that are its own.

    >>> Unit(nn.Linear(1, 1)).settings
    {}
    """

    def __init__(self, module: nn.Module, settings: dict[str, Any] | None = None) -> None:
        self.module = module
        self.settings = {} if settings is None else settings


def units_of(model: nn.Module, *, auto_wrap: bool = True, ignored: Sequence[nn.Module] = ()) -> list[Unit]:
    """Return the parts of a model that are units of their own; the rest belongs to the model as a whole.

    The model may say it: a module by its attribute ``_fsdp_wrap``, or the model or a child of it by a method
    ``fsdp_wrap_fn(module)`` that returns a bool, or the unit's own settings as a dict. Where nothing says anything,
    units are the entries of lists and sequences of modules that are repeated there: outermost, of one class, such as
    the blocks of a transformer or of a residual network. A block that shares a weight with the rest of the model is not
    one of them.

    Args:
        model: The model, which is no unit itself here.
        auto_wrap: Whether there are units at all.
        ignored: Modules that are left as they are.

    Raises:
        ValueError: A module that is to be a unit has no forward pass, or shares a weight with the rest of the model.

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
    left_alone = {part for module in ignored for part in module.modules()}
    said = said_by_model(model, "_fsdp_wrap", "fsdp_wrap_fn")
    sharing = _Sharing(model)
    if said is None:
        chosen = [Unit(block) for block in _repeated(model) if not sharing.of(block)]
    else:
        chosen = [_as_unit(name, module, said(module)) for name, module in model.named_modules() if module is not model]
        chosen = [unit for unit in chosen if unit is not None]
        for unit in chosen:
            if names := sharing.of(unit.module):
                raise ValueError(
                    f"{type(unit.module).__name__} is to be gathered by itself, but shares {', '.join(names)} with the "
                    f"rest of the model. Leave it to the module that holds both: _fsdp_wrap=False."
                )
    # Inner ones first, which is how they have to be made.
    return [unit for unit in reversed(chosen) if unit.module not in left_alone and _has_parameters(unit.module)]


def float32_units(
    model: nn.Module, units: Sequence[Unit], config: FSDPConfig, precision: str | Precision | None
) -> list[Unit]:
    """Return the normalizations and embeddings, whose weights are gathered in float32 in mixed precision.

    Autocast does not cast them: with weights in a short format their outputs would be in it too, and batch
    normalization takes none. They stay gathered from their forward to their backward pass.

    Args:
        model: The model.
        units: Those that there are besides; within ones that name a ``mixed_precision`` nothing is changed.
        config: Whose ``mixed_precision`` is ``"DEFAULT"`` or ``"PURE"``, or else there are none.
        precision: That of the training.

    >>> from composer.parallel.config import FSDPConfig
    >>> model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2), nn.LayerNorm(2))
    >>> [type(unit.module).__name__ for unit in float32_units(model, [], FSDPConfig(), "amp_bf16")]
    ['Embedding', 'LayerNorm']
    """
    if config.mixed_precision not in ("DEFAULT", "PURE") or precision is None or Precision(precision) is Precision.FP32:
        return []
    left_alone = {part for module in config.ignored_modules or () for part in module.modules()}
    left_alone.update(unit.module for unit in units)
    for unit in units:
        if "mixed_precision" in unit.settings:
            left_alone.update(unit.module.modules())
    sharing = _Sharing(model)
    wide = [module for module in model.modules() if module is not model and module not in left_alone]
    settings = {"mixed_precision": "FULL", "reshard_after_forward": False}
    return [Unit(module, dict(settings)) for module in wide if _is_wide(module) and not sharing.of(module)]


def prefetch(units: Sequence[FSDPModule], root: FSDPModule, config: FSDPConfig) -> None:
    """Fetch blocks ahead, in the order in which the model lists them.

    Args:
        units: The blocks.
        root: The model.
        config: Says how many.

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
        for place, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(list(units[place + 1 : place + 1 + ahead]))
    if behind > 1:
        root.set_modules_to_backward_prefetch(list(reversed(units[-behind:])))
        for place, unit in enumerate(units):
            unit.set_modules_to_backward_prefetch(list(reversed(units[max(place - behind, 0) : place])))


def said_by_model(model: nn.Module, attribute: str, method: str) -> Callable[[nn.Module], Any] | None:
    """Return the model's own policy ``module -> answer``, or None if it has none.

    Args:
        model: The model.
        attribute: Of a module, its own answer.
        method: Of the model or a child of it, its answer for the modules below.

    >>> said_by_model(nn.Linear(1, 1), "_fsdp_wrap", "fsdp_wrap_fn") is None
    True
    """
    deciders = {module: getattr(top, method) for top in (model, *model.children()) for module in top.modules()
                if callable(getattr(top, method, None))}  # fmt: skip
    if not deciders and not any(hasattr(module, attribute) for module in model.modules()):
        return None

    def answer(module: nn.Module) -> Any:
        if hasattr(module, attribute):
            return getattr(module, attribute)
        return deciders[module](module) if module in deciders else False

    return answer


def _as_unit(name: str, module: nn.Module, answer: Any) -> Unit | None:
    """What a policy answers, as a unit with its settings."""
    if not answer:
        return None
    if type(module).forward is nn.Module.forward or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        raise ValueError(
            f"{name} ({type(module).__name__}) is to be gathered by itself, but has no forward pass before which that "
            f"could happen; choose its entries."
        )
    settings = dict(cast("dict[str, Any]", answer)) if isinstance(answer, dict) else {}
    for key in settings:
        one_of(f"{name}: the key of fsdp_wrap_fn", key, _KEYS)
    return Unit(module, settings)


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost entries of containers whose class occurs there more than once."""
    children = list(module.children())
    counts = Counter(type(child) for child in children)
    for child in children:
        is_block = isinstance(module, _CONTAINERS) and counts[type(child)] > 1 and not isinstance(child, _CONTAINERS)
        if is_block and _has_parameters(child):
            yield child
        else:
            yield from _repeated(child)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_wide(module: nn.Module) -> bool:
    """Whether a module normalizes or looks up, with weights of its own and none below."""
    own = sum(1 for _ in module.parameters(recurse=False))
    named = isinstance(module, _WIDE) or "norm" in type(module).__name__.lower()
    return named and 0 < own == sum(1 for _ in module.parameters())


class _Sharing:
    """Which modules hold which weights."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._holders: dict[int, list[nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._holders.setdefault(id(parameter), []).append(module)

    def of(self, module: nn.Module) -> list[str]:
        """Names of the weights of a module that others hold too."""
        inside = set(module.modules())
        shared = [key for key in map(id, module.parameters()) if not inside.issuperset(self._holders[key])]
        return [self._names[key] for key in shared]
