"""Design rules as functions of source code, so that tests can check that they detect violations."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# A module imports only from floors below its own, or from its own package. The longest prefix of its name decides.
FLOORS: tuple[tuple[str, ...], ...] = (
    (
        "_at_exit",
        "_class_cache",
        "_compat",
        "_env_variables",
        "_forwarded_attributes",
        "_html",
        "_interrupts",
        "_lazy",
        "_module_hooks",
        "_numbers",
        "_output_file",
        "_plots",
        "_raw_memory",
        "_resident_memory",
        "_secrets",
        "_string_lists",
        "_text",
        "_version",
        "warnings",
    ),
    (
        "_batch_keys",
        "_containers",
        "_cpus",
        "_device_copies",
        "_generator_memory",
        "_host_optimizer_state",
        "devices",
        "dist",
        "environment",
        "ledger",
        "nested",
        "precision",
        "program_version",
        "rng",
        "statistics",
        "trees",
    ),
    ("core",),
    ("loss", "memory", "model_summary", "nn", "storage", "surgery"),
    ("history", "metrics", "optim", "profiler"),
    ("checkpoint", "parallel"),
    ("export", "reports"),
    ("algorithms", "callbacks", "datasets", "loggers", "models"),
    ("functional", "trainer"),
    ("hparams",),
    ("trials",),
    ("diagnosis", "estimation", "exploration", "verification"),
    ("__main__", "cli", "utils", ""),  # "" is composer/__init__.py
)
# The modules of these floors stand together like those of one package.
ONE_PACKAGE = frozenset({0, 1})

_FLOOR_OF = {f"composer.{name}".rstrip("."): number for number, names in enumerate(FLOORS) for name in names}


def python_files(*folders: str) -> list[Path]:
    """All Python files below these folders of the repository, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@functools.lru_cache(maxsize=8)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source; several rules read the same file in turn."""
    return ast.parse(source)


def relative(path: Path) -> str:
    """The path as people name it."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The dotted name of the module in a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module of the package and its file."""
    return {module_name(path): path for path in python_files("composer")}


def is_public(module: str) -> bool:
    """Whether no part of the name is private."""
    return not any(part.startswith("_") for part in module.split("."))


def floor_of(module: str) -> int | None:
    """The floor on which a module stands, None for one that the table does not know."""
    if module == "composer":
        return _FLOOR_OF["composer"]
    return _FLOOR_OF.get(".".join(module.split(".")[:2]))


def imports(source: str, module: str, known: set[str], is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module of the package that some source refers to.

    Imports under TYPE_CHECKING or inside functions count, and so do names given to the lazy loaders as text.
    """
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package)
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        elif isinstance(node, ast.Call) and _called(node) in {"attach", "import_module", "import_extra"}:
            texts = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            found = [str(text.value).partition(":")[0] for text in texts]
        else:
            continue
        yield from ((node.lineno, name) for name in found if name == "composer" or name.startswith("composer."))


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module that a ``from ... import`` names, whether given absolutely or by dots."""
    if node.level == 0:
        return node.module or ""
    parents = module.split(".")
    keep = len(parents) - node.level + (1 if is_package else 0)
    return ".".join([*parents[:keep], *([node.module] if node.module else [])])


def _called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    target = node.func
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def floor_violations(source: str, module: str, known: set[str], is_package: bool = False) -> list[str]:
    """Say for each import that goes up or sideways: line, both modules, both floors."""
    here = floor_of(module)
    if here is None:
        return [f"1: {module} has no floor; put {module.split('.')[1]!r} into FLOORS of tests/design.py"]
    found = []
    for line, other in imports(source, module, known, is_package):
        there = floor_of(other)
        if there is None:
            found.append(f"{line}: {module} (floor {here}) imports {other}, which has no floor")
        elif there > here or (there == here and not _same_package(module, other, here)):
            found.append(f"{line}: {module} (floor {here}) imports {other} (floor {there})")
    return found


def _same_package(module: str, other: str, floor: int) -> bool:
    """Whether two modules of one floor may use each other."""
    # The doors of the top floor lead to each other: the facade names `composer.utils`.
    doors = module in ("composer", "composer.__main__")
    return floor in ONE_PACKAGE or doors or module.split(".")[:2] == other.split(".")[:2]


def functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield qualified name, line and number of lines of each function, without its docstring."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
        for child in _statements(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}."
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (child.end_lineno or child.lineno) - child.lineno + 1
                if ast.get_docstring(child, clean=False) is not None:
                    docstring = child.body[0]
                    length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
                yield name[:-1], child.lineno, length
            yield from walk(child, name)

    yield from walk(parsed(source), "")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a statement, and what groups them, without the expressions, which are most of a tree."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        yield from getattr(node, field, ())


def in_order(names: list[str]) -> bool:
    """Whether names are sorted, either plainly or as ruff sorts them: CONSTANTS, Classes, functions."""

    def kind(name: str) -> tuple[int, str]:
        return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name

    return names in (sorted(names), sorted(names, key=kind))
