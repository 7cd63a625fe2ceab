"""The source files of a program: those of packages are not."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import weakref
from types import ModuleType

import pytest

from composer.trainer.fingerprint import sources
from composer.trainer.fingerprint.sources import fingerprint_of_sources


@pytest.fixture(autouse=True)
def no_limit(monkeypatch) -> None:
    """The modules of other tests are many."""
    monkeypatch.setattr(sources, "_MAX_FILES", 10_000)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a program."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "layers_of_mine.py"
    path.write_text("SIZE = 1\n")
    yield importlib.import_module("layers_of_mine"), path
    del sys.modules["layers_of_mine"]


def test_modules_of_the_program(module) -> None:
    _, path = module
    name, hashed = fingerprint_of_sources()["layers_of_mine"]
    assert name == "layers_of_mine.py"
    path.write_text("SIZE = 22\n")
    assert fingerprint_of_sources()["layers_of_mine"] != [name, hashed]
    path.unlink()
    assert "layers_of_mine" not in fingerprint_of_sources()


def test_installed_packages_are_left_out(module) -> None:
    del module
    packages = {name.partition(".")[0] for name in fingerprint_of_sources()}
    assert not {"composer", "torch", "numpy", "pytest", "json", "os"} & packages


def test_generated_modules_of_packages_are_left_out(tmp_path, monkeypatch) -> None:
    """The compiler of torch imports what it generates under names of its own package."""
    path = tmp_path / "generated.py"
    path.write_text("SIZE = 1\n")
    generated = ModuleType("torch.generated_by_a_test")
    generated.__file__ = str(path)
    monkeypatch.setitem(sys.modules, generated.__name__, generated)
    assert generated.__name__ not in fingerprint_of_sources()


def test_deleted_modules_are_not_kept_alive(monkeypatch) -> None:
    made = ModuleType("made_by_a_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    fingerprint_of_sources()
    monkeypatch.undo()
    reference = weakref.ref(made)
    del made
    assert reference() is None


def test_objects_without_weak_references_are_left_out(monkeypatch) -> None:
    class Library:
        """As those of cffi, which say that they are modules."""

        __slots__ = ()
        __class__ = ModuleType

    monkeypatch.setitem(sys.modules, "library_of_a_test", Library())
    assert "library_of_a_test" not in fingerprint_of_sources()


def test_lazy_modules_are_not_imported(tmp_path) -> None:
    path = tmp_path / "lazy_of_mine.py"
    path.write_text("raise AssertionError\n")
    spec = importlib.util.spec_from_file_location("lazy_of_mine", path)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    sys.modules["lazy_of_mine"] = lazy
    try:
        spec.loader.exec_module(lazy)
        assert "lazy_of_mine" in fingerprint_of_sources()
    finally:
        del sys.modules["lazy_of_mine"]


def test_modules_of_extensions_without_attributes_are_left_out(monkeypatch) -> None:
    """Such as those of cffi, which cryptography imports."""

    class Bare(ModuleType):
        __dict__ = property()  # pyright: ignore[reportAssignmentType]

    before = fingerprint_of_sources()
    monkeypatch.setitem(sys.modules, "bare", Bare("bare"))
    assert fingerprint_of_sources() == before
