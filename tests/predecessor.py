"""Compare the public names of Composer 0.32, stored in tests/data/predecessor, with this package.

A difference is named so that it reads well in a table and can be looked up:

    composer.loggers.Gone               a name that is not there
    composer.State.gone                 a method or property that is not there
    composer.Trainer.fit(gone)          an argument that is not there
    composer.Trainer.fit(seed=1)        an argument whose default was 1
    composer.Trainer.fit(seed?)         an argument that stands elsewhere, is keyword-only, or must be given now
    composer.Event.GONE='gone'          a member of an enum that is not there, or has another value
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.design import ROOT

FACTS = ROOT / "tests" / "data" / "predecessor"
TABLE_OF_NAMES = "## Names that are not there, or differ"

_OPEN, _CLOSE = "([{<", ")]}>"
_MISSING: Any = object()


@dataclass(frozen=True)
class Argument:
    """One argument as the facts give it; ``default`` is the text, None for one that has to be given."""

    name: str
    default: str | None
    keyword_only: bool

    @property
    def is_any(self) -> bool:
        """Whether it stands for whatever is given: ``*args``, ``**kwargs``, ``...``."""
        return self.name.startswith(("*", "..."))


@dataclass
class Entry:
    """A name of a module: a function, class, enum, constant, or one that stands elsewhere as well ("as above")."""

    path: str
    kind: str
    arguments: list[Argument] = field(default_factory=list)
    members: list[Entry] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)


def split_arguments(text: str) -> list[str]:
    """Split at the commas that stand in no bracket and no quotation marks."""
    parts, depth, quote, part = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
            continue
        part += character
    return [part for part in (*parts, part.strip()) if part]


def parse_argument(text: str) -> Argument:
    """Read ``[kw] name=default``."""
    keyword_only = text.startswith("[kw] ")
    name, has_default, default = text.removeprefix("[kw] ").partition("=")
    # torch's mark of an argument that must be given although it has a default.
    return Argument(name, default if has_default and default != "<required parameter>" else None, keyword_only)


def parse(text: str) -> list[Entry]:
    """Read the facts: modules in brackets, their names, and the members of classes set in."""
    module, entries = "", []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            module = line.strip("[]")
        elif line.startswith("    "):
            member = line.strip()
            kind = "property" if member.startswith(".") else "method"
            entries[-1].members.append(_entry(entries[-1].path, member.removeprefix("."), kind))
        elif line.endswith("(as above)"):
            entries.append(Entry(f"{module}.{line.split()[0]}", "again"))
        elif ": enum " in line:
            name, _, members = line.partition(": enum ")
            values = dict(re.findall(r"(\w+)=('[^']*'|\d+)", members))
            entries.append(Entry(f"{module}.{name}", "enum", values=values))
        elif line.startswith("class "):
            entries.append(_entry(module, line.removeprefix("class "), "class"))
        else:
            entries.append(_entry(module, line, "function" if "(" in line else "constant"))
    return entries


def _entry(parent: str, text: str, kind: str) -> Entry:
    """Read ``name(arguments)``, with a mark such as ``[staticmethod]`` after it or not."""
    name, has_arguments, rest = re.sub(r"  \[\w+\]$", "", text).partition("(")
    arguments = [parse_argument(part) for part in split_arguments(rest[:-1])] if has_arguments else []
    return Entry(f"{parent}.{name}", kind, arguments)


def find(path: str) -> Any:
    """What a dotted name stands for, or a mark that it is not there."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ModuleNotFoundError):
        return _MISSING


def differences(entries: list[Entry]) -> Iterator[str]:
    """Name each difference between the facts and what is here, in the order of the facts."""
    seen: dict[str, Any] = {}
    for entry in entries:
        here = find(entry.path)
        name = entry.path.rpartition(".")[2]
        if here is _MISSING:
            # Said once: what is nowhere is missed where the facts have it first.
            if seen.get(name) is not _MISSING:
                yield entry.path
        elif entry.kind == "again":
            if here is not seen.get(name, here):
                yield entry.path
        elif entry.kind == "enum":
            yield from _differing_members(entry, here, seen.get(name))
        elif entry.kind in ("class", "function"):
            yield from _differing_arguments(entry, here)
            yield from (found for member in entry.members for found in _differing_member(member, here))
        seen.setdefault(name, here)


def _differing_members(entry: Entry, here: type[enum.Enum], before: Any) -> Iterator[str]:
    if before is not None and before is not here:
        yield entry.path
    elif before is None:
        for name, value in entry.values.items():
            member = here.__members__.get(name)
            if member is None or member.value != ast.literal_eval(value):
                yield f"{entry.path}.{name}={value}"


def _differing_member(member: Entry, owner: type) -> Iterator[str]:
    name = member.path.rpartition(".")[2]
    here = getattr(owner, name, _MISSING)
    if here is _MISSING:
        if not any(name in _attributes(cls) for cls in owner.__mro__[:-1]):
            yield member.path
    elif member.kind == "method":
        bound = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
        yield from _differing_arguments(member, here, skip_self=not bound)


def _attributes(owner: type) -> set[str]:
    """What a class annotates, or gives its instances in its methods."""
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):
        source = ""
    return {*vars(owner).get("__annotations__", {}), *re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", source)}


def _differing_arguments(entry: Entry, here: Any, skip_self: bool = False) -> Iterator[str]:
    named = [argument for argument in entry.arguments if not argument.is_any]
    if len(named) < len(entry.arguments) and not named:
        return  # whatever is given: the facts know no more
    ours = list(inspect.signature(here).parameters.values())[1 if skip_self else 0 :]
    by_name = {parameter.name: (place, parameter) for place, parameter in enumerate(ours)}
    for place, argument in enumerate(named):
        if argument.name not in by_name:
            yield f"{entry.path}({argument.name})"
            continue
        our_place, parameter = by_name[argument.name]
        if not _fits(argument, place, our_place, parameter):
            yield f"{entry.path}({argument.name}?)"
        elif argument.default is not None and not _same_default(argument.default, parameter.default):
            yield f"{entry.path}({argument.name}={argument.default})"
    old_names = {argument.name for argument in named}
    for parameter in ours:
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.name not in old_names and parameter.default is parameter.empty and not variadic:
            yield f"{entry.path}({parameter.name}?)"


def _fits(argument: Argument, place: int, our_place: int, parameter: inspect.Parameter) -> bool:
    """Whether whatever gives the old argument, by place or by name, gives ours."""
    if argument.default is not None and parameter.default is parameter.empty:
        return False
    if argument.keyword_only:
        return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD and our_place == place


def _same_default(old: str, new: Any) -> bool:
    if old == "...":
        return True
    if old.startswith("<function "):
        return getattr(new, "__name__", "") == old.split()[1].rstrip(">")
    try:
        value = ast.literal_eval(old)
    except (SyntaxError, ValueError):
        return old in (repr(new), str(new))
    return value == new and isinstance(value, bool) == isinstance(new, bool)


def listed(document: str) -> list[tuple[list[str], str, str]]:
    """The rows of the table of names: the names, what is here, and why."""
    rows = []
    table = document.partition(f"\n{TABLE_OF_NAMES}\n")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        names = re.findall(r"`([^`]+)`", cells[0]) if cells else []
        if names:
            rows.append((names, *cells[1:]))
    return rows
