"""Replaces layers of a model, and keeps the optimizers in step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

__all__ = [
    "ReplacementFunction",
    "count_module_instances",
    "replace_module_classes",
    "update_params_in_optimizer",
]


class ReplacementFunction(Protocol):
    """Makes the replacement of a module, or returns None to keep the module.

    Called with the module and with the number of modules of its class that came before it, from 0.

    >>> drop_activation: ReplacementFunction = lambda module, module_index: nn.Identity()
    >>> drop_activation(nn.ReLU(), 0)
    Identity()
    """

    def __call__(self, module: Any, module_index: int, /) -> nn.Module | None:
        """Return the replacement of ``module``, the ``module_index``-th of its class, or None."""
        ...


def replace_module_classes(
    module: nn.Module,
    policies: Mapping[type[nn.Module], ReplacementFunction],
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    recurse_on_replacements: bool = False,
    indices: MutableMapping[type[nn.Module], int] | None = None,
) -> dict[nn.Module, nn.Module]:
    """Replace the descendants of a module that are of given classes, in place.

    A module that occurs in several places is replaced in all of them, by one replacement. The replacement gets the
    device, the floating dtype and the training mode of what it replaces. ``module`` itself stays.

    Args:
        module: The model.
        policies: What makes the replacement of each class; the first class that fits and gives a replacement counts.
        optimizers: Those whose parameters are to follow, see :func:`update_params_in_optimizer`.
        recurse_on_replacements: Whether the modules inside a replacement are replaced too.
        indices: How many modules of each class were met before; counted on, so that several calls can share it.

    Returns:
        The replacement of each replaced module.

    Raises:
        TypeError: The model is wrapped for data parallelism, which has taken hold of its parameters.
        RuntimeError: It is not clear to which parameter group a new parameter belongs.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> replaced = replace_module_classes(model, {nn.ReLU: lambda module, module_index: nn.GELU()})
    >>> model[1], len(replaced)
    (GELU(approximate='none'), 1)
    """
    for child in module.modules():
        if isinstance(child, (DistributedDataParallel, DataParallel)):
            raise TypeError(
                f"module is wrapped in {type(child).__name__}, which has registered its parameters; replace layers "
                f"first, for example with model.module, and wrap the model afterwards."
            )
    counts: MutableMapping[type[nn.Module], int] = {} if indices is None else indices
    walk = _Walk(policies, counts, recurse_on_replacements, _device_of([*module.parameters(), *module.buffers()]))
    walk(module)
    if optimizers is not None and walk.replaced:
        _follow(module, walk.replaced, _as_list(optimizers))
    return walk.replaced


def count_module_instances(module: nn.Module, module_class: type[nn.Module] | tuple[type[nn.Module], ...]) -> int:
    """Count the distinct modules of a class in a model, the model itself included.

    Args:
        module: The model.
        module_class: The class or classes to count; subclasses count.

    >>> count_module_instances(nn.Sequential(nn.ReLU(), nn.Linear(1, 1)), nn.ReLU)
    1
    """
    return sum(isinstance(child, module_class) for child in module.modules())


def update_params_in_optimizer(
    old_params: Iterable[nn.Parameter],
    new_params: Iterable[nn.Parameter],
    optimizers: Optimizer | Sequence[Optimizer],
) -> None:
    """Put the parameters that replace others into the others' place in the optimizers.

    Parameters in both keep their place and their state. Those only in ``old_params`` are dropped together with their
    state; those only in ``new_params`` enter, without state, the parameter group of the old ones. If these were in
    several groups (weights with decay and biases without), a new parameter enters the group of the old ones with as
    many dimensions; where none has as many, a matrix or filter enters that of matrices and filters, a vector the other.

    Args:
        old_params: The parameters of the replaced module.
        new_params: The parameters of its replacement.
        optimizers: One optimizer or several; one that holds no old parameter is left alone.

    Raises:
        RuntimeError: It is not clear to which group a new parameter belongs; nothing is changed then.

    >>> from torch.optim import SGD
    >>> old, new = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    >>> optimizer = SGD(old.parameters(), lr=0.1)
    >>> update_params_in_optimizer(old.parameters(), new.parameters(), optimizer)
    >>> optimizer.param_groups[0]["params"] == [new.weight]
    True
    """
    old, new = _by_id(old_params), _by_id(new_params)
    _exchange(old, new, _as_list(optimizers), {})


@dataclass
class _Walk:
    """One pass over a model: every module is asked about once, every place that holds it is set."""

    policies: Mapping[type[nn.Module], ReplacementFunction]
    counts: MutableMapping[type[nn.Module], int]
    recurse: bool
    device: torch.device | None
    replaced: dict[nn.Module, nn.Module] = field(default_factory=dict[nn.Module, nn.Module])
    seen: set[nn.Module] = field(default_factory=set[nn.Module])

    def __call__(self, parent: nn.Module, keep: nn.Module | None = None) -> None:
        """Replace the children of a module, then theirs, all but ``keep``."""
        if parent in self.seen:
            return
        self.seen.add(parent)
        # named_children() would leave out the second name of a module that has two.
        for name, child in list(parent._modules.items()):  # pyright: ignore[reportPrivateUsage]
            if child is None:
                continue
            if child is not keep and child not in self.replaced and child not in self.seen:
                new = _replacement(child, self.policies, self.counts)
                if new is not None and new is not child:
                    _adapt(new, child, self.device)
                    self.replaced[child] = new
            if child is keep or child not in self.replaced:
                self(child, keep)
                continue
            parent._modules[name] = self.replaced[child]  # pyright: ignore[reportPrivateUsage]
            if self.recurse:
                # A replacement often holds what it replaces, which must stay there.
                self(self.replaced[child], keep=child)


def _replacement(
    child: nn.Module,
    policies: Mapping[type[nn.Module], ReplacementFunction],
    counts: MutableMapping[type[nn.Module], int],
) -> nn.Module | None:
    for cls, policy in policies.items():
        if isinstance(child, cls):
            index = counts.get(cls, 0)
            counts[cls] = index + 1
            new = policy(child, index)
            if new is not None:
                return new
    return None


def _adapt(new: nn.Module, old: nn.Module, device: torch.device | None) -> None:
    """Give a new module the device, dtype and mode of the old one; parts that it shares with the old one stay.

    An old one without tensors, such as a pooling layer, computes wherever the model does: on ``device``.
    """
    tensors = [*old.parameters(), *old.buffers()]
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    own = [tensor for tensor in (*new.parameters(), *new.buffers()) if all(tensor is not each for each in tensors)]
    if tensors or (device is not None and device.type == "meta"):
        # What is computed when a module is made, such as a filter, would be lost on the meta device.
        device = _device_of(tensors)
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else None
    if device is not None and any(tensor.device != device for tensor in own):
        new.to(device)
    if dtype is not None and any(tensor.is_floating_point() and tensor.dtype != dtype for tensor in own):
        new.to(dtype)
    kept = set(old.modules())
    for part in new.modules():
        if part not in kept:
            part.training = old.training


def _device_of(tensors: list[Tensor]) -> torch.device | None:
    """The device of them all, if it is one."""
    devices = {tensor.device for tensor in tensors}
    return next(iter(devices)) if len(devices) == 1 else None


def _follow(model: nn.Module, replaced: Mapping[nn.Module, nn.Module], optimizers: list[Optimizer]) -> None:
    """Bring the optimizers in step with a model whose modules were replaced."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for before, after in replaced.items():
        old, new = _by_id(before.parameters()), _by_id(after.parameters())
        held = _held(optimizers)
        new = {key: parameter for key, parameter in new.items() if key in old or key not in held}
        if new and not old:
            old = _only_group(optimizers, type(after).__name__)
            new = old | new
        # A parameter that the model still uses elsewhere, a tied weight, is not dropped.
        _exchange(old, {key: parameter for key, parameter in old.items() if key in names} | new, optimizers, names)


