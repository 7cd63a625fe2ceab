"""Hashes of the source files of a program: the script, and the modules that are not installed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import sysconfig
import weakref
from types import ModuleType
from typing import Final

__all__ = ["MAIN", "fingerprint_of_sources"]

MAIN: Final = "__main__"
_MAX_FILES: Final = 500
_MAX_BYTES: Final = 2**22
_PLACES: Final = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
_INSTALLED: Final = tuple({sysconfig.get_path(name) + os.sep for name in _PLACES})
_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_LIBRARY: Final = __name__.partition(".")[0]

# Modules that need not be looked at again: thousands are imported, and each first fit of a trainer asks for all. Those
# that are deleted, as in notebooks, are not kept alive.
_left_out: dict[str, weakref.ref[ModuleType]] = {}
# By path, time of change and size.
_hashes: dict[tuple[str, int, int], str] = {}


def fingerprint_of_sources() -> dict[str, list[str]]:
    """Return the name and the hash of the source file of each imported module of the program, by module.

    Modules of Python, of installed packages and of this library are left out.

    >>> all(len(entry) == 2 for entry in fingerprint_of_sources().values())
    True
    """
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if (known := _left_out.get(name)) is not None and known() is module:
            continue
        path = _path_of(module)
        if path is None or not _is_of_program(name, path):
            with contextlib.suppress(TypeError):  # modules of cffi have no weak references
                _left_out[name] = weakref.ref(module)
        elif len(found) < _MAX_FILES and (hashed := _hash_of(path)) is not None:
            found[name] = [os.path.basename(path), hashed]  # noqa: PTH119
    return found


def _path_of(module: object) -> str | None:
    """Return the path of the file of a module, if it has one."""
    if not isinstance(module, ModuleType):
        return None
    # Not with getattr, which would import a module that is to be imported lazily.
    try:
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # a module of an extension, such as those of cffi
        return None
    return os.path.abspath(path) if type(path) is str else None  # noqa: PTH100 - faster for the thousands of modules


def _is_of_program(name: str, path: str) -> bool:
    """Return whether a module has a source file, and belongs to no installed package, to Python or to this library."""
    top = name.partition(".")[0]
    if top == _LIBRARY or name == "__mp_main__" or not path.endswith(".py") or _is_installed(path):
        return False
    # Generated modules of an installed package, such as those of the compiler, are in temporary folders.
    return top == name or (package := _path_of(sys.modules.get(top))) is None or not _is_installed(package)


def _is_installed(path: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    return path.startswith(_INSTALLED) or any(part in path for part in _PACKAGES)


def _hash_of(path: str) -> str | None:
    try:
        facts = os.stat(path)  # noqa: PTH116
        key = path, facts.st_mtime_ns, facts.st_size
        if key not in _hashes and facts.st_size <= _MAX_BYTES:
            with open(path, "rb") as file:  # noqa: PTH123
                _hashes[key] = hashlib.blake2b(file.read(), digest_size=8).hexdigest()
    except OSError:  # deleted since, or in an archive
        return None
    return _hashes.get(key)
