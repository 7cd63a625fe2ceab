"""Assignments such as ``optimizers.lr=0.001`` and ``algorithms+=EMA()``: changes of a Trainer's arguments as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from composer._text import did_you_mean
from composer.core.data_spec import DataSpec
from composer.hparams.class_paths import find, full_path
from composer.trees import ensure_tuple

__all__ = ["Assignment", "apply", "fit_arguments", "parse_value", "vars_of"]

_FORM = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.\w+)*)\s*(?P<operator>\+=|-=|=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Assignment:
    """A change of one argument of :class:`.Trainer`.

    Args:
        path: The argument, and an attribute or key of its value: ``max_duration``, ``optimizers.lr``,
            ``train_dataloader.num_workers``.
        operator: "=" sets; "+=" adds to a list, "-=" removes from it by class name.
        value: The value.

    >>> Assignment.parse("algorithms+=EMA(half_life='10ba')").value
    EMA(half_life=Time(10, TimeUnit.BATCH), ...)
    >>> Assignment.parse("algorithms-=MixUp")
    Assignment(path='algorithms', operator='-=', value='MixUp')
    """

    path: str
    operator: Literal["=", "+=", "-="]
    value: Any

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Return the assignment that a text describes.

        A value is a Python literal, an object such as ``EMA(half_life="10ba")`` of a class of Composer or of an
        import path, or else a string.

        Args:
            text: ``PATH=VALUE``, ``PATH+=VALUE`` or ``PATH-=VALUE``.

        Raises:
            ValueError: The text has another form, or names an unknown class.

        >>> Assignment.parse("max_duration=2ep"), Assignment.parse("optimizers.lr=0.1")
        (Assignment(path='max_duration', operator='=', value='2ep'), Assignment(path='optimizers.lr', ..., value=0.1))
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"An assignment has the form NAME=VALUE, NAME+=VALUE or NAME-=VALUE, such as optimizers.lr=0.001; "
                f"got {text!r}."
            )
        operator: Any = match["operator"]
        value = match["value"].strip()
        return cls(match["path"], operator, value.removesuffix("()") if operator == "-=" else parse_value(value))


def parse_value(text: str) -> Any:
    """Return the value that a text describes: a Python literal, an object, or else the text itself.

    Args:
        text: The text.

    Raises:
        ValueError: It calls an unknown class, or has arguments that are not literals.

    >>> parse_value("0.1"), parse_value("2ep"), parse_value("{'fsdp': {}}"), parse_value("false")
    (0.1, '2ep', {'fsdp': {}}, False)
    """
    constants = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text
    try:
        if isinstance(tree, ast.List) and any(isinstance(entry, ast.Call) for entry in tree.elts):
            return [_object(entry) if isinstance(entry, ast.Call) else ast.literal_eval(entry) for entry in tree.elts]
        return _object(tree) if isinstance(tree, ast.Call) else ast.literal_eval(tree)
    except SyntaxError:
        return text
    except ValueError as error:
        if isinstance(tree, ast.Call):
            raise ValueError(f"{text!r} cannot be created: {error}") from error
        return text


def _object(call: ast.Call) -> Any:
    """Create the object of a call whose arguments are literals."""
    arguments = [ast.literal_eval(argument) for argument in call.args]
    return find(full_path(ast.unparse(call.func)))(
        *arguments, **{each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
    )


def apply(assignments: Iterable[Assignment], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of :class:`.Trainer` with assignments applied; objects in them are changed in place.

    Args:
        assignments: The changes, in order.
        arguments: All arguments.

    Raises:
        ValueError: An argument, attribute or list entry does not exist.

    >>> apply([Assignment.parse("algorithms+=EMA()")], {"algorithms": None})
    {'algorithms': [EMA(half_life=..., ...)]}
    """
    changed = dict(arguments)
    for assignment in assignments:
        name, _, rest = assignment.path.partition(".")
        if name not in changed:
            raise ValueError(f"Trainer has no argument {name!r}.{did_you_mean(name, changed)}")
        if rest:
            if assignment.operator != "=":
                raise ValueError(f"{assignment.path} cannot be added to; assign to it with '='.")
            changed[name] = _with(changed[name], name, rest.split("."), assignment.value)
        elif assignment.operator == "=":
            changed[name] = assignment.value
        else:
            entries = list(ensure_tuple(changed[name]))
            changed[name] = _edited(entries, name, assignment)
    return changed


