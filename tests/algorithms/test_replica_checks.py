"""Which averages may be combined with replicas that train apart, and that these start from equal weights."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

from composer import dist
from composer.algorithms import EMA, SWA, DiLoCo, LocalSGD, PostHocEMA, ScheduleFree
from composer.algorithms._replica_checks import check_averages
from composer.warnings import NotIntendedUseWarning
from tests.algorithms.low_communication import Seen, differing, fitted, trainer_with, weights_now
from tests.ranks import Ranks


class RenamedEMA(EMA):
    """Its class has another name."""


@pytest.mark.parametrize("rounds", [3, "2ep"])
@pytest.mark.parametrize(
    "average",
    [EMA("10ba"), EMA("3ep"), EMA(half_life=None, smoothing=0.9), RenamedEMA("10ba"), PostHocEMA(), SWA()],
    ids=lambda one: type(one).__name__,
)
def test_the_suggested_average_is_accepted(rounds: Any, average: Any) -> None:
    every = DiLoCo(rounds).sync_every
    with pytest.raises(ValueError, match=f"{every}") as caught:
        check_averages("DiLoCo", every, [average])
    suggested = re.search(r"(PostHoc)?EMA\(.*\)", str(caught.value))
    assert suggested is not None
    check_averages("DiLoCo", every, [eval(suggested[0])])


def test_schedule_free_is_not_accepted() -> None:
    with pytest.raises(ValueError, match=r"LocalSGD does not work with ScheduleFree.*Use AdamW"):
        check_averages("LocalSGD", LocalSGD(4).sync_every, [ScheduleFree()])


def rejected(*algorithms: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotIntendedUseWarning)
        try:
            trainer_with(list(algorithms))
        except ValueError as error:
            return str(error)
    raise AssertionError("not rejected")


def test_averages_of_single_replicas_are_rejected_on_several_ranks(two_ranks: Ranks) -> None:
    for algorithm, text in ((SWA(), "does not work with SWA"), (PostHocEMA(), "update_interval=1ba of PostHocEMA")):
        first, second = two_ranks.run(rejected, algorithm, DiLoCo(3))
        assert first == second
        assert text in first


def snapshots_of(overlap: int) -> list[Any]:
    averages = PostHocEMA(snapshot_interval="6ba", update_interval="3ba")
    trainer = trainer_with([averages, DiLoCo(3, overlap=overlap)], max_duration="13ba", callbacks=(seen := Seen()))
    end = fitted(trainer)
    return [seen.after_batch, end, [snapshot.weights for snapshot in averages.snapshots]]


@pytest.mark.parametrize("overlap", [0, 1])
def test_post_hoc_averages_of_whole_rounds_are_the_same_on_all_ranks(two_ranks: Ranks, overlap: int) -> None:
    (steps, end, snapshots), (others, other_end, other_snapshots) = two_ranks.run(snapshots_of, overlap)
    assert list(differing(steps[0], others[0]))
    assert not list(differing(end, other_end))
    assert len(snapshots) == len(other_snapshots) == 4
    for one, other in zip(snapshots, other_snapshots, strict=True):
        assert not list(differing(one, other))


def with_changed_weights(where: str) -> list[Any]:
    """Training after a rank has changed its own weights or statistics."""
    trainer = trainer_with(DiLoCo(3), max_duration="4ba", callbacks=(seen := Seen()))
    weights = trainer.state.model.state_dict()
    with torch.no_grad():
        weights[where].add_(dist.get_global_rank())
    expected = weights_now(trainer.state)
    try:
        trainer.fit()
    except ValueError as error:
        return [str(error)]
    finally:
        trainer.close()
    return [expected, seen.after_batch, weights_now(trainer.state)]


def test_a_round_does_not_start_from_different_weights(two_ranks: Ranks) -> None:
    (first,), (second,) = two_ranks.run(with_changed_weights, "first.weight")
    assert first == second
    assert re.search(r"differ between ranks in 'first\.weight'.*DiLoCo.*Load the same weights", first)


def test_statistics_that_differ_are_those_of_rank_0_as_in_data_parallelism(two_ranks: Ranks) -> None:
    (one, _, end), (other, _, other_end) = two_ranks.run(with_changed_weights, "norm.running_mean")
    assert list(differing(one, other)) == ["norm.running_mean"]
    assert not list(differing(end, other_end))


def positions(rounds: int) -> str:
    """Training after the ranks have loaded states of different points of a round."""
    method = DiLoCo(3)
    trainer = trainer_with(method, max_duration="4ba")
    values = {name: value.clone() for name, value in weights_now(trainer.state).items()}
    method.load_state_dict(
        {"synchronized": values, "momenta": {}, "trained": [], "local_steps": rounds - dist.get_global_rank()}
    )
    try:
        trainer.fit()
    except ValueError as error:
        return str(error)
    finally:
        trainer.close()
    return ""


def test_a_round_does_not_go_on_from_different_points(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(positions, 2)
    assert first == second
    assert "local_steps has rank 0: 2; rank 1: 1. Load the same checkpoint" in first
