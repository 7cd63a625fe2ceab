"""Tests of the design: layers, sizes, public names, import time, and the contents of the repository."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest

from composer._compat.import_alias_table import HOMES
from tests import after_torch
from tests.design import (
    FLOORS,
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    ROOT,
    floor_of,
    floor_violations,
    functions,
    in_order,
    is_public,
    modules,
    python_files,
    relative,
)

MODULES = modules()
PUBLIC = [name for name in MODULES if is_public(name)]

# (file, function) -> why it may be longer. Keep this short.
LONGER_FUNCTIONS: dict[tuple[str, str], str] = {
    ("composer/trainer/trainer.py", "Trainer.__init__"): "its arguments, one a line, are the public interface",
}
LONGER_FILES: dict[str, str] = {
    "composer/trainer/trainer.py": "half of it describes the arguments of the public interface",
}

# fmt: off
FACADE = [
    "Algorithm", "Callback", "ComposerModel", "DataSpec", "Engine", "Evaluator", "Event", "Logger", "State", "Time",
    "TimeUnit", "Timestamp", "Trainer", "__version__",
]

CORE = [
    "Algorithm", "AlgorithmPass", "Batch", "Callback", "DataSpec", "Dataset", "Engine", "Evaluator", "Event", "JSON",
    "MemoryFormat", "Precision", "Serializable", "State", "Time", "TimeUnit", "Timestamp", "Trace", "TrainerMode",
    "ensure_data_spec", "ensure_evaluator", "ensure_time", "get_precision_context",
]
# fmt: on

# Packages that must not be loaded by an import of ours alone.
# fmt: off
HEAVY = [
    "PIL", "accelerate", "aim", "boto3", "botocore", "comet_ml", "datasets", "deepspeed", "fsspec", "google",
    "IPython", "lightning", "matplotlib", "mlflow", "neptune", "onnx", "pandas", "pydantic", "requests", "rich",
    "s3fs", "scipy", "sklearn", "tensorboard", "tokenizers", "torchaudio", "torchmetrics", "torchtext", "torchvision",
    "tqdm", "transformers", "wandb",
]
# fmt: on


# ---------------------------------------------------------------------------------------------------- floors


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    path = MODULES[module]
    found = floor_violations(path.read_text(), module, set(MODULES), path.name == "__init__.py")
    assert not found, "\n".join(f"{relative(path)}:{violation}" for violation in found)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        (
            "composer.core.state",
            "import composer.trainer",
            "1: composer.core.state (floor 2) imports composer.trainer (floor 8)",
        ),
        ("composer.core.state", "from composer import Trainer", "imports composer (floor 12)"),
        ("composer.core.state", "from composer import dist", None),
        ("composer.core.state", "from ..trainer import Trainer", "imports composer.trainer (floor 8)"),
        ("composer.core.state", "from .time import Time", None),
        (
            "composer.core.state",
            "if TYPE_CHECKING:\n    from composer.loss import x",
            "2: composer.core.state (floor 2)",
        ),
        ("composer.core.state", "def f():\n    import composer.optim", "2: composer.core.state (floor 2)"),
        ("composer.core.state", "attach(__name__, {'Trainer': 'composer.trainer'})", "imports composer.trainer"),
        ("composer.core.state", "importlib.import_module('composer.cli')", "imports composer.cli (floor 12)"),
        ("composer.core.state", "import torch, composition", None),
        ("composer.algorithms.mixup", "from composer.algorithms.labels import x", None),
        ("composer.algorithms.mixup", "from composer.callbacks import x", "imports composer.callbacks (floor 7)"),
        ("composer.algorithms.mixup", "from composer.attic import x", "imports composer.attic, which has no floor"),
        ("composer.attic", "", "composer.attic has no floor"),
    ],
)
def test_floor_check_finds_violations(module: str, source: str, expected: str | None) -> None:
    known = {"composer", "composer.dist", "composer.core.time", "composer.trainer", "composer.cli"}
    found = floor_violations(source, module, known)
    assert (not found) if expected is None else (len(found) == 1 and expected in found[0]), found


def test_floor_table_names_each_module_once() -> None:
    names = [name for floor in FLOORS for name in floor]
    assert len(names) == len(set(names))
    assert all(floor_of(module) is not None for module in MODULES)


# ---------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("path", python_files("composer", "examples", "benchmarks", "tests"), ids=relative)
def test_size(path) -> None:
    source, file = path.read_text(), relative(path)
    lines = source.count("\n")
    assert lines <= MAX_FILE_LINES or file in LONGER_FILES, f"{file} has {lines} lines, more than {MAX_FILE_LINES}"
    long = [
        f"{file}:{line}: {name} has {length} lines without its docstring, more than {MAX_FUNCTION_LINES}"
        for name, line, length in functions(source)
        if length > MAX_FUNCTION_LINES and (file, name) not in LONGER_FUNCTIONS
    ]
    assert not long, "\n".join(long)


def test_exceptions_are_still_needed() -> None:
    lengths = {
        (relative(path), name): length
        for path in [ROOT / file for file in sorted({file for file, _ in LONGER_FUNCTIONS})]
        if path.exists()
        for name, _, length in functions(path.read_text())
    }
    stale = [key for key in LONGER_FUNCTIONS if lengths.get(key, 0) <= MAX_FUNCTION_LINES]
    stale += [
        file
        for file in LONGER_FILES
        if not (ROOT / file).exists() or (ROOT / file).read_text().count("\n") <= MAX_FILE_LINES
    ]
    assert not stale, f"no longer exceptions: {stale}"
    assert len(LONGER_FUNCTIONS) + len(LONGER_FILES) <= 8, "a list of exceptions this long is no list of exceptions"


def test_length_of_a_function_excludes_its_docstring() -> None:
    source = (
        'class A:\n    def f(\n        self,\n    ):\n        """One.\n\n        Two.\n        """\n        return 1\n'
    )
    assert list(functions(source)) == [("A.f", 2, 4)]


# ---------------------------------------------------------------------------------------------------- public names


def _load(module: str):
    """Import a module, or skip where it needs an optional package that is absent."""
    from composer._lazy import MissingConditionalImportError

    try:
        return importlib.import_module(module)
    except MissingConditionalImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    from composer._lazy import MissingConditionalImportError

    loaded = _load(module)
    names = getattr(loaded, "__all__", None)
    assert names is not None, f"{module} has no __all__"
    names = list(names)
    assert len(set(names)) == len(names), f"{module}.__all__ names something twice"
    assert in_order(names), f"{module}.__all__ is not sorted: {names}"
    assert loaded.__doc__, f"{module} has no docstring"
    undocumented = []
    for name in names:
        try:
            value = getattr(loaded, name)
        except MissingConditionalImportError:
            continue
        ours = str(getattr(value, "__module__", None)).startswith("composer")
        if (
            ours
            and (inspect.isclass(value) or inspect.isroutine(value))
            and not vars(value).get("__doc__", value.__doc__)
        ):
            undocumented.append(name)
    assert not undocumented, f"{module}: without docstring: {undocumented}"


@pytest.mark.parametrize("module", PUBLIC)
def test_public_definitions_are_listed(module: str) -> None:
    """A public class or function that is not in __all__ is either private or forgotten."""
    loaded = _load(module)
    defined = {
        name
        for name, value in vars(loaded).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
        and not name.startswith("_")
    }
    unlisted = sorted(defined - set(loaded.__all__))
    assert not unlisted, f"{module} defines {unlisted} without listing them in __all__; list them or start them with _"


@pytest.mark.parametrize(("module", "expected"), [("composer", FACADE), ("composer.core", CORE)])
def test_facade(module: str, expected: list[str]) -> None:
    loaded = importlib.import_module(module)
    assert set(expected) <= set(loaded.__all__)
    assert set(loaded.__all__) <= set(dir(loaded))
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None, name


def test_facade_for_type_checkers_matches_run_time() -> None:
    """The imports under TYPE_CHECKING and the lazy table have to name the same things."""
    for module in ("composer", "composer.core", "composer.utils"):
        source = MODULES[module].read_text()
        static = _static(source)
        # Import paths of the predecessor: modules without a file.
        static.update(dict.fromkeys(re.findall(r"^    (\w+): ModuleType$", source, flags=re.M)))
        lazy = dict(re.findall(r'^            "(\w+)": "([\w.]+)",$', source, flags=re.M))
        lazy.pop("__version__", None)
        for name, home in static.items():
            alias = f"{module}.{name}"
            if home is None or (lazy.get(name) == alias and HOMES.get(alias) == home):
                static[name] = alias
        assert static == lazy, module


def _static(source: str) -> dict[str, str]:
    """Name -> module of the imports of a facade, in the notation of the lazy table."""
    found = re.findall(r"^    from ([\w.]+) import (?:\(\n +)?(\w+) as \2(?:,\n +\))?$", source, flags=re.M)
    return {name: f"{module}.{name}" if f"{module}.{name}" in MODULES else module for module, name in found}


def test_mistyped_name_gets_a_suggestion() -> None:
    import composer

    with pytest.raises(AttributeError, match="Trainer"):
        _ = composer.Trainr


# ---------------------------------------------------------------------------------------------------- ImportTime

_PROBE = """
import json, os, signal, sys, threading

