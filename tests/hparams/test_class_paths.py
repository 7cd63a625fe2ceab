"""What stands in class_path."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from composer import algorithms, callbacks, loggers, optim
from composer.hparams.class_paths import find, full_path, short_names
from tests.hparams.configured import HERE, Points


def test_every_public_class_has_a_short_name() -> None:
    for package in (algorithms, callbacks, loggers, optim):
        assert set(package.__all__) <= set(short_names())
        for name in package.__all__:
            if short_names()[name].startswith(f"{package.__name__}."):
                assert find(full_path(name)) is getattr(package, name)


def test_import_paths() -> None:
    assert find(full_path("DataLoader")) is torch.utils.data.DataLoader
    assert find(f"{HERE}.Points") is Points
    assert find("torch.nn.Module.half") is torch.nn.Module.half


def test_what_the_script_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    script = types.ModuleType("__main__")
    script.Own = script.EMA = Points
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert full_path("Own") == "Own"
    assert find("Own") is Points
    assert find(full_path("EMA")) is Points  # the script is nearer


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nosuch.Thing", "no module named 'nosuch'"),
        (f"{HERE}.Pointts", "does not exist. Did you mean 'Points'"),
        ("torch.nosuch.Thing", "'torch.nosuch.Thing' does not exist"),
        (f"{HERE}.HERE", "is neither a class nor a function"),
    ],
)
def test_paths_that_lead_nowhere(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(path)


def test_a_module_that_lacks_another_tells_so(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking_one.py").write_text("import nosuch_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nosuch_module"):
        find("lacking_one.Thing")
