"""Checkpoint entries have the expected types."""

from __future__ import annotations

import pytest
import torch

from composer import State
from composer.checkpoint import save_checkpoint
from composer.checkpoint.entry_types import check_entry_types
from composer.checkpoint.file_format import read
from composer.core.microbatch_sizes import MicrobatchSizes


def test_saved_entries_are_accepted(tmp_path) -> None:
    model = torch.nn.Linear(1, 1)
    path = save_checkpoint(State(model=model, optimizers=torch.optim.Adam(model.parameters())), str(tmp_path / "a.pt"))
    check_entry_types(read(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"state": 1}, "'state' is int"),
        ({"state": {"model": [1]}}, "'state/model' is list"),
        ({"state": {"optimizers": 3}}, "'state/optimizers' is int, but must be pairs"),
        ({"state": {"algorithms": [("EMA", 1)]}}, "'state/algorithms' is list, but must be pairs"),
        ({"state": {"algorithms": {"EMA": {}}, "callbacks": [("A",)]}}, "'state/callbacks'"),
        ({"state": {1: 2}}, "'state' is dict, but must be a dict with string keys"),
        ({"state": {}, "rng": {}}, "'rng' is dict, but must be a list of random states"),
        ({"state": {"run_name": 3}}, "'state/run_name' is int, but must be a string"),
        ({"state": {"evaluators_done": ["eval", 1]}}, "'state/evaluators_done' is list, but must be a list of strings"),
        ({"state": {"metrics_logged_at": "1"}}, "'state/metrics_logged_at' is str, but must be an integer"),
        ({"state": {"in_step": 1}}, "'state/in_step' is int, but must be a boolean"),
    ],
)
def test_invalid_entries_are_rejected(content, said) -> None:
    with pytest.raises(ValueError, match=said):
        check_entry_types(content)


@pytest.mark.parametrize("seed", ["1", None, [1], {}, -1, 1.5, float("nan"), True])
def test_invalid_seeds(seed) -> None:
    with pytest.raises(ValueError, match=r"'state/rank_zero_seed' is .* a nonnegative integer below"):
        check_entry_types({"state": {"rank_zero_seed": seed}})


@pytest.mark.parametrize("names", [[], {1: True}, {"loss/train/total": 1}])
def test_invalid_names_of_losses(names) -> None:
    check_entry_types({"state": {"loss_names": {"loss/train/total": True}}})
    with pytest.raises(ValueError, match=r"'state/loss_names' is .*, but must be a dict of names and booleans"):
        check_entry_types({"state": {"loss_names": names}})


@pytest.mark.parametrize(
    "losses", [[], {"dtype": "float32"}, {"dtype": "save", "ranks": []}, {"dtype": "float32", "ranks": [{"a": 1}]}]
)
def test_invalid_new_losses(losses) -> None:
    check_entry_types({"state": {"new_losses": {"dtype": "float32", "ranks": [{}, {"loss/train/aux": "float64"}]}}})
    with pytest.raises(ValueError, match=r"'state/new_losses' is .*, but must be a dict with the name 'dtype'"):
        check_entry_types({"state": {"new_losses": losses}})


def test_invalid_microbatch_sizes() -> None:
    sizes = MicrobatchSizes(start=4)
    sizes.fail(((3, 8), ()), 8)
    sound = sizes.state_dict()
    check_entry_types({"state": {"microbatch_sizes": [{}, {"train": sound, "eval/test": {**sound, "start": None}}]}})
    wrong = [{"start": "4"}, {"clean": 1.5}, {"room_left": 1}, {"limits": [4]}, {"limits": [[[3], 4]]}]
    for sizes in [3, [3], [{"train": 3}], [{"train": {}}], *([{"train": {**sound, **part}}] for part in wrong)]:
        with pytest.raises(ValueError, match=r"'state/microbatch_sizes' is .*, but must be a list of the microbatch"):
            check_entry_types({"state": {"microbatch_sizes": sizes}})


@pytest.mark.parametrize("part", ["ending", "metric_values"])
def test_invalid_dicts(part) -> None:
    with pytest.raises(ValueError, match=f"'state/{part}' is list, but must be a dict"):
        check_entry_types({"state": {part: []}})


def test_fingerprints() -> None:
    sound = {"weights": {"batch": 0, "digests": "1f"}, "data": {"batch": 0, "parts": {"n": ["a", "1"]}}, "sources": {}}
    check_entry_types({"state": {"fingerprint": sound}})
    check_entry_types({"state": {"fingerprint": {}}})
    wrong = [{"weights": {}}, {"weights": {"batch": 0, "digests": 1}}, {"data": {"batch": 0, "parts": {"n": "a"}}}]
    for part in [*wrong, {"data": 1}, {"sources": {"a": ["b"]}}, {"sources": {"a": [1, 2]}}]:
        with pytest.raises(ValueError, match="'state/fingerprint' is dict, but must be a dict with the entries"):
            check_entry_types({"state": {"fingerprint": {**sound, **part}}})


def test_origin_of_a_fork() -> None:
    origin = {"run_name": "night", "step": 3, "path": "runs/night", "changes": ["optimizers.lr=0.1"]}
    check_entry_types({"state": {"forked_from": {**origin, "by_command": True}}})
    for wrong in ({"step": "3"}, {"changes": [1]}, {"changes": "lr"}, {"path": None}):
        with pytest.raises(ValueError, match="'state/forked_from' is dict, but must be a dict with the strings"):
            check_entry_types({"state": {"forked_from": {**origin, **wrong}}})
    with pytest.raises(ValueError, match="'state/forked_from' is list"):
        check_entry_types({"state": {"forked_from": []}})
