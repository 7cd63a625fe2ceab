"""Find public methods and attributes that a subclass adds and that its own code does not use."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["added_attributes", "added_methods", "parameters_of"]

# Bytecode instructions that read an attribute, in the supported Python versions.
_READS: Final = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}


def added_methods(cls: type, base: type) -> Iterator[tuple[str, Callable[..., Any], list[type]]]:
    """Yield the public methods that a class and its parents add to ``base`` and that their own code does not use.

    Methods of ``base`` are left out, and so are methods that code of the classes or a function in their module refers
    to (``self.on_done()``), and methods of the interface of a class from another package.

    Args:
        cls: The class.
        base: One of its parents.

    Yields:
        Name and function of a method, and the classes in the method resolution order up to the one that defines it.

    >>> class Base: ...
    >>> class Mine(Base):
    ...     def used(self): ...
    ...     def unused(self):
    ...         self.used()
    >>> [name for name, *_ in added_methods(Mine, Base)]
    ['unused']
    """
    classes = _added_classes(cls, base)
    known = {*dir(base), *_interfaces(cls, base, classes)}
    found: dict[str, tuple[Callable[..., Any], list[type]]] = {}
    for index, owner in enumerate(classes):
        for name, member in vars(owner).items():
            function = _function(member)
            if function is not None and not name.startswith("_") and name not in known and name not in found:
                found[name] = function, classes[: index + 1]
    if found:  # to read all the code takes milliseconds
        used, prefixes = _names_in_code(classes)
        for name, (function, owners) in found.items():
            if name not in used and not name.startswith(prefixes):
                yield name, function, owners


def added_attributes(cls: type, base: type) -> Iterator[str]:
    """Yield the names of unused public attributes, without methods, that a class and its parents add to ``base``.

    Args:
        cls: The class.
        base: One of its parents.

    >>> class Mine(dict):
    ...     size = 3
    >>> list(added_attributes(Mine, dict))
    ['size']
    """
    classes = _added_classes(cls, base)
    known = set(dir(base))
    found = [
        name
        for owner in classes
        for name, member in vars(owner).items()
        if not name.startswith("_") and name not in known and _function(member) is None
    ]
    if found:
        used, _ = _names_in_code(classes)
        yield from (name for name in found if name not in used)


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameter names of a function without ``self``; an empty tuple if they cannot be determined.

    Args:
        function: The function.

    >>> parameters_of(lambda self, state, logger: None)
    ('state', 'logger')
    """
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
    return names[1:] if names[:1] == ("self",) else names


def _added_classes(cls: type, base: type) -> list[type]:
    return [owner for owner in cls.__mro__ if owner not in base.__mro__]


def _interfaces(cls: type, base: type, classes: list[type]) -> set[str]:
    """Return the names defined by mixins and interfaces from other packages."""
    packages = {_package(owner) for owner in classes if issubclass(owner, base)} | {"__main__"}
    foreign = [owner for owner in classes if not issubclass(owner, base) and _package(owner) not in packages]
    return {name for owner in foreign for name in vars(owner)}


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _function(member: object) -> types.FunctionType | None:
    """Return the function behind a method, with ``functools.wraps`` decorators removed, or None."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, (functools.partialmethod, functools.partial)):
        member = member.func
    member = inspect.unwrap(member) if callable(member) else member
    return member if isinstance(member, types.FunctionType) else None


def _names_in_code(classes: list[type]) -> tuple[set[str], tuple[str, ...]]:
    """Return the names used by these classes and functions in their modules, and prefixes for ``getattr`` lookups."""
    used: set[str] = set()
    strings: set[str] = set()
    for owner in classes:
        for name, member in vars(owner).items():
            functions = [member.fget, member.fset] if isinstance(member, property) else [member]
            if isinstance(member, functools.cached_property):
                functions = [member.func]
            for function in map(_function, functions):
                if function is not None:
                    names, constants = _in_code(function.__code__)
                    used |= names - {name}  # super().name() inside it does not count as use
                    strings |= constants - {function.__doc__ or ""}
    for module in {owner.__module__ for owner in classes}:
        for name, value in list(vars(sys.modules.get(module, types)).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == module:
                used |= _in_code(value.__code__)[0] - {name}
    prefixes = {text for text in strings if text.endswith("_")} if "getattr" in used else set[str]()
    return used | strings, tuple(prefixes)


def _in_code(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the attributes that a code object reads, and its string constants."""
    names, strings, constants = _read_in(code), set[str](), list[Any](code.co_consts)
    for constant in constants:  # grows during the iteration
        if isinstance(constant, str):
            strings.add(constant)
        elif isinstance(constant, (tuple, frozenset)):
            constants.extend(constant)
        elif isinstance(constant, types.CodeType) and constant.co_flags & inspect.CO_OPTIMIZED:  # not a class body
            names |= _read_in(constant)
            constants.extend(constant.co_consts)
    return names, strings


def _read_in(code: types.CodeType) -> set[str]:
    # Not co_names, which also holds the method names of a class defined in a function.
    return {step.argval for step in dis.get_instructions(code) if step.opname in _READS or step.argval == "getattr"}
