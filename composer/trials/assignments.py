"""Assignments such as ``optimizers.lr=0.001`` and ``algorithms+=EMA()``: changes of a Trainer's arguments as text."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from composer._text import did_you_mean
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.hparams.class_paths import find, full_path
from composer.trainer import Trainer
from composer.trainer.short_names import instances
from composer.trees import ensure_tuple
from composer.trials.nested_values import plain_name, with_value

__all__ = ["Assignment", "apply", "apply_to_fit", "parse_value", "trainer_arguments"]

_FORM = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.\w+)*)\s*(?P<operator>\+=|-=|=)(?P<value>.*)", re.DOTALL)


_FIT = inspect.signature(Trainer.fit).parameters
# Arguments that accept a list, to which entries can be added.
_LISTS = tuple(
    name
    for name, parameter in inspect.signature(Trainer.__init__).parameters.items()
    if "Sequence[" in str(parameter.annotation)
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


def trainer_arguments() -> list[str]:
    """Return the names of the arguments of :class:`.Trainer`.

    >>> "max_duration" in trainer_arguments()
    True
    """
    parameters = inspect.signature(Trainer).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]  # which catches misspelled names


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


def apply(assignments: Iterable[Assignment], arguments: Mapping[str, Any], *, dry: bool = False) -> dict[str, Any]:
    """Return arguments of :class:`.Trainer` with assignments applied; objects in them are changed in place.

    Args:
        assignments: The changes, in order.
        arguments: All arguments.
        dry: Only check the assignments, and change no object.

    Raises:
        ValueError: An argument, attribute or list entry does not exist, or a value is not of the type of the present
            one.

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
        changed[name] = _assigned(changed[name], assignment, name, rest, dry)
    return changed


def apply_to_fit(
    assignments: Iterable[Assignment],
    arguments: Mapping[str, Any],
    absent: Collection[str] = (),
    *,
    dry: bool = False,
) -> dict[str, Any]:
    """Return arguments of :meth:`.Trainer.fit` in which assignments replace what the program passes to it.

    What the program does not pass keeps its default, since :func:`apply` has set it in the trainer. With
    ``max_duration``, a ``duration`` that the program passes is dropped.

    Args:
        assignments: The changes, in order.
        arguments: All arguments of ``fit``.
        absent: Names of the arguments that are None in the trainer.
        dry: Only check the assignments, and change no object.

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
            changed[name] = _assigned(changed[name], assignment, name, rest, dry)
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


def _assigned(value: Any, assignment: Assignment, name: str, rest: str, dry: bool) -> Any:
    """Return the value of an argument after an assignment."""
    if rest:
        if assignment.operator != "=":
            raise ValueError(f"{assignment.path} cannot be added to; assign to it with '='.")
        return with_value(_as_objects(name, value), name, rest.split("."), assignment.value, dry=dry)
    if assignment.operator == "=":
        return assignment.value
    if name not in _LISTS:
        raise ValueError(f"{name} is not a list, to which {assignment.operator} applies; assign to it with '='.")
    return _edited(list(ensure_tuple(value)), name, assignment)


def _as_objects(name: str, value: Any) -> Any:
    """Return a value in which short names of methods, callbacks and loggers are objects, which have attributes."""
    bases: dict[str, type] = {"algorithms": Algorithm, "callbacks": Callback, "loggers": Callback}
    has_names = any(isinstance(one, str) for one in ensure_tuple(value))
    return instances(name, value, bases[name]) if name in bases and has_names else value


def _edited(entries: list[Any], name: str, assignment: Assignment) -> list[Any]:
    """Return the entries of a list with some added or removed."""
    if assignment.operator == "+=":
        return [*entries, *ensure_tuple(assignment.value)]
    names = [entry if isinstance(entry, str) else type(entry).__name__ for entry in entries]
    removed = plain_name(str(assignment.value))
    kept = [entry for entry, own in zip(entries, names, strict=True) if plain_name(own) != removed]
    if len(kept) == len(entries):
        raise ValueError(
            f"{name} has no {assignment.value!r}: it has {', '.join(names) or 'none'}."
            f"{did_you_mean(str(assignment.value), names)}"
        )
    return kept
