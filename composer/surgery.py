"""Model surgery: replace layers of a model, and swap their parameters in the optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    """Creates the replacement of a module, or returns None to keep the module.

    Called with the module and with its index among the modules of its class, from 0.

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
    """Replace the descendants of a module that are instances of given classes, in place.

    A module that occurs several times is replaced by the same replacement everywhere. The replacement gets the device,
    the floating-point dtype and the training mode of the replaced module; the replacement of a layer without tensors,
    such as pooling, gets the device of the enclosing module. ``module`` itself is not replaced.

    Args:
        module: The model.
        policies: Replacement functions by class; the first matching class whose function returns a module is used.
        optimizers: Optimizers to update, see :func:`update_params_in_optimizer`.
        recurse_on_replacements: Whether to replace modules inside replacements too.
        indices: The counts of modules by class; updated, so that several calls can use the same counts.

    Returns:
        The replacement of each replaced module.

    Raises:
        TypeError: The model is wrapped for data parallelism, which has registered its parameters.
        RuntimeError: The parameter group of a new parameter is ambiguous.

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
    walk = _Walk(policies, counts, recurse_on_replacements)
    walk(module)
    if optimizers is not None and walk.replaced:
        _update_optimizers(module, walk.replaced, _as_list(optimizers))
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
    """Replace parameters in optimizers.

    Parameters in both ``old_params`` and ``new_params`` keep their position and state. Those only in ``old_params`` are
    removed together with their state; those only in ``new_params`` are added, without state, to the parameter group of
    the old ones. If these are in several groups (such as weights with weight decay and biases without), a new parameter
    is added to the group of old ones with the same number of dimensions; if there is none, a matrix or filter is added
    to the group of matrices and filters, a vector to the other.

    Args:
        old_params: The parameters of the replaced module.
        new_params: The parameters of its replacement.
        optimizers: One optimizer or several; optimizers without old parameters are not changed.

    Raises:
        RuntimeError: The group of a new parameter is ambiguous; nothing is changed then.

    >>> from torch.optim import SGD
    >>> old, new = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    >>> optimizer = SGD(old.parameters(), lr=0.1)
    >>> update_params_in_optimizer(old.parameters(), new.parameters(), optimizer)
    >>> optimizer.param_groups[0]["params"] == [new.weight]
    True
    """
    old, new = _by_id(old_params), _by_id(new_params)
    _edit_param_groups(old, new, _as_list(optimizers), {})


@dataclass
class _Walk:
    """A traversal of a model: each module is considered once, and every reference to it is replaced."""

    policies: Mapping[type[nn.Module], ReplacementFunction]
    counts: MutableMapping[type[nn.Module], int]
    recurse: bool
    replaced: dict[nn.Module, nn.Module] = field(default_factory=dict[nn.Module, nn.Module])
    seen: set[nn.Module] = field(default_factory=set[nn.Module])

    def __call__(self, parent: nn.Module, keep: nn.Module | None = None, around: tuple[nn.Module, ...] = ()) -> None:
        """Replace the children of a module recursively, all but ``keep``; ``around`` are the enclosing modules."""
        if parent in self.seen:
            return
        self.seen.add(parent)
        around = (parent, *around)
        # named_children() would leave out the second name of a module that has two.
        for name, child in list(parent._modules.items()):  # pyright: ignore[reportPrivateUsage]
            if child is None:
                continue
            if child is not keep and child not in self.replaced and child not in self.seen:
                new = _replacement(child, self.policies, self.counts)
                if new is not None and new is not child:
                    _adapt(new, child, around)
                    self.replaced[child] = new
            if child is keep or child not in self.replaced:
                self(child, keep, around)
                continue
            parent._modules[name] = self.replaced[child]  # pyright: ignore[reportPrivateUsage]
            if self.recurse:
                # A replacement often contains the replaced module, which must stay there.
                self(self.replaced[child], child, around)


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


def _adapt(new: nn.Module, old: nn.Module, around: Sequence[nn.Module]) -> None:
    """Give a new module the device, dtype and mode of the old one; submodules that both share are not changed.

    If the old module has no tensors, such as a pooling layer, the device is that of the innermost enclosing module with
    tensors. If that is the meta device, the new module keeps its values.
    """
    tensors = _tensors_of(old)
    devices = {tensor.device for tensor in tensors or next(filter(None, map(_tensors_of, around)), ())}
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    own = [tensor for tensor in _tensors_of(new) if all(tensor is not each for each in tensors)]
    device = next(iter(devices)) if len(devices) == 1 else None
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else None
    if device is not None and (tensors or device.type != "meta") and any(tensor.device != device for tensor in own):
        new.to(device)
    if dtype is not None and any(tensor.is_floating_point() and tensor.dtype != dtype for tensor in own):
        new.to(dtype)
    kept = set(old.modules())
    for part in new.modules():
        if part not in kept:
            part.training = old.training


def _tensors_of(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _update_optimizers(model: nn.Module, replaced: Mapping[nn.Module, nn.Module], optimizers: list[Optimizer]) -> None:
    """Update the optimizers of a model whose modules were replaced."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for before, after in replaced.items():
        old, new = _by_id(before.parameters()), _by_id(after.parameters())
        known = _parameter_ids(optimizers)
        new = {key: parameter for key, parameter in new.items() if key in old or key not in known}
        if new and not old:
            old = _only_group(optimizers, type(after).__name__)
            new = old | new
        # A parameter that the model still uses elsewhere, a tied weight, is not dropped.
        _edit_param_groups(
            old, {key: parameter for key, parameter in old.items() if key in names} | new, optimizers, names
        )


