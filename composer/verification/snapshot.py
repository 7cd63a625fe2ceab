"""Snapshots: digests of every attribute of the objects of a run, to find state that a checkpoint does not restore."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from composer.core.callback import Callback
from composer.core.state import State
from composer.optim.compiled_schedule import CompiledSchedule
from composer.verification.code_facts import global_variables
from composer.verification.digests import attributes, tagged
from composer.verification.objects import is_of_library, name_of

__all__ = ["Snapshot", "differences", "display", "is_global", "snapshot", "unwrapped"]

Snapshot = dict[str, dict[str, str]]

# Attributes of a loader that are entries of their own.
_LOADER_PARTS = frozenset(
    {"dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "_iterator", "_DataLoader__initialized"}
    | {"_DataLoader__multiprocessing_context", "_IterableDataset_len_called"}
)
_MAX_ENTRIES, _MAX_DEPTH = 64, 3
_OPTIMIZER_INTERNALS = frozenset(
    {"state", "param_groups", "defaults", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"}
)
# Words before the names of what modules have.
_WORDS = ("parameter ", "buffer ", "tie of ")
_FLAG = "requires_grad of "
_GLOBAL, _CACHE = "global variable ", "cache of "
# Larger global variables are data, and not compared: elements.
_MAX_GLOBAL = 10_000_000

# What a class has beside variables.
_OF_CLASSES = (classmethod, staticmethod, property, type, GetSetDescriptorType, MemberDescriptorType)

_MODULE_INTERNALS = frozenset(nn.Module().__dict__) - {"training"}


def snapshot(state: State, without: Callback) -> Snapshot:
    """Return the digest of each attribute, by object: ``{"callback Counter": {"count": "90ab..."}}``.

    The first word of an object's name is its role: module, algorithm, callback, optimizer, schedule or data.

    Args:
        state: The state of the run.
        without: The callback that takes the snapshot.

    >>> from composer import State
    >>> found = snapshot(State(model=torch.nn.BatchNorm1d(2)), None)
    >>> sorted(found["module "])[:3]
    ['affine', 'buffer num_batches_tracked', 'buffer running_mean']
    """
    found: Snapshot = {}
    first: dict[int, str] = {}
    for name, module in state.model.named_modules():
        found[f"module {name}"] = {**_of_module(module), **_of_classes(module), **_globals(module)}
        for key, parameter in module.named_parameters(recurse=False):
            path = f"{name}.{key}".lstrip(".")
            if (tied := first.setdefault(id(parameter), path)) != path:
                found[f"module {name}"][f"tie of {key}"] = tied
    # Those of the program that write are left out of trials; the trial itself may save.
    for role, entries in (
        ("algorithm", state.algorithms),
        ("callback", [one for one in state.callbacks if one is not without and not one.writes_output]),
        ("optimizer", state.optimizers),
        ("schedule", state.schedulers),
    ):
        for entry in map(unwrapped, entries):
            held = _of_optimizer(entry) if role == "optimizer" else _expanded(entry)
            found[f"{role} {name_of(entry)}"] = {**held, **_of_classes(entry), **_globals(entry)}
    for name, part in _data(state):
        held = {**_expanded(part), **_of_classes(part), **_globals(part)}
        found[f"data {name if isinstance(part, DataLoader) else name_of(part)}"] = held
    return found


def display(name: str) -> str:
    """Return how people name an attribute of :func:`differences`: the class or the module, and the attribute.

    Args:
        name: What :func:`differences` returns.

    >>> display("module net.2: buffer mean"), display("module net.2: requires_grad of bias")
    ('net.2.mean', 'net.2.bias.requires_grad')
    """
    owner, _, attribute = name.partition(" ")[2].partition(": ")
    if attribute.startswith((_GLOBAL, _CACHE)):
        return f"the {attribute}"
    if attribute.startswith(_FLAG):
        attribute = f"{attribute.removeprefix(_FLAG)}.requires_grad"
    for word in _WORDS:
        attribute = attribute.removeprefix(word)
    return f"{owner}.{attribute}".strip(".")


def is_global(name: str) -> bool:
    """Return whether an attribute of :func:`differences` is a global variable, or what a function keeps.

    Args:
        name: What :func:`differences` returns.

    >>> is_global("module loss: global variable SEEN")
    True
    """
    return name.partition(": ")[2].startswith((_GLOBAL, _CACHE))


def differences(expected: Snapshot, found: Snapshot) -> list[str]:
    """Return the attributes that differ, as ``"role object: attribute"``, in the order of the first snapshot.

    Args:
        expected: A snapshot.
        found: Another one.

    >>> differences(
    ...     {"callback Counter": {"count": "1", "size": "2"}},
    ...     {"callback Counter": {"count": "0", "size": "2"}},
    ... )
    ['callback Counter: count']
    """
    return [
        f"{name}: {attribute}"
        for name, attributes in expected.items()
        for attribute in attributes
        if found.get(name, {}).get(attribute) != attributes[attribute]
    ]


def unwrapped(entry: Any) -> Any:
    """Return the schedule that the program passed, of one that follows the timestamp of the run.

    Args:
        entry: The schedule, or anything else, which is returned.

    >>> unwrapped("schedule")
    'schedule'
    """
    return entry._schedule if isinstance(entry, CompiledSchedule) else entry  # pyright: ignore[reportPrivateUsage]


def _of_module(module: nn.Module) -> dict[str, str]:
    """Return digests of the buffers and of the plain attributes of a module, without those of its children."""
    tensors = {
        f"{word} {name}": tagged(tensor)
        for word, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers))
        for name, tensor in named(recurse=False)
    }
    trained = {f"{_FLAG}{name}": str(p.requires_grad) for name, p in module.named_parameters(recurse=False)}
    plain: dict[str, str] = {}
    for name, value in vars(module).items():
        if name in _MODULE_INTERNALS or _is_link(value):
            continue
        plain |= _expanded(value, f"{name}.", 1) if _is_custom(value) else {name: tagged(value)}
    return {**tensors, **trained, **plain}


def _of_optimizer(optimizer: Optimizer) -> dict[str, str]:
    """Return digests of the hyperparameters of each group, and of attributes that torch's optimizers do not have."""
    groups = {
        f"param_groups.{i}.{name}": tagged(value)
        for i, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params"
    }
    own = {
        name: value for name, value in _expanded(optimizer).items() if name.split(".")[0] not in _OPTIMIZER_INTERNALS
    }
    return {**groups, **{name: value for name, value in own.items() if not name.startswith("_optimizer_")}}


