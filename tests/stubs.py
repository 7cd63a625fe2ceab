"""Generate stubs of the modules with lazy names, so that type checkers and editors know these names.

``python -m tests.stubs`` rewrites them after a name was added or removed.
"""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.design import modules, relative

HEADER = '''"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

'''


def lazy_modules() -> dict[str, Path]:
    """Modules with a table of names and without imports of them for type checkers, and their stubs."""
    found = {}
    for name, path in modules().items():
        source = path.read_text()
        if "= attach(" in source and "TYPE_CHECKING" not in source and name != "composer._lazy":
            found[name] = path.with_suffix(".pyi")
    return found


def table(module: ModuleType) -> dict[str, str]:
    """Name -> where it is found, as the module gave it to ``attach``."""
    lookup: Callable[[str], Any] = getattr(module, "_resolve", module.__getattr__)
    return inspect.getclosurevars(lookup).nonlocals["members"]


def stub(name: str) -> str:
    """The text of the stub of a module."""
    module = importlib.import_module(name)
    imports: dict[str, list[str]] = defaultdict(list)
    for public, target in table(module).items():
        home, _, attribute = target.partition(":")
        attribute = attribute or public
        if home == f"{name}.{public}" and not hasattr(importlib.import_module(home), public):
            home = name  # the name is that of a module
        # A name of a stub that is not in __all__ is exported by a second mention.
        plain = attribute == public and public in module.__all__
        imports[home].append(public if plain else f"{attribute} as {public}")
    lines = [_wrapped(f"from {home} import ", sorted(names)) for home, names in sorted(imports.items())]
    short = [f"{alias} = {meant}\n" for alias, meant in getattr(module, "_SHORT", {}).items()]
    names = "".join(f'    "{public}",\n' for public in sorted(module.__all__, key=_as_ruff_sorts))
    return f"{HEADER}{''.join(lines)}\n{''.join(short)}{chr(10) if short else ''}__all__ = [\n{names}]\n"


def _wrapped(start: str, names: list[str]) -> str:
    names = sorted(names, key=_as_ruff_sorts)
    whole = f"{start}{', '.join(names)}\n"
    if len(whole) <= 121:
        return whole
    listed = "".join(f"    {name},\n" for name in names)
    return f"{start}(\n{listed})\n"


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """CONSTANTS, Classes, functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name


def main() -> None:
    for name, path in lazy_modules().items():
        text = stub(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {relative(path)}")


if __name__ == "__main__":
    main()
