from __future__ import annotations

from typing import Any

import torch

from composer import dist
from composer.algorithms import SAM, LocalSGD, average_weights
from tests.algorithms.cases import Case, make_model, weights
from tests.algorithms.low_communication import Seen, differing, fitted, trainer_with
from tests.common import TwoLayers, regression_data
from tests.ranks import Ranks


def _by_hand(batches: list[Any]) -> dict[str, torch.Tensor]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        average_weights(list(model.parameters()))
    return weights(model)


CASE = Case(
    make=lambda: LocalSGD(2),
    by_hand=_by_hand,
    neutral=None,
    why_not_neutral="the average of a single replica changes nothing, so it never does anything on one rank",
)


def test_a_single_process_trains_as_without_it() -> None:
    plain, own = (fitted(trainer_with(algorithm, max_duration="5ba")) for algorithm in (None, LocalSGD(2)))
    assert not list(differing(plain, own))


def averaged() -> list[torch.Tensor]:
    rank = dist.get_global_rank()
    values = [torch.full((3,), 1.0 + rank), torch.full((2, 2), float(rank), dtype=torch.float64)]
    average_weights(values)
    return values


def test_average_weights(four_ranks: Ranks) -> None:
    for first, second in four_ranks.run(averaged):
        assert torch.equal(first, torch.full((3,), 2.5))
        assert torch.equal(second, torch.full((2, 2), 1.5, dtype=torch.float64))


def on_ragged_data(sync_every: int | None) -> list[Any]:
    """Ranks with batches of different sizes, one of which ends early."""
    rank = dist.get_global_rank()
    batches = regression_data(3 + rank, 2 + 3 * rank, seed=rank, dtype=torch.float64)
    seen = Seen()
    trainer = trainer_with(
        None if sync_every is None else LocalSGD(sync_every),
        model=TwoLayers().double(),
        data=batches,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ep",
        callbacks=seen,
    )
    return [fitted(trainer), seen.losses]


def test_synchronized_in_each_step_it_is_data_parallelism(two_ranks: Ranks) -> None:
    """Also on ragged data, and on a rank whose data ends early: each sample has the same weight."""
    for (own, losses), (plain, plain_losses) in zip(
        two_ranks.run(on_ragged_data, 1), two_ranks.run(on_ragged_data, None), strict=True
    ):
        torch.testing.assert_close(losses, plain_losses)
        for name, value in plain.items():
            torch.testing.assert_close(own[name], value, rtol=1e-9, atol=1e-9)


def test_longer_rounds_are_not_data_parallelism(two_ranks: Ranks) -> None:
    (own, _), _ = two_ranks.run(on_ragged_data, 3)
    (plain, _), _ = two_ranks.run(on_ragged_data, None)
    assert not torch.allclose(own["first.weight"], plain["first.weight"])


def sharpness_aware() -> list[dict[str, torch.Tensor]]:
    """The weights of this rank by hand and as trained, each after rounds of two sharpness-aware steps."""
    batches = regression_data(4, 4, seed=dist.get_global_rank(), dtype=torch.float64)
    torch.manual_seed(20)
    model = TwoLayers().double()
    trained = TwoLayers().double()
    trained.load_state_dict(model.state_dict())
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step, batch in enumerate(batches):
        model.zero_grad()
        model.loss(model(batch), batch).backward()
        gradients = [one.grad.clone() for one in parameters if one.grad is not None]
        scale = 0.1 / (torch.nn.utils.get_total_norm(gradients) + 1e-12)
        with torch.no_grad():
            torch._foreach_add_(parameters, torch._foreach_mul(gradients, scale))
        model.zero_grad()
        model.loss(model(batch), batch).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, torch._foreach_mul(gradients, scale))
        optimizer.step()
        if step % 2 == 1:
            average_weights(parameters)
    seen = Seen()
    trainer = trainer_with(
        [LocalSGD(2), SAM(0.1)],
        model=trained,
        data=batches,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ep",
        callbacks=seen,
    )
    fitted(trainer)
    return [dict(model.named_parameters()), seen.after_batch[-1]]


def test_replicas_take_sharpness_aware_steps_of_their_own(two_ranks: Ranks) -> None:
    (by_hand, trained), (_, other) = two_ranks.run(sharpness_aware)
    for name, value in by_hand.items():
        torch.testing.assert_close(trained[name], value.detach(), rtol=1e-9, atol=1e-9)
        assert torch.equal(trained[name], other[name])
