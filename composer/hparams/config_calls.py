"""A call in a configuration: check its arguments against the signature of the class or function, and run it."""

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
    """A class or function with its arguments, which may contain calls themselves.

    Attributes:
        where: Its location in the configuration.
        path: The import path of the class or function; "" for the trainer itself.
        target: The class or function.
        args: Positional arguments.
        inner: Keyword arguments that contain calls.
        plain: The other keyword arguments, as they were given.
        waiting: Names of arguments that are filled in when the call is run, such as ``params`` of an optimizer.
        written: YAML text of numbers among the plain arguments, if it differs from the Python representation.
        passed: Names among the plain arguments that the signature does not list.
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
        """Check a node of a configuration and return its call.

        Args:
            node: The node: ``{class_path, init_args, args}``.
            where: Its location.
            waiting: Names of arguments that are filled in later if a call requires them and they are not given.

        Raises:
            ConfigError: The class or function does not exist, or an argument is unknown, missing or of the wrong type.

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
        """Check the arguments of a class or function and return its call.

        Args:
            target: The class or function.
            arguments: Keyword arguments, with calls among them in full form.
            where: The location.
            waiting: As for :meth:`of`.
            path: The import path.
            args: Positional arguments.
            given: Names of arguments that the program passes itself.
            waiting_in: As ``waiting``, for the calls inside an argument, by the name of the argument.
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
            args=[inside(f"args.{index}", value) for index, value in enumerate(args or [])],
            inner={name: inside(name, value) for name, value in inner.items()},
            plain={name: inside(name, value) for name, value in arguments.items() if name not in inner},
            written={name: value.text for name, value in arguments.items() if isinstance(value, WrittenInt)},
            waiting=frozenset(filled),
        )
        call._check_positional()
        positional = set(call._positional())
        call._check(needed - filled - given - positional, given)
        return call

    def make(self, runtime_values: Mapping[str, Any], **more: Any) -> Any:
        """Run the calls inside, then this one.

        Args:
            runtime_values: Values of the arguments that are filled in, by name.
            **more: Additional arguments, which override those of the configuration.

        Raises:
            ConfigError: A class or function of composer or torch rejects a value. Other errors get a note with the
                location.
        """
        arguments = self.values(runtime_values)
        filled = {name: runtime_values[name] for name in self.waiting}
        try:
            return self.target(*_run_calls(self.args, runtime_values), **{**arguments, **filled, **more})
        except Exception as error:
            if (masked := mask_error(error, secrets_in([self.args, self.plain]))) is not error:
                raise masked from masked.__cause__
            if not isinstance(error, (TypeError, ValueError)):
                raise
            if self.is_invalid_value(error):
                raise ConfigError(self.where, error) from error
            error.add_note(f"Raised while creating {self.where or 'the trainer'} ({self.path}) from the configuration.")
            raise

    def is_invalid_value(self, error: Exception) -> bool:
        """Return whether an error is due to an invalid value, rather than to an error in the user's code.

        Args:
            error: The exception that the call raised.
        """
        trace: types.TracebackType | None = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
        package = str(getattr(self.target, "__module__", "")).partition(".")[0]
        return package in ("composer", "torch") and raised_in.partition(".")[0] in (package, "composer")

    def values(self, runtime_values: Mapping[str, Any], leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the keyword arguments, after running the calls inside.

        Args:
            runtime_values: Values of the arguments that are filled in, by name.
            leave_out: Names of arguments to leave out.
        """
        parser, parsed = self._parsed()
        objects = parser.instantiate(parsed)
        typed = {name: objects[name] for name in self.plain if name not in self.passed}
        untyped = {name: self.plain[name] for name in self.passed}
        inner = {name: _run_calls(value, runtime_values) for name, value in self.inner.items() if name not in leave_out}
        return {**typed, **untyped, **inner}

    def tree(self) -> Tree:
        """Return the keyword arguments, including defaults, as plain values; calls in full form."""
        parser, parsed = self._parsed()
        plain: Tree = json.loads(parser.dump(parsed, format="json", skip_validation=True))
        order = [*_parameters(self.target), *self.plain, *self.inner]
        inner = {name: _as_tree(value) for name, value in self.inner.items()}
        untyped = {name: self.plain[name] for name in self.passed}
        values = {**plain, **untyped, **inner}
        return dict(sorted(values.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))

    def _positional(self) -> dict[str, Any]:
        """Return the positional arguments by name, omitting unnamed ones."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(self.target).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind in kinds]
        return dict(zip(names, self.args, strict=False))

    def _check_positional(self) -> None:
        """Raise on positional arguments that are too many, also given by name, or of the wrong type."""
        positional = self._positional()
        names = [name for name in (*self.plain, *self.inner) if name in positional]
        if names:
            raise ConfigError(_at(self.where, names[0]), "this argument is also given by position, in args.")
        parameters = inspect.signature(self.target).parameters.values()
        takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        if len(self.args) > len(positional) and not takes_any:
            raise ConfigError(
                f"{self.where}.args",
                f"{self._name} takes {len(positional)} positional arguments, but got {len(self.args)}.",
            )
        known = _parameters(self.target)
        for index, (name, value) in enumerate(positional.items()):
            if name in known and not _contains_call(value):
                others = frozenset(one for one in known if one != name)
                try:
                    parser_of(self.target, others).parse_object({name: value})
                except argparse.ArgumentError as error:
                    mask_error(error, secrets_in({name: value}))
                    message = self._of_wrong_type(name, value)
                    raise ConfigError(f"{self.where}.args.{index}", message) from error

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
            raise ConfigError(self.where, f"{self._name} requires the argument {name!r}.")
        self.passed = frozenset(name for name in self.plain if name not in names)
        self._parsed()

    def _parsed(self) -> tuple[Any, Any]:
        """Return the parser, and the plain values parsed to their types."""
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
                # ``run_name: 42`` is meant as a string, but YAML parses a number.
                if name not in values or type(values[name]) is not int:
                    raise self._explained(error, name) from error
                if name in self.written:
                    text = self.written[name]
                    message = f"{text} is the number {values[name]} in YAML; quote it if it is a string: '{text}'."
                    raise ConfigError(_at(self.where, name), message) from None
                values[name] = str(values[name])

    def _explained(self, error: argparse.ArgumentError, name: str) -> ConfigError:
        if name not in self.plain:
            return ConfigError(self.where, error)
        return ConfigError(_at(self.where, name), self._of_wrong_type(name, self.plain[name]))

    def _of_wrong_type(self, name: str, value: Any) -> str:
        annotation = _parameters(self.target)[name].annotation if name in _parameters(self.target) else ""
        expected = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        return f"{shown(name, value)} ({type(value).__name__}) is not of the type {expected}."

    @property
    def _name(self) -> str:
        return getattr(self.target, "__qualname__", self.path)


@functools.lru_cache(maxsize=256)
def parser_of(target: Callable[..., Any], skip: frozenset[str] = frozenset()) -> Any:
    """Return an argument parser for a class or function, with types from its signature and help from its docstring.

    Args:
        target: The class or function.
        skip: Arguments that are passed in another way.

    Raises:
        MissingConditionalImportError: The package ``jsonargparse`` is not installed.

    >>> def scale(x: float, by: int = 2) -> float: ...
    >>> parser_of(scale).parse_object({"x": "1.5"}).as_dict()
    {'x': 1.5, 'by': 2}
    """
    jsonargparse = import_extra("jsonargparse", "hparams", "A configuration")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    add(target, skip=set(skip), fail_untyped=False)
    return parser


def _contains_call(value: Any) -> bool:
    """Return whether a value contains calls."""
    if isinstance(value, dict):
        return any(_contains_call(entry) for entry in cast("dict[str, Any]", value).values())
    return isinstance(value, Call) or (isinstance(value, list) and any(map(_contains_call, cast("list[Any]", value))))


def _parameters(target: Callable[..., Any], where: str = "") -> dict[str, inspect.Parameter]:
    """Return the parameters that can be passed by name, without ``self``."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:
        raise ConfigError(where, f"{target!r} has no signature, so its arguments cannot be checked.") from None
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in _KEYWORD}


