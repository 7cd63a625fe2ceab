"""Runs of a program: the trajectory, where it stops, and exact continuation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.exploration.training_clock import CLOCKS
from composer.exploration.training_probe import CHECKPOINT_FILE, CLOCK_FILE, TrainingProbe
from composer.trainer.overrides import TrainerOverrides, override_trainers
from tests.exploration.programs import PROGRAM


class _Probed(TrainerOverrides):
    """What the worker of a trial does, in this process."""

    def __init__(self, probe: TrainingProbe) -> None:
        self._probe = probe

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        init(**self._probe.init({**arguments}, arguments))

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        self._probe.fit(trainer, fit, arguments)


def train(folder: Path, name: str, program: str = "make().fit()", **arguments: Any) -> dict[str, Any]:
    """Train a program with the probe in this process, and return its result."""
    (folder / name).mkdir()
    probe = TrainingProbe(folder / name, **{"seed": 0, "metric": "MulticlassAccuracy", **arguments})
    with override_trainers(_Probed(probe)):
        exec(f"{PROGRAM}\n{program}", {})
    return dict(probe.result())


_TICK = """
from composer import Callback
class Tick(Callback):
    def batch_start(self, state, logger):
        TIME[0] += 0.01
"""


def values(result: dict[str, Any]) -> dict[int, float]:
    """The metric by batch."""
    return {batch: value for _, batch, _, value in result["evaluations"]}


def test_two_runs_with_a_seed_are_equal_in_values_and_another_seed_is_another_run(tmp_path: Path) -> None:
    one, two = train(tmp_path, "one"), train(tmp_path, "two")
    assert values(one) == values(two)
    assert list(values(one)) == [8, 16, 24, 32, 40, 48]
    assert one["is_complete"]
    assert (one["steps"], one["metric"]) == (48, "eval/MulticlassAccuracy")
    seconds = [each[0] for each in one["evaluations"]]
    assert seconds == sorted(seconds)
    assert 0 < seconds[-1] <= one["seconds"]
    assert not (tmp_path / "one" / CHECKPOINT_FILE).exists()
    other = train(tmp_path, "other", seed=1)
    assert (other["weights"], other["first_batch"]) != (one["weights"], one["first_batch"])
    assert values(other) != values(one)


def test_a_run_that_stops_anywhere_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """The clock is slowed down in steps, so that runs stop after 3, 16 (an epoch) and 21 steps."""
    whole = train(tmp_path, "whole")
    for stop, end in ((0.025, 3), (0.155, 16), (0.205, 21)):
        result = _with_ticks(tmp_path, f"part{end}", seconds=stop)
        assert (result["steps"], result["is_complete"], result["can_go_on"]) == (end, False, True)
        assert end in values(result)  # evaluated where it stops
        assert json.loads((tmp_path / f"part{end}" / CLOCK_FILE).read_text())["steps"] == end
        rest = train(tmp_path, f"rest{end}", previous=f"part{end}")
        assert rest["is_complete"]
        assert values(rest) == values(whole)
        assert {batch: value for batch, value in values(result).items() if batch in values(whole)}.items() <= values(
            whole
        ).items()


def _with_ticks(folder: Path, name: str, **arguments: Any) -> dict[str, Any]:
    """Train with a clock that the program advances by 0.01 s a step."""
    time = [0.0]
    (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CLOCKS, "wall", lambda: time[0])
        probe = TrainingProbe(folder / name, **{"seed": 0, "metric": "MulticlassAccuracy", **arguments})
        with override_trainers(_Probed(probe)):
            exec(f"{PROGRAM}\n{_TICK}\nmake(callbacks=[Tick()]).fit()", {"TIME": time})
    return dict(probe.result())


def test_a_run_stops_where_it_reaches_the_target(tmp_path: Path) -> None:
    whole = values(train(tmp_path, "whole"))
    target = sorted(whole.values())[-2]
    first = next(batch for batch, value in whole.items() if value >= target)
    found = train(tmp_path, "found", target=target)
    assert list(values(found))[-1] == first == found["steps"]
    rest = train(tmp_path, "rest", previous="found")
    assert values(rest) == whole


def test_weights_of_a_continued_run_are_those_of_an_uninterrupted_one(tmp_path: Path) -> None:
    text = "t = make()\nt.fit()\nOUT.append(t.state.model.state_dict())"
    kept: list[list[dict[str, torch.Tensor]]] = []
    for arguments in ({}, {"previous": "part"}):
        if arguments:
            _with_ticks(tmp_path, "part", seconds=0.11)
        name = f"run{len(kept)}"
        (tmp_path / name).mkdir()
        probe = TrainingProbe(tmp_path / name, 0, "MulticlassAccuracy", **arguments)
        out: list[dict[str, torch.Tensor]] = []
        with override_trainers(_Probed(probe)):
            exec(f"{PROGRAM}\n{text}", {"OUT": out})
        kept.append(out)
    assert all(torch.equal(kept[0][0][name], kept[1][0][name]) for name in kept[0][0])


@pytest.mark.parametrize("name", ["MulticlassAccuracy", "eval/MulticlassAccuracy", "metrics/eval/MulticlassAccuracy"])
def test_metrics_have_three_names(tmp_path: Path, name: str) -> None:
    assert train(tmp_path, "one", metric=name)["metric"] == "eval/MulticlassAccuracy"


def test_the_loss_is_the_metric_that_is_one(tmp_path: Path) -> None:
    assert train(tmp_path, "one", metric="loss", maximize=False)["metric"] == "eval/CrossEntropy"


def test_an_unknown_metric_is_an_error_with_what_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metric='MulticlassAcuracy' .* Did you mean 'eval/MulticlassAccuracy'\?"):
        train(tmp_path, "one", metric="MulticlassAcuracy")


def test_without_evaluation_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metric='loss'.*Pass eval_dataloader.*does not compare"):
        train(tmp_path, "one", "make(eval_dataloader=None).fit()", metric="loss")


@pytest.mark.parametrize("interval", ["0ba", "'1ep'"])
def test_a_run_with_few_evaluations_is_evaluated_more_often_and_this_is_said(tmp_path: Path, interval: str) -> None:
    interval = "0" if interval == "0ba" else interval
    found = train(tmp_path, "one", f"make(eval_interval={interval}).fit()")
    assert len(values(found)) == 16  # 48 steps by 3
    assert any("evaluated 20 times instead" in note for note in found["notes"])


def test_data_that_are_passed_to_fit_are_split_too(tmp_path: Path) -> None:
    text = "t = make(eval_dataloader=None)\nt.fit(eval_dataloader=DataLoader(rows(64, 2), 16), eval_interval='8ba')"
    assert values(train(tmp_path, "fit", text)) == values(train(tmp_path, "init"))
    held_out = train(tmp_path, "held", split="confirmation")
    assert values(held_out) != values(train(tmp_path, "selection"))


def test_data_that_several_trainers_share_are_split_once(tmp_path: Path) -> None:
    text = "e = Evaluator(label='eval', dataloader=DataLoader(rows(64, 2), 16))\nmake(eval_dataloader=e)\n"
    assert values(train(tmp_path, "shared", f"{text}make(eval_dataloader=e).fit()")) == values(train(tmp_path, "one"))


def test_a_run_that_is_late_in_its_last_step_is_complete(tmp_path: Path) -> None:
    assert _with_ticks(tmp_path, "one", seconds=0.475)["is_complete"]


def test_data_of_one_batch_cannot_be_split_and_this_is_said(tmp_path: Path) -> None:
    found = train(tmp_path, "one", "make(eval_dataloader=[next(iter(DataLoader(rows(32, 2), 32)))]).fit()")
    assert any("one batch, which cannot be split" in note for note in found["notes"])
