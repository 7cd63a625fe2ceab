"""LoadCheckpoint: loading at an event."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer import Event
from composer.callbacks import LoadCheckpoint
from composer.warnings import ComposerWarning
from tests.callbacks.cases import Case
from tests.common import Regression, TwoLayers, classifier, trainer_of, weights, weights_of


def _same_weights(folder: Path) -> LoadCheckpoint:
    """Return a callback that loads the weights of the contract tests' model."""
    path = folder / "weights.pt"
    if folder.is_dir():
        with torch.random.fork_rng():
            torch.manual_seed(3)
            torch.save(classifier().state_dict(), path)
    return LoadCheckpoint(str(path), load_weights_only=True)


CASE = Case(make=_same_weights)


@pytest.fixture
def saved(tmp_path) -> Path:
    run = trainer_of(max_duration="3ba")
    run.fit()
    return Path(str(run.save_checkpoint(str(tmp_path / "a.pt"))))


@pytest.mark.parametrize("event", ["before_load", Event.AFTER_LOAD, "FIT_START"])
def test_the_event(event, saved) -> None:
    run = trainer_of(callbacks=LoadCheckpoint(str(saved), load_weights_only=True, event=event), max_duration="1ba")
    expected = torch.load(saved, weights_only=True)["state"]["model"]["linear.weight"]
    assert torch.equal(run.state.model.linear.weight, expected) is (event != "FIT_START")
    seen: list[torch.Tensor] = []
    run.state.model.register_forward_pre_hook(lambda module, _: seen.append(module.linear.weight.detach().clone()))
    run.fit()
    assert torch.equal(seen[0], expected)


def test_the_full_state(saved) -> None:
    run = trainer_of(callbacks=LoadCheckpoint(str(saved)))
    assert run.state.timestamp.batch == 3
    run.fit()
    assert run.state.timestamp.batch == 4


def test_initial_weights_before_resumption(saved, tmp_path) -> None:
    other = trainer_of(max_duration="2ba")
    path = other.save_checkpoint(str(tmp_path / "b.pt"))
    run = trainer_of(callbacks=LoadCheckpoint(str(saved), load_weights_only=True), load_path=path)
    assert torch.equal(weights(run), weights(other))


def test_loads_once_per_run(saved) -> None:
    callback = LoadCheckpoint(str(saved), load_weights_only=True, event="batch_start")
    expected = torch.load(saved, weights_only=True)["state"]["model"]["linear.weight"]
    for _ in range(2):
        run = trainer_of(callbacks=callback, max_duration="2ba")
        seen: list[torch.Tensor] = []
        run.state.model.register_forward_pre_hook(
            lambda module, _, seen=seen: seen.append(module.linear.weight.detach().clone())
        )
        run.fit()
        run.close()
        assert torch.equal(seen[0], expected)
        assert not torch.equal(seen[1], expected)


def test_ignored_and_missing_keys(saved) -> None:
    model = Regression()
    before = weights_of(model)
    for strict in (True, False):  # what is ignored is not missing
        callback = LoadCheckpoint(str(saved), strict_model_weights=strict, ignore_keys=["state/model/*"])
        trainer_of(model, callbacks=callback)
        assert torch.equal(weights_of(model), before)
    other = TwoLayers()
    with pytest.raises(RuntimeError, match=r"the model lacks linear.weight, linear.bias"):
        trainer_of(other, callbacks=LoadCheckpoint(str(saved), load_weights_only=True))
    with pytest.warns(ComposerWarning, match="Not all weights were loaded"):
        trainer_of(other, callbacks=LoadCheckpoint(str(saved), load_weights_only=True, strict_model_weights=False))


def test_unknown_event() -> None:
    with pytest.raises(ValueError, match="before_lod"):
        LoadCheckpoint("a.pt", event="before_lod")


def test_missing_file(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        trainer_of(callbacks=LoadCheckpoint(str(tmp_path / "none.pt")))
