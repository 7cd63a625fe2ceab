"""Generate the API reference: a page for each package, and one for each callback and logger."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from composer.core.callback import Callback
from composer.optim import ComposerScheduler
from docs.text import api, first_paragraph, summary, table

__all__ = ["exports", "leaf_pages", "members", "own_names", "public_modules", "reference_pages"]

# Packages whose modules have separate pages.
_LEAVES = ("composer.algorithms", "composer.callbacks", "composer.loggers")


def public_modules(package: str = "composer") -> Iterator[ModuleType]:
    """Yield the public modules of a package, itself first, in the order of their names."""
    root = importlib.import_module(package)
    yield root
    for found in sorted(pkgutil.walk_packages(root.__path__, f"{package}."), key=lambda module: module.name):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


@functools.cache
def own_names(module: ModuleType) -> list[str]:
    """Return the public names that a module defines itself, without those that it re-exports."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except OSError:  # an empty file
        return []
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined.add(node.target.id)
        elif isinstance(node, ast.Assign):
            defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return [name for name in getattr(module, "__all__", ()) if name in defined and not name.startswith("_")]


def members(module: ModuleType, level: int = 3) -> str:
    """Return the reference of what a module defines: classes, then functions, then constants."""
    names = sorted(own_names(module), key=lambda name: _rank(getattr(module, name), name)[0])
    return "\n\n".join(api(f"{module.__name__}.{name}", level) for name in names)


def leaf_pages(package: str, title: str) -> dict[str, str]:
    """Return a page for each module of a package of callbacks or loggers, and one that lists them."""
    folder = package.rpartition(".")[2]
    pages: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for module in list(public_modules(package))[1:]:
        names = own_names(module)
        if not names:
            continue  # a former import path that only re-exports names
        watchers = [name for name in names if _is_watcher(getattr(module, name))]
        heading = next(iter(watchers), names[0])
        path = f"{folder}/{module.__name__.rpartition('.')[2]}.md"
        pages[path] = f"# {heading}\n\n{_introduction(module)}\n\n{members(module, level=2)}\n"
        rows.append((f"[{heading}]({path.partition('/')[2]})", _description(f"{module.__name__}.{heading}")))
    about = f"# {title}\n\n{_introduction(importlib.import_module(package))}\n\n"
    pages[f"{folder}/index.md"] = about + table(["name", "what it does"], rows) + "\n"
    return pages


@functools.cache
def exports() -> dict[str, str]:
    """Return the public names as ``module.name``, with the package that users import each from.

    Public is what a package exports, and what the modules directly below ``composer`` define.
    """
    modules = list(public_modules())
    # Sorted so that the shortest import wins: composer before composer.core, and composer.utils last.
    packages = sorted(
        (module for module in modules if hasattr(module, "__path__")),
        key=lambda package: (package.__name__.startswith("composer.utils"), package.__name__.count(".")),
    )
    exported = {package.__name__: dict(_values(package)) for package in packages}
    found: dict[str, str] = {}
    for module in modules:
        for name in own_names(module):
            value = getattr(module, name)
            homes = [home for home, values in exported.items() if values.get(name, exported) is value]
            own = [home for home in homes if module.__name__.startswith(home)]
            if homes:
                found[f"{module.__name__}.{name}"] = (own or homes)[0]
            elif module.__name__.count(".") == 1 and not hasattr(module, "__path__"):
                found[f"{module.__name__}.{name}"] = module.__name__
    for home, values in exported.items():
        for name, value in values.items():
            path = f"{getattr(value, '__module__', '')}.{name}"
            if path.startswith("composer.") and "._" in path:  # defined in a private module
                found.setdefault(path, home)
    return found


def _values(package: ModuleType) -> Iterator[tuple[str, object]]:
    """The names that a package exports, and their values."""
    for name in getattr(package, "__all__", ()):
        with contextlib.suppress(ImportError):  # an optional package is missing
            yield name, getattr(package, name)


def reference_pages() -> dict[str, str]:
    """Return a page for each top-level module or package with public names, and one that lists them."""
    grouped: dict[str, list[str]] = {}
    for path, home in exports().items():
        if not _is_shown_elsewhere(path.rpartition(".")[0]) and not _is_schedule(_value(path)):
            grouped.setdefault((home if "._" in path else path).split(".")[1], []).append(path)
    pages: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for name, paths in sorted(grouped.items()):
        paths.sort(key=lambda path: _rank(_value(path), path.rpartition(".")[2]))
        package = importlib.import_module(f"composer.{name}")
        listed = [_listed(path) for path in paths]
        parts = [f"# composer.{name}", _introduction(package), table(["name", "import", "what it is"], listed)]
        pages[f"reference/{name}.md"] = "\n\n".join([*parts, *(api(path, level=2) for path in paths)]) + "\n"
        rows.append((f"[composer.{name}]({name}.md)", _introduction(package)))
    about = (
        "# API reference\n\nThe public classes and functions by package; every one has an anchor. Methods, schedules, "
        "callbacks and loggers have pages of their own: [methods](../methods/index.md), "
        "[schedules](../schedules/index.md), [callbacks](../callbacks/index.md), [loggers](../loggers/index.md).\n\n"
    )
    pages["reference/index.md"] = about + table(["package", "what it contains"], rows) + "\n"
    return pages


def _value(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _listed(path: str) -> tuple[str, str, str]:
    """A link to the reference of an object, how to import it, and what it is."""
    name = path.rpartition(".")[2]
    return f"[{name}](#{path})", f"`from {exports()[path]} import {name}`", _description(path)


def _introduction(module: ModuleType) -> str:
    """What a module or package is for, without a last sentence that introduces a list of its modules.

    >>> import composer.trainer
    >>> _introduction(composer.trainer)
    'The `Trainer` and its loops.'
    """
    return re.sub(r"\s*(?:(?<=\.)|^)[^.]*(?::|\bin reading order\b[^.]*\.?)$", "", summary(module))


def _description(path: str) -> str:
    """The first sentence about an object. A constant has it below its assignment; its docstring is that of its type."""
    module, _, name = path.rpartition(".")
    value = _value(path)
    if inspect.isclass(value) or inspect.isroutine(value):
        return summary(value)
    return _constant_descriptions(sys.modules[module]).get(name, "")


@functools.cache
def _constant_descriptions(module: ModuleType) -> dict[str, str]:
    """The first sentences of the docstrings below the assignments of a module, by name."""
    found: dict[str, str] = {}
    for node, below in itertools.pairwise(ast.parse(inspect.getsource(module)).body):
        match node, below:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = first_paragraph(text)
    return found


def _rank(value: object, name: str) -> tuple[int, str]:
    """Classes before functions before constants, each in alphabetical order."""
    return (0 if inspect.isclass(value) else 1 if inspect.isroutine(value) else 2), name.lower()


def _is_shown_elsewhere(name: str) -> bool:
    return name in _LEAVES or (any(name.startswith(f"{leaf}.") for leaf in _LEAVES) and ".utils" not in name)


def _is_schedule(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, ComposerScheduler) and value is not ComposerScheduler


def _is_watcher(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Callback)