def snapshot():
    return {{
        "environment": dict(os.environ),
        "signals": {{s.name: repr(signal.getsignal(s)) for s in signal.Signals if s in signal.valid_signals()}},
        "threads": sorted(t.name for t in threading.enumerate()),
        "native threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0,
        "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(threading.excepthook)],
        "streams": [repr(sys.stdout.write), repr(sys.stderr.write)],
        "directory": os.getcwd(),
    }}

first, loaded = snapshot(), set(sys.modules)
{statement}
second = snapshot()
print(json.dumps({{
    "new": sorted({{name.partition(".")[0] for name in set(sys.modules) - loaded}}),
    "changed": [key for key in first if first[key] != second[key]],
}}))
"""


def _probe(statement: str) -> dict[str, list[str]]:
    """Run a statement after torch is imported; report which top-level packages came in and what changed."""
    result = after_torch.run(_PROBE.format(statement=statement), warn="error")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "statement",
    [
        "import composer",
        "import composer.core; [getattr(composer.core, name) for name in composer.core.__all__]",
        "import composer; [getattr(composer, name) for name in composer.__all__]",
        "import composer.algorithms as a; [getattr(a, name) for name in a.__all__]",
        "import composer.functional as f; [getattr(f, name) for name in f.__all__]",
    ],
    ids=["composer", "core names", "every name of the facade", "algorithms", "functional"],
)
def test_import_time(statement: str) -> None:
    """ImportTime: nothing heavier than torch comes in, and nothing of the process changes."""
    found = _probe(statement)
    assert not set(found["new"]) & set(HEAVY)
    third_party = set(found["new"]) - set(sys.stdlib_module_names) - {"composer", "torch", "numpy", "typing_extensions"}
    # Modules without a file of their own: what torch registers under a name that is no package's.
    assert not {
        name for name in third_party if importlib.util.find_spec(name.partition(".")[0]) and not name.startswith("_")
    }
    assert found["changed"] == []


def test_import_probe_sees_changes() -> None:
    statement = "os.environ['X'] = '1'; signal.signal(signal.SIGTERM, signal.SIG_IGN); import rich"
    found = _probe(statement)
    assert set(found["changed"]) == {"environment", "signals"}
    assert "rich" in found["new"]


# ---------------------------------------------------------------------------------------------------- repository


def _tracked() -> list[str]:
    """Files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


