"""ShardMatrix: no callback changes training, under any strategy."""

from __future__ import annotations

import functools
import math
import tempfile
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import dist
from composer.loggers import InMemoryLogger
from composer.warnings import ComposerWarning
from tests.callbacks.cases import all_cases
from tests.parallel.matrix import STRATEGIES, Trained, repeat_batches, trained, without_batch_dependence
from tests.ranks import Ranks

CASES = all_cases()
PLACES = [pytest.param(place, id=f"{case.name}{place}") for place, case in enumerate(CASES)]
# GradientNoiseScale compares gradients of microbatches, which no rank has with sharded weights; what is
# exported are full weights.
REFUSED: dict[str, dict[str, type[Exception]]] = {
    "ddp": {},
    "fsdp": {"GradientNoiseScale": NotImplementedError, "ExportForInferenceCallback": ValueError},
}
REFUSED["hsdp"] = REFUSED["fsdp"]
# What is logged of the training itself, whoever trains.
SAME = ("loss/*", "l2_norm/*", "metrics/*", "lr-*", "time/batch*", "time/sample*", "time/token*", "time/epoch")


def train(place: int, strategy: str | None, folder: str) -> tuple[Trained, dict[str, list[Any]]]:
    """Train with a callback; only the first rank has a logger, and returns what it got."""
    case = CASES[place]
    log = InMemoryLogger()
    with warnings.catch_warnings():
        # torch hides it by its function that shows warnings, which is not called where warnings are errors.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
        if case.warns:
            warnings.simplefilter("ignore", ComposerWarning)
        torch.manual_seed(3)
        found = trained(
            without_batch_dependence(case.model()),
            repeat_batches(case.batches()),
            callbacks=[case.make(Path(folder))],
            loggers=log if dist.get_global_rank() == 0 else [],
            **case.arguments(),
            **(STRATEGIES[strategy] if strategy else {}),
        )
    return found, {name: [value for _, value in series] for name, series in log.data.items()}


def refusal(place: int, strategy: str, folder: str) -> str:
    """What a callback says that does not train with others."""
    with pytest.raises(REFUSED[strategy][CASES[place].name]) as caught:
        train(place, strategy, folder)
    return str(caught.value)


@functools.cache
def alone(place: int) -> tuple[Trained, dict[str, list[Any]]]:
    """The same in this process, with the full batches."""
    with tempfile.TemporaryDirectory() as folder:
        return train(place, None, folder)


def check(place: int, ranks: list[tuple[Trained, dict[str, list[Any]]]]) -> None:
    """Raise unless multiple ranks trained and logged as a single process does."""
    for other, nothing in ranks[1:]:
        ranks[0][0].check_exactly(other)
        assert not nothing
    found, log = ranks[0]
    expected, expected_log = alone(place)
    expected.check(found)
    assert expected_log.keys() <= log.keys()
    for name in expected_log:
        if any(fnmatchcase(name, pattern) for pattern in SAME):
            assert [*map(float, log[name])] == pytest.approx([*map(float, expected_log[name])], rel=1e-4, abs=1e-5), (
                name
            )
        assert len(log[name]) == len(expected_log[name]), name
    for name in (name for name in log if name.startswith("throughput/device/") and name != "throughput/device/mfu"):
        together = log[name.replace("/device", "")]
        assert together == pytest.approx([len(ranks) * value for value in log[name]]), name
    assert all(map(math.isfinite, found.losses))


def run(place: int, strategy: str, ranks: Ranks, folder: Path) -> None:
    """Train with multiple ranks and compare, or check that the callback is rejected by name."""
    if CASES[place].name not in REFUSED[strategy]:
        check(place, ranks.run(train, place, strategy, str(folder)))
        return
    assert all(CASES[place].name in text for text in ranks.run(refusal, place, strategy, str(folder)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks(place: int, strategy: str, two_ranks: Ranks, tmp_path: Path) -> None:
    run(place, strategy, two_ranks, tmp_path)


@pytest.mark.parametrize("place", PLACES)
def test_four_ranks(place: int, four_ranks: Ranks, tmp_path: Path) -> None:
    run(place, "hsdp", four_ranks, tmp_path)
