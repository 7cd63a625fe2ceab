"""One call of a configuration: checked against the signature of what it calls, and then made."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from composer._lazy import import_extra
from composer._secrets.masking import mask_error, secrets_in
from composer._text import did_you_mean
from composer.hparams._yaml import WrittenInt
from composer.hparams.class_paths import find
from composer.hparams.config_tree import ConfigError, Tree, is_call, shown

__all__ = ["Call", "parser_of"]

_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass
class Call:
    """A class or function with the arguments that it is called with, of which some are calls.

    Attributes:
        where: Its place in the configuration.
        path: What is called, by its import path; "" for the trainer itself.
        target: What is called.
        args: Arguments by place.
        inner: Arguments by name in which there are calls.
        plain: The other arguments by name, as they were given.
        waiting: Names of arguments that are filled in when the call is made, such as ``params`` of an optimizer.
        written: How numbers among the plain ones are written, where Python would show them otherwise.
        passed: Names among the plain ones of which the signature knows nothing.
    """

    where: str
    path: str
    target: Callable[..., Any]
    args: list[Any] = field(default_factory=list[Any])
    inner: dict[str, Any] = field(default_factory=dict[str, Any])
    plain: dict[str, Any] = field(default_factory=dict[str, Any])
    waiting: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    written: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, node: Mapping[str, Any], where: str, waiting: frozenset[str] = frozenset()) -> Self:
        """Return the call that a part of a tree stands for, checked.

        Args:
            node: The part: ``{class_path, init_args, args}``.
            where: Its place.
            waiting: Names of arguments that are filled in later where a call needs them and they are not given.

        Raises:
            ConfigError: What is called does not exist, or an argument is unknown, missing or of another type.

        >>> call = Call.of(
        ...     {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 1}}, ""
        ... )
        >>> call.make({})
        Linear(in_features=2, out_features=1, bias=True)
        """
        path: str = node["class_path"]
        try:
            target = find(path)
        except ValueError as error:
            raise ConfigError(where, error) from None
        return cls.to(target, node.get("init_args", {}), where, waiting, path=path, args=node.get("args", []))

    @classmethod
    def to(
        cls,
        target: Callable[..., Any],
        arguments: Mapping[str, Any],
        where: str,
        waiting: frozenset[str] = frozenset(),
        *,
        path: str = "",
        args: list[Any] | None = None,
        given: frozenset[str] = frozenset(),
        waiting_in: Mapping[str, frozenset[str]] | None = None,
    ) -> Self:
        """Return a call of something that is here already, checked.

        Args:
            target: What to call.
            arguments: Arguments by name, with calls among them spelled out.
            where: The place.
            waiting: As for :meth:`of`.
            path: The import path.
            args: Arguments by place.
            given: Names of arguments that will be objects of the program.
            waiting_in: What the calls in some arguments wait for, by the name of the argument.
        """

        def inside(name: str, value: Any) -> Any:
            return _with_calls(value, f"{where}.{name}" if where else name, (waiting_in or {}).get(name, waiting))

        parameters = _parameters(target, where)
        needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
        filled = {name for name in needed & waiting if name not in arguments and not args}
        inner = {name: value for name, value in arguments.items() if _has_call(value)}
        call = cls(
            where,
            path,
            target,
            args=[inside(f"args.{place}", value) for place, value in enumerate(args or [])],
            inner={name: inside(name, value) for name, value in inner.items()},
            plain={name: inside(name, value) for name, value in arguments.items() if name not in inner},
            written={name: value.text for name, value in arguments.items() if isinstance(value, WrittenInt)},
            waiting=frozenset(filled),
        )
        call._check_places()
        by_place = set(call._by_place())
        call._check(needed - filled - given - by_place, given)
        return call

    def make(self, here: Mapping[str, Any], **more: Any) -> Any:
        """Make the calls inside, then this one.

        Args:
            here: Values of what calls wait for, by name.
            **more: Further arguments, which go before those of the configuration.

        Raises:
            ConfigError: What is called is ours or torch's, and refuses a value. Other errors get a note of the place.
        """
        arguments = self.values(here)
        filled = {name: here[name] for name in self.waiting}
        try:
            return self.target(*_made(self.args, here), **{**arguments, **filled, **more})
        except Exception as error:
            if (masked := mask_error(error, secrets_in([self.args, self.plain]))) is not error:
                raise masked from masked.__cause__
            if not isinstance(error, (TypeError, ValueError)):
                raise
            if self.refuses(error):
                raise ConfigError(self.where, error) from error
            error.add_note(f"Raised in the making of {self.where or 'the trainer'} ({self.path}) of the configuration.")
            raise

    def refuses(self, error: Exception) -> bool:
        """Tell whether an error says that a value is wrong, rather than that the user's own code is.

        Args:
            error: What was raised when the call was made.
        """
        trace: types.TracebackType | None = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
        package = str(getattr(self.target, "__module__", "")).partition(".")[0]
        return package in ("composer", "torch") and raised_in.partition(".")[0] in (package, "composer")

    def values(self, here: Mapping[str, Any], leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the arguments by name, with the calls inside made.

        Args:
            here: Values of what calls wait for, by name.
            leave_out: Arguments that are not wanted.
        """
        parser, parsed = self._parsed()
        objects = parser.instantiate(parsed)
        typed = {name: objects[name] for name in self.plain if name not in self.passed}
        untyped = {name: self.plain[name] for name in self.passed}
        inner = {name: _made(value, here) for name, value in self.inner.items() if name not in leave_out}
        return {**typed, **untyped, **inner}

    def tree(self) -> Tree:
        """Return the arguments by name, with those that have defaults, as plain values; calls as they are spelled."""
        parser, parsed = self._parsed()
        plain: Tree = json.loads(parser.dump(parsed, format="json", skip_validation=True))
        order = [*_parameters(self.target), *self.plain, *self.inner]
        inner = {name: _as_tree(value) for name, value in self.inner.items()}
        untyped = {name: self.plain[name] for name in self.passed}
        values = {**plain, **untyped, **inner}
        return dict(sorted(values.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))

    def _by_place(self) -> dict[str, Any]:
        """The arguments that are given by place, by name as far as they have one."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(self.target).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind in kinds]
        return dict(zip(names, self.args, strict=False))

    def _check_places(self) -> None:
        """Refuse arguments by place that are too many, are given by name as well, or are of another type."""
        by_place = self._by_place()
        names = [name for name in (*self.plain, *self.inner) if name in by_place]
        if names:
            raise ConfigError(_at(self.where, names[0]), "this argument is given by place too, in args.")
        parameters = inspect.signature(self.target).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        if len(self.args) > len(by_place) and not takes_any:
            raise ConfigError(
                f"{self.where}.args",
                f"{self._name} takes {len(by_place)} arguments by place, but got {len(self.args)}.",
            )
        known = _parameters(self.target)
        for place, (name, value) in enumerate(by_place.items()):
            if name in known and not _has_made(value):
                others = frozenset(one for one in known if one != name)
                try:
                    parser_of(self.target, others).parse_object({name: value})
                except argparse.ArgumentError as error:
                    mask_error(error, secrets_in({name: value}))
                    said = self._of_wrong_type(name, value)
                    raise ConfigError(f"{self.where}.args.{place}", said) from error

    def _check(self, needed: set[str], given: frozenset[str]) -> None:
        self._given = given
        names = {action.dest for action in parser_of(self.target)._actions}
        signature = inspect.signature(self.target).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature)
        for name in [*self.plain, *self.inner]:
            if name not in names and not takes_any:
                known = sorted(names - {"help"})
                raise ConfigError(
                    _at(self.where, name), f"{self._name} has no such argument.{did_you_mean(name, known)}"
                )
        for name in sorted(needed - {*self.plain, *self.inner}):
            raise ConfigError(self.where, f"{self._name} needs the argument {name!r}.")
        self.passed = frozenset(name for name in self.plain if name not in names)
        self._parsed()

    def _parsed(self) -> tuple[Any, Any]:
        """The plain values with their types, and the parser that gave them these."""
        elsewhere = {*self.inner, *self.waiting, *self._given}
        elsewhere.update(name for name, _ in zip(_parameters(self.target), self.args, strict=False))
        parser = parser_of(self.target, frozenset(elsewhere))
        values = {name: value for name, value in self.plain.items() if name not in self.passed}
        while True:
            try:
                return parser, parser.parse_object(values)
            except argparse.ArgumentError as error:
                name = _failed(error)
                mask_error(error, secrets_in(self.plain))
                # ``run_name: 42`` is a text to everybody but YAML.
                if name not in values or type(values[name]) is not int:
                    raise self._explained(error, name) from error
                if name in self.written:
                    text = self.written[name]
                    said = f"{text} is the number {values[name]} in YAML; quote it where it is text: '{text}'."
                    raise ConfigError(_at(self.where, name), said) from None
                values[name] = str(values[name])

    def _explained(self, error: argparse.ArgumentError, name: str) -> ConfigError:
        if name not in self.plain:
            return ConfigError(self.where, error)
        return ConfigError(_at(self.where, name), self._of_wrong_type(name, self.plain[name]))

    def _of_wrong_type(self, name: str, value: Any) -> str:
        annotation = _parameters(self.target)[name].annotation if name in _parameters(self.target) else ""
        wanted = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        return f"{shown(name, value)} ({type(value).__name__}) is not of the type {wanted}."

    @property
    def _name(self) -> str:
        return getattr(self.target, "__qualname__", self.path)


@functools.lru_cache(maxsize=256)
def parser_of(target: Callable[..., Any], skip: frozenset[str] = frozenset()) -> Any:
    """Return a parser of the arguments of a class or function, with their types and the texts of its docstring.

    Args:
        target: The class or function.
        skip: Arguments that are given otherwise.

    Raises:
        MissingConditionalImportError: The package that reads signatures is not installed.

    >>> def scale(x: float, by: int = 2) -> float: ...
    >>> parser_of(scale).parse_object({"x": "1.5"}).as_dict()
    {'x': 1.5, 'by': 2}
    """
    jsonargparse = import_extra("jsonargparse", "hparams", "A configuration")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    add(target, skip=set(skip), fail_untyped=False)
    return parser


def _has_made(value: Any) -> bool:
    """Whether there are calls in a value."""
    if isinstance(value, dict):
        return any(_has_made(entry) for entry in cast("dict[str, Any]", value).values())
    return isinstance(value, Call) or (isinstance(value, list) and any(map(_has_made, cast("list[Any]", value))))


def _parameters(target: Callable[..., Any], where: str = "") -> dict[str, inspect.Parameter]:
    """The parameters that have names, without ``self``."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:
        raise ConfigError(where, f"{target!r} does not tell its arguments, so they cannot be checked.") from None
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in _KEYWORD}


