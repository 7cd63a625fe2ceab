"""A run that is killed while it saves leaves a partial file; differences of checkpoints are named by path."""

from __future__ import annotations

import pytest
import torch

from composer import Trainer
from composer.checkpoint.name_templates import partial_files
from composer.verification import _checkpoints
from composer.verification._checkpoints import differences, interrupted_save
from tests.verification.parts import build


class Killed(BaseException):
    """Ends the process of a test, as far as it can be ended."""


def trained(tmp_path, steps: int) -> Trainer:
    trainer = build(**_checkpoints.arguments(tmp_path, 0, 2))
    trainer.fit(duration=f"{steps}ba")
    return trainer


def test_a_killed_run_leaves_half_of_the_next_checkpoint(tmp_path, monkeypatch) -> None:
    trainer = trained(tmp_path, 3)
    folder = tmp_path / "checkpoints" / "0"
    before = {path.name for path in folder.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", lambda *args, **kwargs: None)  # a killed process cleans nothing up
        with pytest.raises(Killed), interrupted_save(trainer.state):
            raise Killed
    (partial,) = partial_files(folder, "ep{epoch}-ba{batch}-rank{rank}.pt")
    assert {path.name for path in folder.iterdir()} - before == {partial.name}
    whole = (folder / "ep0-ba2-rank0.pt").stat().st_size
    assert partial.stat().st_size == whole // 2
    trainer.close()

    resumed = build(**_checkpoints.arguments(tmp_path, 0, 2))
    assert resumed.state.timestamp.batch == 2
    resumed.fit(duration="3ba")
    assert not partial.exists()
    resumed.close()


def test_a_save_that_is_not_interrupted_leaves_nothing(tmp_path) -> None:
    trainer = trained(tmp_path, 3)
    folder = tmp_path / "checkpoints" / "0"
    before = {path.name for path in folder.iterdir()}
    with interrupted_save(trainer.state):
        pass
    assert {path.name for path in folder.iterdir()} == before
    trainer.close()


def test_differences_are_paths_in_order() -> None:
    one = {"rng": 1, "state": {"model": {"w": torch.ones(2)}, "algorithms": [("EMA", {"n": 1})], "program": {"a": 1}}}
    other = {"rng": 2, "state": {"model": {"w": torch.ones(2)}, "algorithms": [("EMA", {"n": 1})], "program": {"a": 2}}}
    assert differences(one, other) == []
    other["state"]["model"]["w"] = torch.ones(2).double()
    other["state"]["algorithms"] = [("EMA", {"n": True, "m": 0})]
    assert differences(one, other) == ["model/w", "algorithms/EMA/n", "algorithms/EMA/m"]


def test_what_belongs_to_the_process_is_no_difference() -> None:
    one, other = (
        {
            "state": {
                "program": {"file": name},
                "ledger": {"segment": name},
                "fingerprint": {"weights": {"batch": 0}, "sources": {"__main__": [name, "0f"]}},
            }
        }
        for name in ("worker", "fork_server")
    )
    assert differences(one, other) == []
    other["state"]["fingerprint"]["weights"]["batch"] = 1
    assert differences(one, other) == ["fingerprint/weights/batch"]
