"""Checkpoint validation by a user function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import State
from composer.checkpoint import read_checkpoint, save_checkpoint
from composer.checkpoint.load import safe_torch_load
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
from composer.checkpoint.user_validation import ensure_valid

VARIABLE = "CHECKPOINT_VALIDATION_FUNCTION"
seen: list[tuple[str, Any]] = []


def refuse(path: Any, specs: Any) -> bool:
    seen.append((Path(path).name, specs))
    return False


def accept(path: Any, specs: Any) -> bool:
    return not refuse(path, specs)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def test_without_a_function_everything_is_valid(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert ensure_valid(Path("nowhere")) == Path("nowhere")


@pytest.mark.parametrize(
    ("name", "error"),
    [("bad_module.function", ModuleNotFoundError), (f"{__name__}.nothing", AttributeError), ("plain", ValueError)],
)
def test_missing_function(name, error, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(error):
        ensure_valid("nowhere")


def test_the_function_decides(monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{__name__}.accept")
    assert ensure_valid("a.pt", [(0, 4)]) == "a.pt"
    assert seen == [("a.pt", [(0, 4)])]
    monkeypatch.setenv(VARIABLE, f"{__name__}.refuse")
    with pytest.raises(
        ValueError, match=r"The checkpoint 'a.pt' is invalid: .*test_user_validation.refuse returned False"
    ):
        ensure_valid("a.pt")


def test_every_reader_calls_the_function(tmp_path, monkeypatch) -> None:
    path = save_checkpoint(State(model=torch.nn.Linear(1, 1)), str(tmp_path / "a.pt"))
    write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), tmp_path / "ep1")
    monkeypatch.setenv(VARIABLE, f"{__name__}.refuse")
    for read, of in ((read_checkpoint, path), (safe_torch_load, path), (read_checkpoint, tmp_path / "ep1")):
        with pytest.raises(ValueError, match="is invalid"):
            read(of)
    monkeypatch.setenv(VARIABLE, f"{__name__}.accept")
    seen.clear()
    assert read_checkpoint(tmp_path / "ep1")["state"]["model"]["weight"].tolist() == [1, 1]
    assert [name for name, _ in seen] == [".metadata", "__0_0.distcp", "composer.pt"]
