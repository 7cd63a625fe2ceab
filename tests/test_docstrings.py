"""Every example in a docstring runs, and everything public has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import random
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

from composer._lazy import MissingConditionalImportError
from tests.design import is_public, modules

MODULES = list(modules())

# Public names that need no example -> why. Keep this short.
WITHOUT_EXAMPLE: dict[str, str] = {
    "composer.devices.DeviceHPU": "exists only beside its hardware",
    "composer.devices.DeviceNeuron": "exists only beside its hardware",
    "composer.devices.DeviceTPU": "exists only beside its hardware",
}


class _Finder(doctest.DocTestFinder):
    """Also finds functions that a decorator has wrapped in one of another module, as ``contextmanager`` does."""

    def _from_module(self, module: ModuleType | None, object: object) -> bool:
        unwrapped = inspect.unwrap(object) if callable(object) else object
        if module is not None and not isinstance(unwrapped, property):
            return getattr(unwrapped, "__module__", None) == module.__name__
        return super()._from_module(module, unwrapped)  # type: ignore[misc]


def _load(module: str) -> ModuleType:
    """Import a module, or skip where it needs an optional package that is absent."""
    try:
        return importlib.import_module(module)
    except MissingConditionalImportError as missing:
        pytest.skip(str(missing))


def run_examples(module: ModuleType) -> tuple[int, list[str]]:
    """Run the examples of a module, each docstring from the same seed; return their number and what went wrong."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    report: list[str] = []
    for test in _Finder(exclude_empty=True).find(module, module.__name__):
        random.seed(0)
        torch.manual_seed(0)
        # Known to every reader, even where the module itself needs only its types.
        test.globs.setdefault("torch", torch)
        with tempfile.TemporaryDirectory() as folder:
            test.globs.setdefault("tmp_path", Path(folder))
            runner.run(test, out=report.append)
    return runner.tries, report


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    _, report = run_examples(_load(name))
    assert not report, "".join(report)


@pytest.mark.parametrize("name", [name for name in MODULES if is_public(name)])
def test_everything_public_has_an_example(name: str) -> None:
    module = _load(name)
    missing = []
    for public in module.__all__:
        value = vars(module).get(public)
        unwrapped = inspect.unwrap(value) if callable(value) else value
        if not (inspect.isclass(unwrapped) or inspect.isroutine(unwrapped)) or unwrapped.__module__ != name:
            continue  # a constant, or a name whose home is elsewhere
        if _is_part_of_the_loop(unwrapped):
            continue
        if not _has_example(unwrapped) and f"{name}.{public}" not in WITHOUT_EXAMPLE:
            missing.append(public)
    assert not missing, f"{name}: without a >>> example: {missing}"


def _is_part_of_the_loop(value: object) -> bool:
    """Whether a function acts on the run or the state of a Trainer, whose example shows these at work."""
    return (
        inspect.isfunction(value)
        and value.__module__.startswith("composer.trainer.")
        and not {"run", "state"}.isdisjoint(inspect.signature(value).parameters)
    )


def _has_example(value: object) -> bool:
    """Whether a function or a class, or one of the methods of a class, shows how it is used."""
    if ">>>" in (value.__doc__ or ""):
        return True
    return inspect.isclass(value) and any(
        ">>>" in (getattr(part, "__doc__", None) or "")
        for part in vars(value).values()
        if not isinstance(part, int)  # int has an example, and a class of Python 3.13 the number of its first line
    )


def test_exceptions_are_still_needed() -> None:
    for path in WITHOUT_EXAMPLE:
        module, _, name = path.rpartition(".")
        assert not _has_example(getattr(_load(module), name)), f"{path} has an example now"
    assert len(WITHOUT_EXAMPLE) <= 10


def test_doctest_finder_runs_existing_examples(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import contextlib\n"
        "def right():\n    '''\n    >>> 1 + 1\n    2\n    '''\n"
        "@contextlib.contextmanager\ndef wrapped():\n    '''\n    >>> 1 + 1\n    3\n    '''\n    yield\n"
    )
    (tmp_path / "examples_of_examples.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    tries, report = run_examples(importlib.import_module("examples_of_examples"))
    assert tries == 2
    assert len(report) == 1
    assert "wrapped" in report[0]