def _only_group(optimizers: list[Optimizer], name: str) -> dict[int, nn.Parameter]:
    """The parameters beside which those of a module go that replaces one without parameters."""
    if len(optimizers) == 1 and len(optimizers[0].param_groups) == 1:
        return _by_id(optimizers[0].param_groups[0]["params"])
    raise RuntimeError(
        f"The parameters of the new {name} replace none, and the optimizers have several parameter groups: it is not "
        f"clear which group they belong to. Replace the modules first, and make the optimizers afterwards."
    )


def _exchange(
    old: Mapping[int, nn.Parameter],
    new: Mapping[int, nn.Parameter],
    optimizers: list[Optimizer],
    names: Mapping[int, str],
) -> None:
    """Find the group of each new parameter, then edit the groups."""
    added = [parameter for key, parameter in new.items() if key not in old]
    removed = {key for key in old if key not in new}
    homes = [
        (group, [parameter for parameter in group["params"] if id(parameter) in old])
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    homes = [(group, members) for group, members in homes if members]
    entering: dict[int, list[nn.Parameter]] = {id(group): [] for group, _ in homes}
    if homes:
        for parameter in added:
            entering[id(_home(parameter, homes))].append(parameter)
    for group, members in homes:
        _edit_group(group, members, removed, entering[id(group)], names)
    for optimizer in optimizers:
        for key in removed:
            optimizer.state.pop(old[key], None)


def _home(parameter: nn.Parameter, homes: list[tuple[dict[str, Any], list[nn.Parameter]]]) -> dict[str, Any]:
    """The group that a new parameter belongs to."""
    if len(homes) == 1:
        return homes[0][0]
    exact = [group for group, members in homes if any(member.ndim == parameter.ndim for member in members)]
    # The matrices of a replacement go beside the filters of a convolution, away from its bias.
    kind = [group for group, members in homes if any((each.ndim > 1) == (parameter.ndim > 1) for each in members)]
    for alike in (exact, kind):
        if len(alike) == 1:
            return alike[0]
    raise RuntimeError(
        f"The parameters that a new one of shape {tuple(parameter.shape)} replaces are in {len(homes)} parameter "
        f"groups: it is not clear which group it belongs to. Replace the modules first, and make the optimizers "
        f"afterwards."
    )


def _edit_group(
    group: dict[str, Any],
    members: list[nn.Parameter],
    removed: set[int],
    entering: list[nn.Parameter],
    names: Mapping[int, str],
) -> None:
    """Drop parameters of a group and put others at the place of the first dropped, or after the last kept."""
    params: list[nn.Parameter] = group["params"]
    dropped = [place for place, parameter in enumerate(params) if id(parameter) in removed]
    last = max(place for place, parameter in enumerate(params) if parameter is members[-1])
    at = dropped[0] if dropped else last + 1
    rest = [place for place in range(len(params)) if place not in set(dropped)]
    before, after = [p for p in rest if p < at], [p for p in rest if p >= at]
    if "param_names" in group:
        old_names: list[str] = group["param_names"]
        new_names = [names.get(id(parameter), f"parameter_{id(parameter):x}") for parameter in entering]
        group["param_names"] = [*(old_names[p] for p in before), *new_names, *(old_names[p] for p in after)]
    # The list object stays: schedulers and wrappers of the optimizer may hold it.
    params[:] = [*(params[p] for p in before), *entering, *(params[p] for p in after)]


def _held(optimizers: list[Optimizer]) -> set[int]:
    return {id(parameter) for opt in optimizers for group in opt.param_groups for parameter in group["params"]}


def _by_id(parameters: Iterable[nn.Parameter]) -> dict[int, nn.Parameter]:
    # Compared by identity: == between parameters compares their elements.
    return {id(parameter): parameter for parameter in parameters}


def _as_list(optimizers: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
