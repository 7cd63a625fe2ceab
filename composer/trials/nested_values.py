"""Set an attribute, hyperparameter or key inside an argument of the Trainer, such as ``optimizers.lr``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from composer._text import did_you_mean
from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator

__all__ = ["loader_like", "plain_name", "with_value"]

# Arguments of a DataLoader that a copy of it can have differently.
_LOADER_ARGUMENTS = (
    "batch_size",
    "drop_last",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "generator",
    "in_order",
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
)


def plain_name(name: str) -> str:
    """Return a class name or short name in a form in which both are equal.

    Args:
        name: The name.

    >>> plain_name("mix_up") == plain_name("MixUp")
    True
    """
    return name.replace("_", "").lower()


def with_value(value: Any, where: str, path: list[str], new: Any, *, dry: bool = False) -> Any:
    """Return a value in which an attribute or key is set.

    Objects are changed in place; lists, dictionaries and data loaders are copied.

    Args:
        value: The value of an argument.
        where: Its name, for messages.
        path: Names of attributes and keys, indices of entries, and classes of entries: ``["lr"]``, ``["0", "lr"]`` and
            ``["AdamW", "lr"]``.
        new: What to set.
        dry: Only check, and change no object.

    Raises:
        ValueError: There is no such attribute, or the value is not of the type of the present one.

    >>> with_value({"fsdp": {"mixed": 1}}, "parallelism_config", ["fsdp", "mixed"], 2)
    {'fsdp': {'mixed': 2}}
    """
    name, rest = path[0], path[1:]
    if isinstance(value, list | tuple):
        return _with_entries(value, where, path, new, dry)
    if rest and not hasattr(value, name) and plain_name(name) == plain_name(type(value).__name__):
        return with_value(value, f"{where}.{name}", rest, new, dry=dry)  # as optimizers.AdamW.lr
    if isinstance(value, Optimizer) and not rest:
        return _set_in_groups(value, where, name, new, dry)
    if isinstance(value, DataSpec | Evaluator) and not hasattr(value, name):
        loader = with_value(value.dataloader, where, path, new, dry=dry)
        if not dry:
            value.dataloader = loader
        return value
    if isinstance(value, DataLoader) and not rest:
        return _with_loader_argument(value, where, name, new)
    if isinstance(value, Mapping):
        inner = with_value(value.get(name), f"{where}.{name}", rest, new, dry=dry) if rest else new
        return {**value, name: inner}
    if value is None:
        raise ValueError(f"{where} is None, so {where}.{name} cannot be set; assign a value to {where} itself.")
    names = [one for one in dir(value) if not one.startswith("_") and not inspect.isroutine(getattr(value, one, None))]
    if name not in names:
        raise ValueError(
            f"{where} ({type(value).__name__}) has no attribute {name!r}.{did_you_mean(name, names)}"
            f" It has {', '.join(names) or 'none'}."
        )
    old = getattr(value, name)
    inner = with_value(old, f"{where}.{name}", rest, new, dry=dry) if rest else new
    if not rest:
        _check_type(f"{where}.{name}", old, new)
    try:
        if not dry:
            setattr(value, name, inner)
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"{where}.{name} ({type(value).__name__}) cannot be set: {error}. Assign an object to {where} instead."
        ) from error
    return value


def _with_entries(value: list[Any] | tuple[Any, ...], where: str, path: list[str], new: Any, dry: bool) -> list[Any]:
    """Return a list in which an attribute is set: of the entry with an index, of those of a class, or of all."""
    name, rest = path[0], path[1:]
    classes = [type(entry).__name__ for entry in value]
    if name.isdigit():
        if int(name) >= len(value):
            raise ValueError(f"{where} has no entry with index {name}: it has {len(value)}, of which the first is 0.")
        chosen = [i == int(name) for i in range(len(value))]
    else:
        chosen = [bool(rest) and plain_name(one) == plain_name(name) for one in classes]
    if any(chosen):
        if not rest:
            raise ValueError(f"{where}.{name} is an entry of a list; name one of its attributes, or assign to {where}.")
        return [
            with_value(entry, f"{where}.{name}", rest, new, dry=dry) if is_chosen else entry
            for entry, is_chosen in zip(value, chosen, strict=True)
        ]
    if not value:
        raise ValueError(f"{where} is empty, so {where}.{'.'.join(path)} cannot be set.")
    if rest and not any(hasattr(entry, name) for entry in value):
        raise ValueError(
            f"{where} has no {name!r}: it has {', '.join(classes)}.{did_you_mean(name, classes)} Write "
            f"{where}.{classes[0]}.{rest[-1]}."
        )
    if len(value) > 1 and not rest and not all(isinstance(entry, Optimizer) or hasattr(entry, name) for entry in value):
        raise ValueError(
            f"{where}.{name} would set {name} of all of {where}: {', '.join(classes)}, which not all have it. Write "
            f"the class, as in {where}.{classes[0]}.{name}."
        )
    return [with_value(entry, where, path, new, dry=dry) for entry in value]  # as for optimizers, all of them


def _check_type(where: str, old: Any, new: Any) -> None:
    """Raise if a value replaces a number, or numbers, by something else."""
    if isinstance(old, Tensor) and old.numel() == 1:
        old = old.item()
    if isinstance(old, bool):
        if not isinstance(new, bool) and new not in (0, 1):
            raise ValueError(f"{where} is {old}, so it must be True or False; got {new!r}.")
    elif isinstance(old, int | float):
        if isinstance(new, bool) or not isinstance(new, int | float | Tensor):
            raise ValueError(f"{where} is {old}, so it must be a number; got {new!r}.")
    elif isinstance(old, tuple) and old and all(isinstance(one, int | float) for one in old):
        given = new if isinstance(new, list | tuple) else ()
        if len(given) != len(old) or not all(isinstance(one, int | float) for one in given):
            raise ValueError(f"{where} is {old}, so it must be {len(old)} numbers; got {new!r}.")


def _set_in_groups(optimizer: Optimizer, where: str, name: str, new: Any, dry: bool) -> Optimizer:
    """Set a hyperparameter in all parameter groups, and as the initial one that schedules start from."""
    known = {*optimizer.defaults, *(key for group in optimizer.param_groups for key in group)} - {"params"}
    if name not in known:
        raise ValueError(
            f"{where} ({type(optimizer).__name__}) has no hyperparameter {name!r}."
            f"{did_you_mean(name, known)} It has {', '.join(sorted(known))}."
        )
    for group in optimizer.param_groups:
        _check_type(f"{where}.{name}", group.get(name), new)
    if dry:
        return optimizer
    for group in (optimizer.defaults, *optimizer.param_groups):
        for key in (name, f"initial_{name}"):
            if key == name or key in group:
                old = group.get(key)  # a tensor where the optimizer is captured or compiled
                group[key] = torch.full_like(old, new) if isinstance(old, Tensor) else new
    return optimizer


def _with_loader_argument(loader: DataLoader[Any], where: str, name: str, new: Any) -> DataLoader[Any]:
    """Return a copy of a data loader with another number of workers, batch size, or other argument."""
    if type(loader) is not DataLoader:
        raise ValueError(
            f"{where}.{name} cannot be changed: {type(loader).__name__} is a custom loader, which cannot be copied. "
            f"Let the program take it as an argument."
        )
    if name == "batch_size" and loader.batch_size is None and type(loader.sampler) is BatchSampler:
        # The sampler yields lists of indices, which the dataset fetches at once.
        given = {key: getattr(loader, key) for key in _LOADER_ARGUMENTS if hasattr(loader, key)}
        made: BatchSampler = loader.sampler
        return DataLoader(
            loader.dataset, **_consistent({**given, "sampler": BatchSampler(made.sampler, new, made.drop_last)})
        )
    if name in ("batch_size", "drop_last") and loader.batch_size is None:
        maker = "the dataset" if loader.batch_sampler is None else "a custom batch sampler"
        raise ValueError(f"{where}.{name} cannot be changed: {maker} makes the batches.")
    given: dict[str, Any] = {key: getattr(loader, key) for key in _LOADER_ARGUMENTS if hasattr(loader, key)}
    if name not in given:
        raise ValueError(
            f"{where} (DataLoader) has no argument {name!r} that can be changed.{did_you_mean(name, given)}"
            f" It has {', '.join(given)}."
        )
    given[name] = new
    if loader.batch_size is None and loader.batch_sampler is not None:
        given = {key: value for key, value in given.items() if key not in ("batch_size", "drop_last")}
        given["batch_sampler"] = loader.batch_sampler
    elif not isinstance(loader.dataset, IterableDataset):
        given["sampler"] = loader.sampler
    return DataLoader(loader.dataset, **_consistent(given))


def loader_like(loader: DataLoader[Any], dataset: Dataset[Any], **changes: Any) -> DataLoader[Any]:
    """Return a loader of another dataset, with the arguments of a loader.

    Args:
        loader: The loader.
        dataset: The dataset.
        **changes: Arguments that differ.

    >>> loader_like(DataLoader([1, 2, 3], batch_size=2), [4]).batch_size
    2
    """
    given: dict[str, Any] = {key: getattr(loader, key) for key in _LOADER_ARGUMENTS if hasattr(loader, key)}
    return DataLoader(dataset, **_consistent({**given, **changes}))


def _consistent(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of a loader without those for workers, if it has none."""
    if given["num_workers"]:
        return given
    workers = ("persistent_workers", "prefetch_factor", "multiprocessing_context")
    return {**{key: value for key, value in given.items() if key not in workers}, "timeout": 0}
