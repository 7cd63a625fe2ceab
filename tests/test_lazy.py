"""Lazy attributes and optional packages."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer._lazy import MissingConditionalImportError, attach, import_extra, import_object


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package on disk whose members are lazy."""
    root = tmp_path / "lazy_example"
    root.mkdir()
    (root / "__init__.py").write_text(
        "from composer._lazy import attach\n"
        "__getattr__, __dir__, __all__ = attach(__name__, {'Thing': 'lazy_example.thing', 'sub': 'lazy_example.sub',\n"
        "    'other': 'lazy_example.thing:Thing', 'same': 'lazy_example.same'})\n"
    )
    (root / "thing.py").write_text("class Thing: pass\n")
    (root / "sub.py").write_text("sub = 'not the module'\n")
    (root / "same.py").write_text("")
    (root / "needy.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lazy_example"
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_example"]:
        del sys.modules[name]


def test_nothing_loads_before_it_is_used(package):
    module = __import__(package)
    assert "lazy_example.thing" not in sys.modules
    thing = module.Thing
    assert thing.__module__ == "lazy_example.thing"
    assert vars(module)["Thing"] is thing is module.other


def test_submodule_names_give_modules(package):
    module = __import__(package)
    assert module.sub is sys.modules["lazy_example.sub"]
    assert module.same is sys.modules["lazy_example.same"]


def test_module_with_the_name_of_an_object():
    get, _, _ = attach("nowhere", {"path": "os.path", "fsum": "math"})
    import math
    import os.path

    assert get("path") is os.path
    assert get("fsum") is math.fsum


def test_names_are_listed_and_sorted(package):
    module = __import__(package)
    assert module.__all__ == ["Thing", "other", "same", "sub"]
    assert set(module.__all__) <= set(dir(module))
    namespace: dict[str, object] = {}
    exec("from lazy_example import *", namespace)
    assert set(module.__all__) <= set(namespace)


def test_unknown_name_gets_a_suggestion(package):
    module = __import__(package)
    with pytest.raises(AttributeError, match=r"no attribute 'Thimg'\. Did you mean 'Thing'\?"):
        _ = module.Thimg
    assert not hasattr(module, "__wrapped__")


def test_missing_package_says_how_to_install():
    with pytest.raises(
        MissingConditionalImportError, match=r"WandBLogger needs .*pip install 'composer-torch\[wandb\]'"
    ):
        import_extra("no_such_package.sub", "wandb", "WandBLogger")
    with pytest.raises(ImportError, match=r"pip install 'thing\[x\]'"):
        import_extra("no_such_package", "none", "It", install="thing[x]")


def test_broken_package_is_not_reported_missing(package):
    with pytest.raises(ModuleNotFoundError) as caught:
        import_extra("lazy_example.needy", "extra", "It")
    assert not isinstance(caught.value, MissingConditionalImportError)
    assert caught.value.name == "no_such_dependency"


def test_the_error_survives_pickling():
    error = MissingConditionalImportError("wandb", "wandb", "conda-forge")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "conda install -c conda-forge wandb" in str(error)


def test_objects_by_their_names() -> None:
    assert import_object("collections.abc:Iterator") is Iterator
    with pytest.raises(ImportError):
        import_object("no_such_module:thing")
    with pytest.raises(AttributeError):
        import_object("collections:thing")


@pytest.mark.parametrize("name", ["collections.abc.Iterator", "collections:", ":Iterator", ""])
def test_object_names_are_canonical(name: str) -> None:
    with pytest.raises(ValueError, match=r"^name must be 'module:attribute'"):
        import_object(name)
