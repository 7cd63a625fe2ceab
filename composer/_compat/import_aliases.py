"""Import paths of MosaicML Composer 0.32: a lazy alias for each module and name that has moved.

:mod:`composer._compat.import_alias_table` has the table. A module of the table without a file becomes an alias module;
one with a file keeps it, and the table adds the names that it lacks. Names are resolved on first access, so an alias
imports nothing by itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, final

from composer._compat.import_alias_table import ABSENT, HOMES, PACKAGES, PUBLIC
from composer._lazy import is_from_import

__all__ = ["OlderHomes", "install", "resolve"]

_TABLE = "composer._compat.import_alias_table"

# The two classes do not inherit from importlib.abc, whose import takes longer than all of this.


@final
class OlderHomes:
    """Meta path finder for the modules of the table; it comes first, since modules with a file need it too.

    >>> OlderHomes().find_spec("composer.devices.device_cpu").name
    'composer.devices.device_cpu'
    >>> OlderHomes().find_spec("json") is None
    True
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the table, or None.

        Args:
            fullname: Name of the module.
            path: Search path of its package.
            target: The module to reload, if any.
        """
        if fullname not in HOMES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            aliases: Any = _Aliases(None)
            return ModuleSpec(fullname, aliases, origin=_TABLE, is_package=fullname in PACKAGES)
        if spec.loader is not None:
            with_file: Any = _Aliases(spec.loader)
            spec.loader = with_file
        if fullname in PACKAGES and spec.submodule_search_locations is None:
            spec.submodule_search_locations = []  # a file here, a package there
        return spec


class _Aliases:
    """Loader for a module, from its file if it has one, that adds the names of the table."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._loader is None else self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self._loader is not None:
            self._loader.exec_module(module)
        else:
            module.__doc__ = f"Alias: moved to {', '.join(_homes(module.__name__)) or 'other modules'}."
        own: Callable[[str], Any] | None = vars(module).get("__getattr__")

        def get(name: str) -> Any:
            if own is not None:
                try:
                    return own(name)
                except AttributeError:
                    if not _has(module.__name__, name):
                        raise
            try:
                value = resolve(module.__name__, name)
            except AttributeError:
                if is_from_import(sys._getframe(1)):
                    # Python replaces an AttributeError here by "cannot import name" without the reason.
                    text = f"cannot import name {name!r} from {module.__name__!r}.{_hint(module.__name__, name)}"
                    raise ImportError(text, name=module.__name__) from None
                raise
            setattr(module, name, value)
            return value

        def names() -> list[str]:
            return sorted({*vars(module), *_listed(module.__name__)})

        module.__getattr__ = get  # type: ignore[method-assign]
        vars(module).setdefault("__dir__", names)

    def __getattr__(self, name: str) -> Any:
        """Delegate the source, code and so on to the loader of the file."""
        if self._loader is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def install() -> None:
    """Insert the finder before all others, once.

    >>> install()
    >>> sum(isinstance(finder, OlderHomes) for finder in sys.meta_path)
    1
    """
    if not any(isinstance(finder, OlderHomes) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderHomes())


def resolve(module: str, name: str) -> Any:
    """Return the object that a name of an older module refers to.

    Args:
        module: The older module.
        name: The name.

    Raises:
        AttributeError: The name is not available; the error says why, or suggests a similar name.

    >>> resolve("composer.devices.device_cpu", "DeviceCPU").__module__
    'composer.devices'
    """
    if name == "__all__":
        return [listed for listed in _listed(module) if not listed.startswith("_")]
    home = None if name.startswith("__") else _home(module, name)
    if home is None:
        raise AttributeError(_unknown(module, name), name=name)
    home_module, attribute = home
    return getattr(importlib.import_module(home_module), attribute)


def _home(module: str, name: str) -> tuple[str, str] | None:
    """Return the current module and name, or None."""
    entries = HOMES[module].split()
    for entry in entries:
        old, home, attribute = _parse(entry)
        if attribute and old == name:
            return home, attribute
    for entry in entries:
        if ":" not in entry and hasattr(importlib.import_module(entry), name):
            return entry, name
    # Names that the older module had only imported; scripts import such names from anywhere.
    for home in () if name.startswith("_") else PUBLIC:
        if home != module and name in _exported(home):
            return home, name
    return None


def _has(module: str, name: str) -> bool:
    return not name.startswith("__") and _home(module, name) is not None


def _homes(module: str) -> list[str]:
    """Return the modules that hold the public names of an alias module, in order."""
    parsed = map(_parse, HOMES[module].split())
    return list(dict.fromkeys(home for old, home, _ in parsed if not old.startswith("_")))


def _listed(module: str) -> list[str]:
    """Return the names that an alias module lists in ``dir()``."""
    found: set[str] = set()
    for entry in HOMES[module].split():
        old, home, attribute = _parse(entry)
        found.update([old] if attribute else _exported(home))
    return sorted(found)


def _parse(entry: str) -> tuple[str, str, str]:
    """Split an entry into older name, module and name there; both names are empty if it is an entire module."""
    old, renamed, new = entry.rpartition("=")
    home, _, attribute = new.partition(":")
    return old if renamed else attribute, home, attribute


def _exported(home: str) -> list[str]:
    return list(getattr(importlib.import_module(home), "__all__", ()))


def _unknown(module: str, name: str) -> str:
    """Return the error message for a name that is not available."""
    if name.startswith("__"):  # protocol probes are frequent and never typos
        return f"module {module!r} has no attribute {name!r}"
    return f"module {module!r} has no attribute {name!r}.{_hint(module, name)}"


def _hint(module: str, name: str) -> str:
    """Return a similar name, or else the reason why the name is not available."""
    from composer._text import did_you_mean

    if near := did_you_mean(name, [*_listed(module), *vars(sys.modules[module])]):
        return near
    reason = ABSENT.get(f"{module}.{name}") or ABSENT.get(module)
    if reason is None and name.startswith("_"):
        reason = "Only those private names of MosaicML Composer are available that other projects import."
    return f" {reason or 'MosaicML Composer may have had it; see docs/migrating.md for its names.'}"
