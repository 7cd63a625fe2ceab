"""The parts of a checkpoint have the types that any writer gives them."""

from __future__ import annotations

import pytest
import torch

from composer import State
from composer.checkpoint import save_checkpoint
from composer.checkpoint.entry_types import check_form
from composer.checkpoint.file_format import read


def test_what_is_saved_passes(tmp_path) -> None:
    model = torch.nn.Linear(1, 1)
    path = save_checkpoint(State(model=model, optimizers=torch.optim.Adam(model.parameters())), str(tmp_path / "a.pt"))
    check_form(read(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"state": 1}, "'state' is int"),
        ({"state": {"model": [1]}}, "'state/model' is list"),
        ({"state": {"optimizers": 3}}, "'state/optimizers' is int, where pairs"),
        ({"state": {"algorithms": [("EMA", 1)]}}, "'state/algorithms' is list, where pairs"),
        ({"state": {"algorithms": {"EMA": {}}, "callbacks": [("A",)]}}, "'state/callbacks'"),
        ({"state": {1: 2}}, "'state' is dict, where a dict with names"),
        ({"state": {}, "rng": {}}, "'rng' is dict, where a list of states"),
        ({"state": {"run_name": 3}}, "'state/run_name' is int, where text"),
    ],
)
def test_what_does_not(content, said) -> None:
    with pytest.raises(ValueError, match=said):
        check_form(content)


@pytest.mark.parametrize("seed", ["1", None, [1], {}, -1, 1.5, float("nan"), True])
def test_seeds_that_are_none(seed) -> None:
    with pytest.raises(ValueError, match=r"'state/rank_zero_seed' is .* a whole number that can be a seed is due"):
        check_form({"state": {"rank_zero_seed": seed}})


@pytest.mark.parametrize("part", ["ending", "metric_values"])
def test_dicts_that_are_none(part) -> None:
    with pytest.raises(ValueError, match=f"'state/{part}' is list, where a dict is due"):
        check_form({"state": {part: []}})
