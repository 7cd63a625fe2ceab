"""Assignments such as ``optimizers.lr=0.001`` and ``algorithms+=EMA()``: changes of a Trainer's arguments as text."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from composer._text import did_you_mean
from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator
from composer.hparams.class_paths import find, full_path
from composer.trainer import Trainer
from composer.trees import ensure_tuple

__all__ = ["Assignment", "apply", "apply_to_fit", "parse_value"]

_FORM = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.\w+)*)\s*(?P<operator>\+=|-=|=)(?P<value>.*)", re.DOTALL)


_FIT = inspect.signature(Trainer.fit).parameters
# Arguments that accept a list, to which entries can be added.
_LISTS = tuple(
    name
    for name, parameter in inspect.signature(Trainer.__init__).parameters.items()
    if "Sequence[" in str(parameter.annotation)
)
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
        if not value or value.startswith("="):
            raise ValueError(f"{text!r} has no value: write {match['path']}{operator}None, or the value to assign.")
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
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # as of a backslash in a path
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return text
    if not any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        try:
            return ast.literal_eval(tree)
        except (ValueError, TypeError):
            return text
    try:
        return _value(tree)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{text!r} cannot be created: {error} Write a string that has parentheses in quotes."
        ) from error


def _value(node: ast.expr) -> Any:
    """Return the value of an expression of literals and calls."""
    if isinstance(node, ast.Call):
        positional = [_value(argument) for argument in node.args]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ValueError("** is not possible here; write the arguments by name.")
            named[keyword.arg] = _value(keyword.value)
        return find(full_path(ast.unparse(node.func)))(*positional, **named)
    if isinstance(node, ast.List):
        return [_value(entry) for entry in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(entry) for entry in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {
            _value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None
        }
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is not a literal such as 0.1 or 'text'.") from None


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
        if rest and changed[name] is None and name in _FIT:
            continue  # the program may pass it to fit
        changed[name] = _assigned(changed[name], assignment, name, rest)
    return changed


def apply_to_fit(
    assignments: Iterable[Assignment], arguments: Mapping[str, Any], absent: Collection[str] = ()
) -> dict[str, Any]:
    """Return arguments of :meth:`.Trainer.fit` in which assignments replace what the program passes to it.

    What the program does not pass keeps its default, since :func:`apply` has set it in the trainer. With
    ``max_duration``, a ``duration`` that the program passes is dropped.

    Args:
        assignments: The changes, in order.
        arguments: All arguments of ``fit``.
        absent: Names of the arguments that are None in the trainer.

    Raises:
        ValueError: The program passes the object to change neither to the trainer nor to ``fit``, or it has no such
            attribute.

    >>> apply_to_fit([Assignment.parse("max_duration=2ba")], {"duration": "90ep"})
    {'duration': None}
    """
    changed = dict(arguments)
    for assignment in assignments:
        name, _, rest = assignment.path.partition(".")
        if name == "max_duration":
            changed["duration"] = None
        elif name in _FIT and name in changed and _is_passed(name, changed):
            changed[name] = _assigned(changed[name], assignment, name, rest)
        elif rest and name in absent and name in _FIT:
            raise ValueError(
                f"{assignment.path} cannot be set: the program passes {name} neither to the Trainer nor to fit."
            )
    return changed


def _is_passed(name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a program passes an argument to fit, or the data whose default it would be."""
    if name.startswith("train_") and arguments.get("train_dataloader") is not None:
        return name != "train_dataloader_label"
    if name.startswith("eval_"):
        return arguments.get("eval_dataloader") is not None
    return arguments[name] is not _FIT[name].default and arguments[name] != _FIT[name].default


def _assigned(value: Any, assignment: Assignment, name: str, rest: str) -> Any:
    """Return the value of an argument after an assignment."""
    if rest:
        if assignment.operator != "=":
            raise ValueError(f"{assignment.path} cannot be added to; assign to it with '='.")
        return _with(value, name, rest.split("."), assignment.value)
    if assignment.operator == "=":
        return assignment.value
    if name not in _LISTS:
        raise ValueError(f"{name} is not a list, to which {assignment.operator} applies; assign to it with '='.")
    return _edited(list(ensure_tuple(value)), name, assignment)


def _edited(entries: list[Any], name: str, assignment: Assignment) -> list[Any]:
    """Return the entries of a list with some added or removed."""
    if assignment.operator == "+=":
        return [*entries, *ensure_tuple(assignment.value)]
    names = [entry if isinstance(entry, str) else type(entry).__name__ for entry in entries]
    removed = _plain(str(assignment.value))
    kept = [entry for entry, own in zip(entries, names, strict=True) if _plain(own) != removed]
    if len(kept) == len(entries):
        raise ValueError(
            f"{name} has no {assignment.value!r}: it has {', '.join(names) or 'none'}."
            f"{did_you_mean(str(assignment.value), names)}"
        )
    return kept


def _plain(name: str) -> str:
    """Return a class name or short name in a form in which both are equal."""
    return name.replace("_", "").lower()


def _with(value: Any, where: str, path: list[str], new: Any) -> Any:
    """Return a value in which an attribute or key is set."""
    name, rest = path[0], path[1:]
    if isinstance(value, list | tuple) and not name.isdigit():  # as for optimizers, all of them
        return [_with(entry, where, path, new) for entry in value]
    if isinstance(value, list | tuple):
        if int(name) >= len(value):
            raise ValueError(f"{where} has no entry with index {name}: it has {len(value)}, of which the first is 0.")
        return [
            _with(entry, f"{where}.{name}", rest, new) if i == int(name) else entry for i, entry in enumerate(value)
        ]
    if isinstance(value, Optimizer) and not rest:
        return _set_in_groups(value, where, name, new)
    if isinstance(value, DataSpec | Evaluator) and not hasattr(value, name):
        value.dataloader = _with(value.dataloader, where, path, new)
        return value
    if isinstance(value, DataLoader) and not rest:
        return _with_loader_argument(value, where, name, new)
    if isinstance(value, Mapping):
        inner = _with(value.get(name), f"{where}.{name}", rest, new) if rest else new
        return {**value, name: inner}
    if value is None:
        raise ValueError(f"{where} is None, so {where}.{name} cannot be set; assign a value to {where} itself.")
    names = [one for one in dir(value) if not one.startswith("_") and not inspect.isroutine(getattr(value, one, None))]
    if name not in names:
        raise ValueError(
            f"{where} ({type(value).__name__}) has no attribute {name!r}.{did_you_mean(name, names)}"
            f" It has {', '.join(names) or 'none'}."
        )
    inner = _with(getattr(value, name), f"{where}.{name}", rest, new) if rest else new
    try:
        setattr(value, name, inner)
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"{where}.{name} ({type(value).__name__}) cannot be set: {error}. Assign an object to {where} instead."
        ) from error
    return value


def _set_in_groups(optimizer: Optimizer, where: str, name: str, new: Any) -> Optimizer:
    """Set a hyperparameter in all parameter groups, and as the initial one that schedules start from."""
    known = {*optimizer.defaults, *(key for group in optimizer.param_groups for key in group)} - {"params"}
    if name not in known:
        raise ValueError(
            f"{where} ({type(optimizer).__name__}) has no hyperparameter {name!r}."
            f"{did_you_mean(name, known)} It has {', '.join(sorted(known))}."
        )
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


def _consistent(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of a loader without those for workers, if it has none."""
    if given["num_workers"]:
        return given
    workers = ("persistent_workers", "prefetch_factor", "multiprocessing_context")
    return {**{key: value for key, value in given.items() if key not in workers}, "timeout": 0}