def _failed(error: argparse.ArgumentError) -> str:
    """Return the name of the argument of the wrong type."""
    found = re.search(r'Parser key "([^".]+)', str(error))
    return found[1] if found else ""


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _has_call(value: Any) -> bool:
    if isinstance(value, Mapping):
        return is_call(value) or any(_has_call(entry) for entry in cast("Mapping[str, Any]", value).values())
    return isinstance(value, list) and any(_has_call(entry) for entry in cast("list[Any]", value))


def _with_calls(value: Any, where: str, waiting: frozenset[str]) -> Any:
    """Return a value with every node of an object replaced by a call."""
    if is_call(value):
        return Call.of(value, where, waiting)
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {key: _with_calls(entry, f"{where}.{key}", waiting) for key, entry in entries}
    if isinstance(value, list):
        return [_with_calls(entry, f"{where}.{n}", waiting) for n, entry in enumerate(cast("list[Any]", value))]
    return int(value) if isinstance(value, WrittenInt) else value


def _run_calls(value: Any, runtime_values: Mapping[str, Any]) -> Any:
    """Return a value with the calls in it replaced by their results."""
    if isinstance(value, Call):
        return value.make(runtime_values)
    if isinstance(value, dict):
        return {key: _run_calls(entry, runtime_values) for key, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_run_calls(entry, runtime_values) for entry in cast("list[Any]", value)]
    return value


def _as_tree(value: Any) -> Any:
    """Return a value with the calls in it as nodes in full form."""
    if isinstance(value, Call):
        positional = {"args": _as_tree(value.args)} if value.args else {}
        return {"class_path": value.path, **positional, "init_args": value.tree()}
    if isinstance(value, dict):
        return {key: _as_tree(entry) for key, entry in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_tree(entry) for entry in cast("list[Any]", value)]
    return value