def _expanded(entry: Any, prefix: str = "", depth: int = 0) -> dict[str, str]:
    """Return digests of the attributes of an object, and of the custom objects that it has, by dotted names."""
    found: dict[str, str] = {}
    held = attributes(entry)
    if isinstance(entry, FunctionType):  # what it closes over
        cells = zip(entry.__code__.co_freevars, entry.__closure__ or (), strict=True)
        held = {**held, **{name: cell.cell_contents for name, cell in cells}}
    for name, value in held.items():
        if _is_link(value) or (depth == 0 and name in _LOADER_PARTS and isinstance(entry, DataLoader)):
            continue
        inner = dict(enumerate(value)) if isinstance(value, list | tuple) and len(value) < _MAX_ENTRIES else {"": value}
        for key, part in inner.items():
            path = f"{prefix}{name}" if key == "" else f"{prefix}{name}.{key}"
            if depth < _MAX_DEPTH and _is_custom(part):
                found |= _expanded(part, f"{path}.", depth + 1)
            elif key == "":
                found[path] = tagged(part)
        if inner.keys() != {""}:
            found[f"{prefix}{name}"] = tagged(value)
    return found


def _of_classes(entry: Any) -> dict[str, str]:
    """Return digests of the variables that the classes of the program have, such as a counter of all instances."""
    held = {
        name: value
        for cls in reversed(type(entry).__mro__)
        if not is_of_library(cls.__module__)
        for name, value in vars(cls).items()
        if not name.startswith(("__", "_abc_")) and not callable(value) and not isinstance(value, _OF_CLASSES)
    }
    own = attributes(entry)
    return {name: tagged(value) for name, value in held.items() if name not in own and _size(value) <= _MAX_GLOBAL}


def _globals(entry: Any) -> dict[str, str]:
    """Return digests of the global variables that the code of an object uses."""
    found: dict[str, str] = {}
    for name, value in global_variables(entry).items():
        if hasattr(value, "cache_info"):
            found[f"{_CACHE}{name}"] = tagged(tuple(value.cache_info()))
        elif _size(value) <= _MAX_GLOBAL and not isinstance(value, nn.Module):
            found[f"{_GLOBAL}{name}"] = tagged(value)
    return found


def _size(value: Any) -> int:
    """Return the number of elements of a tensor, an array or a collection."""
    if isinstance(value, Tensor):
        return value.numel()
    size = getattr(value, "size", None)  # of an array
    return size if isinstance(size, int) else len(value) if isinstance(value, Sized) else 1


def _is_custom(value: Any) -> bool:
    """Whether a value is an object of a class of the program, rather than of Python or a library."""
    is_plain = hasattr(value, "__dict__") and not isinstance(value, type | nn.Module | Tensor)
    return is_plain and not is_of_library(type(value).__module__)


def _is_link(value: Any) -> bool:
    """Whether an attribute of a module refers to the run, as ``ComposerModel.logger`` does."""
    return type(value).__module__.startswith(("composer.core", "composer.trainer")) and not isinstance(value, tuple)


def _data(state: State) -> Iterator[tuple[str, Any]]:
    """Yield the objects that make the training batches, with their names."""
    spec = state.train_phase.loader
    loader = getattr(spec, "dataloader", None)
    if loader is None:
        return
    yield "loader", loader
    for name in ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"):
        part = getattr(loader, name, None)
        if part is not None and not type(part).__module__.startswith("torch.utils.data"):
            yield name, part
