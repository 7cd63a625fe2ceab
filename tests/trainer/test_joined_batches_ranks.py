"""Several batches of the loader in a step on multiple ranks: all grow at the same step, and resume on other numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, dist
from composer.algorithms import BatchSizeWarmup
from composer.callbacks import GradientNoiseScale
from composer.warnings import ComposerWarning
from tests.common import At
from tests.ranks import Ranks
from tests.trainer.multi_rank import Stream, flat, numbered, run_of, weights

N = 53
GROWTH = {"1ba": 2, "3ba": 3}


def trained(
    size: int, load: str | None = None, save: str | None = None, steps: int | None = None, **arguments: Any
) -> Any:
    """Train on a shard; the results are those of any number of ranks with the same number of samples in a step."""
    algorithms = arguments.pop("algorithms", None) or BatchSizeWarmup(GROWTH)
    loader = arguments.pop("loader") if "loader" in arguments else numbered(N, size, shuffle=True)
    multiples = At("batch_start", lambda state: state.train_phase.batches_per_step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)  # random states of other ranks
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
        trainer, watch = run_of(
            "regression", loader, algorithms=algorithms, load_path=load, callbacks=[multiples], **arguments
        )
        trainer.fit(duration=None if steps is None else f"{steps}ba")
    if save is not None:
        trainer.save_checkpoint(save)
    trainer.close()
    return {
        "weights": weights(trainer),
        "losses": watch.losses,
        "samples": watch.samples,
        "numbers": watch.numbers,
        "multiples": multiples.found,
    }


def on_ranks(size: int, load: str | None, save: str | None, steps: int | None, arguments: dict[str, Any]) -> Any:
    return trained(size, load, save, steps, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"device_train_microbatch_size": 2},
        {"device_train_microbatch_size": "auto"},
        {"device_train_microbatch_size": 3, "ddp_sync_strategy": "multi_auto_sync"},
        {"parallelism_config": {"fsdp": {}}},
    ],
    ids=["full", "microbatches", "auto", "multi_auto_sync", "FSDP"],
)
def test_two_ranks_train_as_one(arguments, two_ranks: Ranks) -> None:
    alone = trained(4, max_duration="2ep")
    found = two_ranks.run(on_ranks, 2, None, None, None, {"max_duration": "2ep", **arguments})
    for rank in found:
        torch.testing.assert_close(rank["weights"], alone["weights"], rtol=0, atol=1e-9)
        assert rank["losses"] == pytest.approx(alone["losses"], abs=1e-6)
        assert rank["samples"] == alone["samples"]
        assert rank["multiples"] == alone["multiples"]
    assert alone["samples"][:4] == [4, 12, 20, 32]


@pytest.mark.parametrize("plan", [[(2, 4), (1, 8)], [(1, 8), (2, 4)], [(4, 2), (2, 4)], [(2, 4), (4, 2)]])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_resumes_on_another_number_of_ranks(plan, steps, tmp_path: Path, two_ranks: Ranks, four_ranks: Ranks) -> None:
    """At the growth steps, after 1 and 3, and between them."""
    straight = trained(8)
    path = str(tmp_path / "middle.pt")
    for number, (size, batch_size) in enumerate(plan):
        given = (batch_size, path if number else None, None if number else path, None if number else steps, {})
        ranks = {2: two_ranks, 4: four_ranks}.get(size)
        found = [on_ranks(*given)] if ranks is None else ranks.run(on_ranks, *given)
        for rank in found:
            part = slice(0, steps) if number == 0 else slice(steps, None)
            assert rank["samples"] == straight["samples"][part]
            assert rank["losses"] == pytest.approx(straight["losses"][part], abs=1e-6)
    for rank in found:
        torch.testing.assert_close(rank["weights"], straight["weights"], rtol=0, atol=1e-9)


def streamed(counts: list[int], milestones: dict[str, int]) -> Any:
    return trained(
        2, loader=DataLoader(Stream(counts), batch_size=2), algorithms=BatchSizeWarmup(milestones), max_duration="2ep"
    )


@pytest.mark.parametrize(
    ("counts", "milestones", "samples"),
    [
        # Three batches a step: ranks have 5 and 3 batches, then one and none.
        ([9, 6], {"0ba": 3}, [12, 15, 27, 30]),
        ([9, 1], {"0ba": 2}, [5, 9, 10, 15, 19, 20]),
        ([2, 12], {"1ba": 4}, [4, 12, 14, 24, 28]),
    ],
)
def test_ranks_whose_data_ends_early_do_not_hang(counts, milestones, samples, two_ranks: Ranks) -> None:
    found = two_ranks.run(streamed, counts, milestones)
    for rank in found:
        assert rank["samples"] == samples
        assert torch.equal(rank["weights"], found[0]["weights"])
    mine = [sorted(set(flat(rank["numbers"]))) for rank in found]
    assert set(range(sum(counts))) <= set(mine[0]) | set(mine[1])


class Disagreeing(Callback):
    """Has a noise scale above the batch on rank 0 only, until some step."""

    def __init__(self, agrees_after: int) -> None:
        self.agrees_after, self.noise_scale = agrees_after, None

    def batch_end(self, state, logger):
        is_large = dist.get_global_rank() == 0 or state.timestamp.batch >= self.agrees_after
        self.noise_scale = torch.tensor(1e6 if is_large else 0.0)


def disagreeing() -> list[int]:
    multiples = At("batch_start", lambda state: state.train_phase.batches_per_step)
    trainer, _ = run_of(
        "regression",
        numbered(200, 2),
        algorithms=BatchSizeWarmup(noise_factor=1.0, end=4, interval="2ba"),
        callbacks=[Disagreeing(5), multiples],
        max_duration="10ba",
    )
    trainer.fit()
    trainer.close()
    return multiples.found


def test_ranks_grow_together_where_all_see_a_large_noise_scale(two_ranks: Ranks) -> None:
    assert two_ranks.run(disagreeing) == [[1] * 6 + [2] * 2 + [4] * 2] * 2


def by_noise() -> list[int]:
    trainer, _ = run_of(
        "regression",
        numbered(400, 2, shuffle=True),
        algorithms=BatchSizeWarmup(noise_factor=0.01, end=4, interval="5ba"),
        callbacks=[GradientNoiseScale("1ba", decay=0.5)],
        max_duration="20ba",
    )
    found = At("batch_start", lambda state: state.train_phase.batches_per_step)
    trainer.state.callbacks.append(found)
    trainer.fit()
    trainer.close()
    return found.found


def test_grows_by_the_noise_scale_of_two_ranks(two_ranks: Ranks) -> None:
    one, other = two_ranks.run(by_noise)
    assert one == other
    assert one[-1] > 1