# Written in pieces, so that this file does not find itself.
_MACHINE = re.compile(r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "Us" + "ers"]) + r")/\w")
_OUTSIDE = re.compile(r"(?<![\w-])sha" + r"red/")


def test_no_folder_of_tests_is_passed_by(pytestconfig: pytest.Config) -> None:
    """By default, pytest does not look into folders called dist, build or venv: 140 tests had not run for days."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    names = {name for folder in folders for name in folder.relative_to(ROOT).parts}
    assert "dist" in names
    patterns: list[str] = pytestconfig.getini("norecursedirs")
    assert [name for name in sorted(names) if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []


def test_no_host_specific_path_in_the_repository() -> None:
    found = []
    for name in _tracked():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _MACHINE.search(line) or _OUTSIDE.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_repository_is_small() -> None:
    large = {name: size for name in _tracked() if (size := (ROOT / name).stat().st_size) > 1_000_000}
    assert not large, large


def test_constraints_are_exact_and_without_urls() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*(?: ; [^/]+)?", line)]
    assert not wrong, wrong
    assert "torch==2.13.0" in lines
    names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
    assert names == sorted(set(names))


def test_every_dependency_is_constrained() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["docs"], *extras["examples"]]
    names = {re.split(r"[\[<>=!~; ]", text)[0].lower() for text in wanted} - {project["name"]}
    held = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= held, sorted(names - held)
