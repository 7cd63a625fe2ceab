"""ShardMatrix: every method under every strategy trains as in a single process, or is refused by its name."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from composer import dist
from composer.algorithms import GhostBatchNorm, SelectiveBackprop
from composer.core.distributed_support import Sharding
from tests.algorithms.cases import Case, all_cases, make_batches, make_model
from tests.common import trainer_of
from tests.older_torch import HAS_UNUSED_PARAMETERS
from tests.parallel.matrix import STRATEGIES, Losses, Trained, trained, weights, without_batch_dependence
from tests.ranks import Ranks

CASES = all_cases()
PLACES = [pytest.param(place, id=f"{case.name}{place}") for place, case in enumerate(CASES)]

# These cases compare a copy of the model, and a sharded model cannot be copied.
AVERAGED: dict[str, Any] = {
    "EMA": lambda model, algorithm: algorithm.get_ema_model(model),
    "PostHocEMA": lambda model, algorithm: algorithm.get_ema_model(model, length=0.08),
}


def train(place: int, strategy: str | None) -> Trained:
    """Train with the method of a case; the function that ranks run."""
    case, arguments = CASES[place], dict(STRATEGIES[strategy]) if strategy else {}
    algorithm, model = case.make(), _model_of(case)
    return trained(
        model,
        case.batches(),
        lambda model: _outcome(case, model, algorithm),
        algorithms=algorithm,
        optimizers=case.optimizer(model),
        precision=case.precision,
        **arguments,
    )


def _outcome(case: Case, model: Any, algorithm: Any) -> dict[str, Any]:
    # Statistics of batches and masks are those of what a process has of a batch.
    buffers = dict(model.named_buffers())
    own = AVERAGED.get(case.name)
    found = case.outcome(model, algorithm) if own is None else weights(own(model, algorithm))
    return {name: value for name, value in found.items() if name not in buffers}


def _model_of(case: Case) -> Any:
    model: Any = case.model()
    return model if case.name == GhostBatchNorm.__name__ else without_batch_dependence(model)


@functools.cache
def alone(place: int) -> Trained:
    """The same in this process, with the full batches."""
    return train(place, None)


def check(place: int, ranks: list[Trained]) -> None:
    """Raise unless multiple ranks did what the algorithm declares."""
    for other in ranks[1:]:
        ranks[0].check_exactly(other)
    assert all(map(math.isfinite, ranks[0].losses))
    assert len(ranks[0].losses) == 4
    algorithm = CASES[place].make()
    # Replicas train apart, which a single process does not; tests/algorithms compare them with loops by hand.
    if algorithm.replica_size is None and algorithm.__traits__.sharding is not Sharding.PER_RANK:
        # Half of the digits that numbers have for which a sum in another order is another sum.
        alone(place).check(ranks[0], 1e-5 if CASES[place].precision == "fp32" else 1e-2)
    else:
        assert algorithm.__traits__.sharding_reason


def refusal(place: int, strategy: str, reason: str) -> str:
    """What is said of a method that does not train so."""
    with pytest.raises(ValueError, match=reason) as caught:
        train(place, strategy)
    return str(caught.value)


def run(place: int, strategy: str, ranks: Ranks) -> None:
    """Train with multiple ranks and compare, or check that the algorithm is rejected by name."""
    algorithm = CASES[place].make()
    if strategy != "ddp" and not algorithm.__traits__.sharding.supports_sharded_weights:
        for text in ranks.run(refusal, place, strategy, "requires unsharded parameters"):
            assert CASES[place].name in text
            assert algorithm.__traits__.sharding_reason in text
    elif strategy != "ddp" and algorithm.find_unused_parameters and not HAS_UNUSED_PARAMETERS:
        ranks.run(refusal, place, strategy, "a newer torch")
    else:
        check(place, ranks.run(train, place, strategy))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks(place: int, strategy: str, two_ranks: Ranks) -> None:
    run(place, strategy, two_ranks)


@pytest.mark.parametrize("place", PLACES)
def test_four_ranks(place: int, four_ranks: Ranks) -> None:
    run(place, "hsdp", four_ranks)


def choosing_from_uneven_batches() -> Trained:
    """Look for examples by microbatches of which the first process has more than the second; all need all weights."""
    kept = slice(5 - 3 * dist.get_global_rank())
    batches = [(x[kept], y[kept]) for x, y in make_batches()]
    model = without_batch_dependence(make_model())
    losses = Losses()
    with trainer_of(
        model,
        batches,
        algorithms=SelectiveBackprop(start=0.0, end=1.0, interrupt=0),
        callbacks=losses,
        device_train_microbatch_size=2,
        **STRATEGIES["fsdp"],
    ) as trainer:
        trainer.fit()
        return Trained(losses.values, weights(model))


def test_choosing_from_uneven_batches_does_not_hang(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(choosing_from_uneven_batches)
    first.check_exactly(second)
    assert len(first.losses) == 4
