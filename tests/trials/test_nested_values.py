"""Settings inside of arguments: entries by class, checks of types, and checks that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer.algorithms import EMA, LabelSmoothing, MixUp
from composer.trials.assignments import Assignment, apply, apply_to_fit
from tests.common import regression_data


def optimizers() -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([torch.ones(1)], lr=0.1), torch.optim.AdamW([torch.ones(1)], lr=0.2)]


def applied(text: str, arguments: dict[str, Any], *, dry: bool = False) -> Any:
    return apply([Assignment.parse(text)], arguments, dry=dry)


def test_entries_by_class() -> None:
    arguments: dict[str, Any] = {"algorithms": [MixUp(), LabelSmoothing(0.1)], "optimizers": optimizers()}
    applied("algorithms.MixUp.alpha=0.4", arguments)
    applied("algorithms.label_smoothing.smoothing=0.3", arguments)
    applied("optimizers.AdamW.lr=0.5", arguments)
    assert arguments["algorithms"][0].alpha == 0.4
    assert arguments["algorithms"][1].smoothing == 0.3
    assert [one.param_groups[0]["lr"] for one in arguments["optimizers"]] == [0.1, 0.5]
    one, short = MixUp(), applied("algorithms.MixUp.alpha=0.4", {"algorithms": "mixup"})["algorithms"]
    applied("algorithms.MixUp.alpha=0.4", {"algorithms": one})
    assert one.alpha == short[0].alpha == 0.4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithms.MixUp.alpah=1", r"algorithms.MixUp \(MixUp\) has no attribute 'alpah'. Did you mean 'alpha'"),
        ("algorithms.MixIp.alpha=1", "it has MixUp, EMA. Did you mean 'MixUp'. Write algorithms.MixUp.alpha"),
        ("algorithms.alpha=1", "which not all have it. Write the class, as in algorithms.MixUp.alpha"),
        ("algorithms.0=1", "is an entry of a list"),
        ("callbacks.LRMonitor.x=1", "callbacks is empty"),
        ("optimizers.AdamV.lr=1", "Did you mean 'AdamW'"),
        ("optimizers.lr=abc", "optimizers.lr is 0.1, so it must be a number; got 'abc'"),
        ("optimizers.AdamW.betas=0.9", r"is \(0.9, 0.999\), so it must be 2 numbers; got 0.9"),
        ("optimizers.SGD.nesterov=yes", "is False, so it must be True or False; got 'yes'"),
        ("algorithms.MixUp.alpha=high", "is 0.2, so it must be a number; got 'high'"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_mistakes(text: str, message: str, dry: bool) -> None:
    arguments = {"algorithms": [MixUp(), EMA()], "optimizers": optimizers(), "callbacks": []}
    with pytest.raises(ValueError, match=message):
        applied(text, arguments, dry=dry)


def test_a_check_changes_nothing() -> None:
    loader = DataLoader(regression_data(8), batch_size=2)
    arguments: dict[str, Any] = {"algorithms": [MixUp()], "optimizers": optimizers()[0], "train_dataloader": loader}
    for text in ("algorithms.MixUp.alpha=0.4", "optimizers.lr=0.5", "train_dataloader.batch_size=4"):
        applied(text, arguments, dry=True)
        apply_to_fit([Assignment.parse(text)], {"train_dataloader": loader}, dry=True)
    assert arguments["algorithms"][0].alpha == MixUp().alpha
    assert arguments["optimizers"].param_groups[0]["lr"] == arguments["optimizers"].defaults["lr"] == 0.1
    assert arguments["train_dataloader"] is loader and loader.batch_size == 2
