"""Process group setup, broadcast of settings, and algorithms that do not support sharding."""

from __future__ import annotations

import pytest
import torch

from composer import Algorithm, State, dist
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.parallel import SingleProcess
from composer.trainer.distributed_setup import broadcast_from_rank_zero, check_algorithms
from tests.common import Regression, regression_data, trainer_of
from tests.ranks import Ranks


class NeedsAll(Algorithm):
    __traits__ = Traits(sharding=Sharding.FULL_WEIGHTS, sharding_reason="It sorts them.")


class Shards(SingleProcess):
    name = "divides"
    shards_weights = True


def test_algorithms_that_require_unsharded_parameters_raise() -> None:
    state = State(model=torch.nn.Linear(1, 1), algorithms=[NeedsAll()])
    check_algorithms(state, SingleProcess())
    with pytest.raises(ValueError, match=r"NeedsAll requires unsharded .* but divides shards them: It sorts them"):
        check_algorithms(state, Shards())


def run_identity() -> tuple[str, int, str]:
    torch.manual_seed(dist.get_global_rank())  # from which each would draw another seed
    trainer = trainer_of(Regression(), regression_data())
    trainer.close()
    return (
        trainer.state.run_name,
        trainer.state.rank_zero_seed,
        broadcast_from_rank_zero(f"rank {dist.get_global_rank()}"),
    )


def test_all_ranks_use_name_and_seed_of_rank_zero(two_ranks: Ranks) -> None:
    (name, seed, first), second = two_ranks.run(run_identity)
    assert (name, seed, "rank 0") == second == (name, seed, first)
