"""The reference: a page for each package, and one for each callback and logger, from the packages themselves."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import composer
from composer.core.callback import Callback
from composer.optim import ComposerScheduler
from docs.text import api, summary, table

__all__ = ["leaf_pages", "members", "own_names", "public_modules", "reference_pages"]

# Packages with pages of their own; the rest of each is in the reference.
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
    """Return the public names that are defined in a module, and not only passed on by it."""
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
    """Return the reference of all that a module defines: classes, then functions, then constants."""

    def rank(name: str) -> int:
        value = getattr(module, name)
        return 0 if inspect.isclass(value) else 1 if inspect.isroutine(value) else 2

    names = sorted(own_names(module), key=rank)
    return "\n\n".join(api(f"{module.__name__}.{name}", level) for name in names)


def leaf_pages(package: str, title: str) -> dict[str, str]:
    """Return a page for each module of a package of callbacks or loggers, and one that lists them."""
    folder = package.rpartition(".")[2]
    pages: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for module in list(public_modules(package))[1:]:
        names = own_names(module)
        if not names:
            continue  # an old home that passes names on
        watchers = [name for name in names if _is_watcher(getattr(module, name))]
        heading = next(iter(watchers), names[0])
        path = f"{folder}/{module.__name__.rpartition('.')[2]}.md"
        pages[path] = f"# {heading}\n\n{summary(module)}\n\n{members(module, level=2)}\n"
        rows.append((f"[{heading}]({path.partition('/')[2]})", summary(getattr(module, heading))))
    about = f"# {title}\n\n{summary(importlib.import_module(package))}\n\n"
    pages[f"{folder}/index.md"] = about + table(["name", "what it does"], rows) + "\n"
    return pages


def reference_pages() -> dict[str, str]:
    """Return a page for each top-level module or package, and one that lists them."""
    grouped: dict[str, list[ModuleType]] = {}
    for module in public_modules():
        if module is composer or _is_shown_elsewhere(module):
            continue
        grouped.setdefault(module.__name__.split(".")[1], []).append(module)
    pages: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for name, modules in sorted(grouped.items()):
        parts = [f"## {module.__name__}\n\n{summary(module)}\n\n{_reference(module)}" for module in modules]
        parts = [part for part, module in zip(parts, modules, strict=True) if _reference(module)]
        if not parts:
            continue
        path = f"reference/{name}.md"
        package = importlib.import_module(f"composer.{name}")
        pages[path] = f"# composer.{name}\n\n" + "\n\n".join(parts) + "\n"
        rows.append((f"[composer.{name}]({name}.md)", summary(package)))
    about = (
        "# Reference\n\nEvery public module, by package. Methods, schedules, callbacks and loggers have pages of their "
        "own.\n\n"
    )
    pages["reference/index.md"] = about + table(["package", "what it holds"], rows) + "\n"
    return pages


def _reference(module: ModuleType) -> str:
    """The reference of a module, without the schedules, which have pages of their own."""
    shown = [name for name in own_names(module) if not _is_schedule(getattr(module, name))]
    return "\n\n".join(api(f"{module.__name__}.{name}") for name in shown)


def _is_shown_elsewhere(module: ModuleType) -> bool:
    name = module.__name__
    return name in _LEAVES or (any(name.startswith(f"{leaf}.") for leaf in _LEAVES) and ".utils" not in name)


def _is_schedule(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, ComposerScheduler) and value is not ComposerScheduler


def _is_watcher(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Callback)