def _only_group(optimizers: list[Optimizer], name: str) -> dict[int, nn.Parameter]:
    """Return the parameters of the only parameter group, for a new module that replaces one without parameters."""
    if len(optimizers) == 1 and len(optimizers[0].param_groups) == 1:
        return _by_id(optimizers[0].param_groups[0]["params"])
    raise RuntimeError(
        f"The new {name} has parameters but the replaced module has none, and the optimizers have several parameter "
        f"groups, so the group is ambiguous. Replace the modules first, and create the optimizers afterwards."
    )


def _edit_param_groups(
    old: Mapping[int, nn.Parameter],
    new: Mapping[int, nn.Parameter],
    optimizers: list[Optimizer],
    names: Mapping[int, str],
) -> None:
    """Find the group of each new parameter, then edit the groups."""
    added = [parameter for key, parameter in new.items() if key not in old]
    removed = {key for key in old if key not in new}
    candidates = [
        (group, [parameter for parameter in group["params"] if id(parameter) in old])
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    candidates = [(group, members) for group, members in candidates if members]
    entering: dict[int, list[nn.Parameter]] = {id(group): [] for group, _ in candidates}
    if candidates:
        for parameter in added:
            entering[id(_target_group(parameter, candidates))].append(parameter)
    for group, members in candidates:
        _edit_group(group, members, removed, entering[id(group)], names)
    for optimizer in optimizers:
        for key in removed:
            optimizer.state.pop(old[key], None)


def _target_group(
    parameter: nn.Parameter, candidates: list[tuple[dict[str, Any], list[nn.Parameter]]]
) -> dict[str, Any]:
    """Return the parameter group for a new parameter."""
    if len(candidates) == 1:
        return candidates[0][0]
    exact = [group for group, members in candidates if any(member.ndim == parameter.ndim for member in members)]
    # The matrices of a replacement belong to the group of a convolution's filters, not to that of its bias.
    same_rank = [
        group for group, members in candidates if any((each.ndim > 1) == (parameter.ndim > 1) for each in members)
    ]
    for alike in (exact, same_rank):
        if len(alike) == 1:
            return alike[0]
    raise RuntimeError(
        f"The parameters replaced by a new one of shape {tuple(parameter.shape)} are in {len(candidates)} parameter "
        f"groups, so its group is ambiguous. Replace the modules first, and create the optimizers afterwards."
    )


def _edit_group(
    group: dict[str, Any],
    members: list[nn.Parameter],
    removed: set[int],
    entering: list[nn.Parameter],
    names: Mapping[int, str],
) -> None:
    """Remove parameters of a group, and insert others at the position of the first removed, or after the last kept."""
    params: list[nn.Parameter] = group["params"]
    dropped = [index for index, parameter in enumerate(params) if id(parameter) in removed]
    last = max(index for index, parameter in enumerate(params) if parameter is members[-1])
    at = dropped[0] if dropped else last + 1
    kept = [index for index in range(len(params)) if index not in set(dropped)]
    before, after = [p for p in kept if p < at], [p for p in kept if p >= at]
    if "param_names" in group:
        old_names: list[str] = group["param_names"]
        new_names = [names.get(id(parameter), f"parameter_{id(parameter):x}") for parameter in entering]
        group["param_names"] = [*(old_names[p] for p in before), *new_names, *(old_names[p] for p in after)]
    # Keep the list object, to which schedulers and wrappers of the optimizer may hold references.
    params[:] = [*(params[p] for p in before), *entering, *(params[p] for p in after)]


def _parameter_ids(optimizers: list[Optimizer]) -> set[int]:
    return {id(parameter) for opt in optimizers for group in opt.param_groups for parameter in group["params"]}


def _by_id(parameters: Iterable[nn.Parameter]) -> dict[int, nn.Parameter]:
    # Compared by identity: == between parameters compares their elements.
    return {id(parameter): parameter for parameter in parameters}


def _as_list(optimizers: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