def _failed(error: argparse.ArgumentError) -> str:
    """The name of the argument that is of another type."""
    found = re.search(r'Parser key "([^".]+)', str(error))
    return found[1] if found else ""


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _has_call(value: Any) -> bool:
    if isinstance(value, Mapping):
        return is_call(value) or any(_has_call(entry) for entry in cast("Mapping[str, Any]", value).values())
    return isinstance(value, list) and any(_has_call(entry) for entry in cast("list[Any]", value))


def _with_calls(value: Any, where: str, waiting: frozenset[str]) -> Any:
    """A value in which every part that stands for an object is a call."""
    if is_call(value):
        return Call.of(value, where, waiting)
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {key: _with_calls(entry, f"{where}.{key}", waiting) for key, entry in entries}
    if isinstance(value, list):
        return [_with_calls(entry, f"{where}.{n}", waiting) for n, entry in enumerate(cast("list[Any]", value))]
    return int(value) if isinstance(value, WrittenInt) else value


def _made(value: Any, here: Mapping[str, Any]) -> Any:
    """A value with the calls in it made."""
    if isinstance(value, Call):
        return value.make(here)
    if isinstance(value, dict):
        return {key: _made(entry, here) for key, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_made(entry, here) for entry in cast("list[Any]", value)]
    return value


def _as_tree(value: Any) -> Any:
    """A value with the calls in it spelled out."""
    if isinstance(value, Call):
        places = {"args": _as_tree(value.args)} if value.args else {}
        return {"class_path": value.path, **places, "init_args": value.tree()}
    if isinstance(value, dict):
        return {key: _as_tree(entry) for key, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_tree(entry) for entry in cast("list[Any]", value)]
    return value