def fit_arguments(assignments: Iterable[Assignment], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``fit`` without those that would replace what assignments gave to the Trainer.

    Args:
        assignments: The changes.
        arguments: The arguments that the program passes.

    >>> fit_arguments([Assignment.parse("max_duration=9ba")], {"duration": "2ep", "reset_time": False})
    {'reset_time': False}
    """
    changed = {each.path.partition(".")[0] for each in assignments}
    changed |= {"duration"} if "max_duration" in changed else set()
    return {name: value for name, value in arguments.items() if name not in changed}


def _edited(entries: list[Any], name: str, assignment: Assignment) -> list[Any]:
    """Return the entries of a list with some added or removed."""
    if assignment.operator == "+=":
        return [*entries, *ensure_tuple(assignment.value)]
    names = [entry if isinstance(entry, str) else type(entry).__name__ for entry in entries]
    kept = [entry for entry, own in zip(entries, names, strict=True) if own.lower() != str(assignment.value).lower()]
    if len(kept) == len(entries):
        raise ValueError(
            f"{name} has no {assignment.value!r}: it has {', '.join(names) or 'none'}."
            f"{did_you_mean(str(assignment.value), names)}"
        )
    return kept


def _with(value: Any, where: str, path: list[str], new: Any) -> Any:
    """Return a value in which an attribute or key is set."""
    name, rest = path[0], path[1:]
    if isinstance(value, list | tuple) and not name.isdigit():  # as for optimizers, all of them
        return [_with(entry, where, path, new) for entry in value]
    if isinstance(value, list | tuple):
        if int(name) >= len(value):
            raise ValueError(f"{where} has {len(value)} entries, none with index {name}.")
        return [
            _with(entry, f"{where}.{name}", rest, new) if i == int(name) else entry for i, entry in enumerate(value)
        ]
    if isinstance(value, Optimizer) and not rest:
        return _set_in_groups(value, where, name, new)
    if isinstance(value, DataSpec) and hasattr(value.dataloader, name):
        value.dataloader = _with(value.dataloader, where, path, new)
        return value
    if isinstance(value, DataLoader) and not rest:
        return _with_loader_argument(value, where, name, new)
    if isinstance(value, Mapping):
        inner = _with(value.get(name), f"{where}.{name}", rest, new) if rest else new
        return {**value, name: inner}
    if not hasattr(value, name):
        raise ValueError(
            f"{where} ({type(value).__name__}) has no attribute {name!r}.{did_you_mean(name, vars_of(value))}"
        )
    setattr(value, name, _with(getattr(value, name), f"{where}.{name}", rest, new) if rest else new)
    return value


def vars_of(value: Any) -> list[str]:
    """Return the names of the public attributes of an object.

    Args:
        value: The object.

    >>> vars_of(Assignment("a", "=", 1))
    ['operator', 'parse', 'path', 'value']
    """
    return [name for name in dir(value) if not name.startswith("_")]


def _set_in_groups(optimizer: Optimizer, where: str, name: str, new: Any) -> Optimizer:
    """Set a hyperparameter in all parameter groups, and as the initial one that schedules start from."""
    if name not in optimizer.defaults:
        raise ValueError(
            f"{where} ({type(optimizer).__name__}) has no hyperparameter {name!r}."
            f"{did_you_mean(name, optimizer.defaults)}"
        )
    optimizer.defaults[name] = new
    for group in optimizer.param_groups:
        group[name] = new
        if f"initial_{name}" in group:
            group[f"initial_{name}"] = new
    return optimizer


def _with_loader_argument(loader: DataLoader[Any], where: str, name: str, new: Any) -> DataLoader[Any]:
    """Return a copy of a data loader with another number of workers, batch size, or other argument."""
    batches: dict[str, Any]
    if loader.batch_size is None:
        if name == "batch_size":
            raise ValueError(f"{where}.batch_size cannot be changed: a custom batch sampler makes the batches.")
        batches = {"batch_size": None} if loader.batch_sampler is None else {"batch_sampler": loader.batch_sampler}
    else:
        batches = {"batch_size": new if name == "batch_size" else loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None or loader.batch_size is not None:
        batches |= {} if isinstance(loader.dataset, IterableDataset) else {"sampler": loader.sampler}
    given: dict[str, Any] = {
        key: getattr(loader, key)
        for key in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "in_order")
    }
    if name not in given and name != "batch_size":
        raise ValueError(
            f"{where} ({type(loader).__name__}) has no argument {name!r} that can be changed."
            f"{did_you_mean(name, [*given, 'batch_size'])}"
        )
    if type(loader) is not DataLoader:
        raise ValueError(
            f"{where}.{name} cannot be changed: {type(loader).__name__} is a custom loader, which cannot be copied."
        )
    if name != "batch_size":
        given[name] = new
    if given["num_workers"]:
        given["persistent_workers"] = loader.persistent_workers
        given["prefetch_factor"] = loader.prefetch_factor
        given["multiprocessing_context"] = loader.multiprocessing_context
    return DataLoader(loader.dataset, **batches, **given)
