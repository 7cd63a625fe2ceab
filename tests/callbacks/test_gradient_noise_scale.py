"""GradientNoiseScale: its terms in closed form, from real gradients, and on data whose noise scale is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer import ComposerModel, dist
from composer.algorithms import GradientClipping
from composer.callbacks import GradientNoiseScale
from composer.callbacks.gradient_noise_scale import noise_scale_terms
from tests.callbacks.cases import Case, Run, run_with
from tests.common import Unsized, regression_data
from tests.simulated_oom import Limit, RunsOut
from tests.trainer.test_microbatch import LanguageModel, padded

SCALE, NORM, TRACE = (
    f"gradient_noise_scale/{name}" for name in ("noise_scale", "squared_gradient_norm", "gradient_variance")
)

CASE = Case(
    make=lambda folder: GradientNoiseScale("1ba"),
    logs=(SCALE, NORM, TRACE),
    arguments=lambda: {"device_train_microbatch_size": 1},
)


class Dot(ComposerModel):
    """The loss is the mean of w . x, so the gradient of a sample is x itself."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def forward(self, batch):
        return batch @ self.weight

    def loss(self, outputs, batch):
        return outputs.mean()


def measured(data: Any, size: Any, model: ComposerModel | None = None, decay: float = 0.0, **arguments: Any) -> Run:
    model = Dot(data[0].shape[1]) if model is None else model
    arguments.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.0))
    run = run_with(
        GradientNoiseScale("1ba", decay), model=model, data=data, device_train_microbatch_size=size, **arguments
    )
    run.trainer.fit()
    return run


@given(norm=st.floats(0.01, 100), trace=st.floats(0.01, 100), small=st.integers(1, 50), more=st.integers(1, 50))
def test_terms_invert_the_expected_squared_norms(norm, trace, small, more) -> None:
    large = small + more
    found = noise_scale_terms(norm + trace / small, norm + trace / large, small, large)
    assert found == pytest.approx((norm, trace), rel=1e-6)


@pytest.mark.parametrize("more", [{}, {"algorithms": GradientClipping("norm", 1e-3)}], ids=["plain", "clipped"])
def test_one_step_by_hand(more) -> None:
    torch.manual_seed(0)
    batch = torch.randn(6, 5) + 1.0
    small, large = batch[:2].mean(0).square().sum(), batch.mean(0).square().sum()
    norm, trace = noise_scale_terms(small, large, 2, 6)
    run = measured([batch], 2, **more)
    assert run.values(NORM) == [pytest.approx(norm.item(), rel=1e-4)]
    assert run.values(TRACE) == [pytest.approx(trace.item(), rel=1e-4)]
    assert run.values(SCALE) == [pytest.approx((trace / norm).item(), rel=1e-4)]


def test_uneven_microbatches_by_hand() -> None:
    torch.manual_seed(1)
    batch = torch.randn(7, 3) + 2.0
    small, large = batch[:3].mean(0).square().sum(), batch.mean(0).square().sum()
    norm, trace = noise_scale_terms(small, large, 3, 7)
    run = measured([batch], 3)
    assert run.values(NORM) == [pytest.approx(norm.item(), rel=1e-4)]
    assert run.values(TRACE) == [pytest.approx(trace.item(), rel=1e-4)]


def test_microbatches_weighted_by_tokens_by_hand() -> None:
    torch.manual_seed(0)
    model, batch = LanguageModel(), padded([5, 2, 6, 3], 6)

    def squared_norm(item: Any) -> float:
        gradients = torch.autograd.grad(model.loss(model(item), item), list(model.parameters()))
        return sum(gradient.square().sum().item() for gradient in gradients)

    first = {name: value[:2] for name, value in batch.items() if isinstance(value, torch.Tensor)}
    small, large = squared_norm(first), squared_norm(batch)
    fraction = 7 / 16  # of the tokens that count
    norm, trace = noise_scale_terms(small, large, fraction * 4, 4)
    run = measured([batch], 2, model)
    assert run.values(NORM) == [pytest.approx(norm, rel=1e-4)]
    assert run.values(TRACE) == [pytest.approx(trace, rel=1e-4)]


def test_finds_the_noise_scale_of_known_data() -> None:
    """Gradients of N(mean, s^2 I) in d dimensions: tr(Sigma) / |G|^2 = d s^2 / |mean|^2."""
    features, deviation = 20, 1.5
    torch.manual_seed(0)
    mean = torch.full((features,), 0.5)
    data = [mean + deviation * torch.randn(64, features) for _ in range(300)]
    run = measured(data, 8, decay=0.999)
    assert run.values(NORM)[-1] == pytest.approx(5.0, rel=0.05)
    assert run.values(TRACE)[-1] == pytest.approx(45.0, rel=0.1)
    assert run.values(SCALE)[-1] == pytest.approx(9.0, rel=0.1)


def test_averages_are_unbiased_from_the_first_step_and_weigh_the_past() -> None:
    data = [torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    single, averaged = measured(data, 1), measured(data, 1, decay=0.8)
    for name in (NORM, TRACE):
        values = single.values(name)
        weights = [0.2 * 0.8 ** (3 - i) for i in range(4)]
        expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        assert averaged.values(name)[-1] == pytest.approx(expected, rel=1e-3)
        assert averaged.values(name)[0] == pytest.approx(values[0], rel=1e-4)


def test_a_step_that_overflows_is_left_out() -> None:
    data = [torch.ones(4, 3) * (1 + torch.arange(4.0)[:, None]) for _ in range(3)]
    data[1] = data[1] * float("inf")
    values = measured(data, 1, decay=0.5).values(NORM)
    assert values[0] == pytest.approx(values[1]) == pytest.approx(values[2])


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_is_retried_after_OOM(where) -> None:
    """Gradients read before running out of memory are discarded."""

    def train(limit: Limit, size: Any) -> Run:
        torch.manual_seed(0)
        return measured(regression_data(3, 8), size, RunsOut(limit, norm=False))

    limit = Limit(where, 2)
    found, expected = train(limit, "auto"), train(Limit(), 2)
    assert limit.failures == [8, 4]
    for name in (NORM, TRACE):
        assert found.values(name) == expected.values(name)
        assert len(found.values(name)) == 3


def test_several_losses() -> None:
    class Two(Dot):
        def loss(self, outputs, batch):
            return {"total": outputs.mean(), "other": outputs.detach().sum()}

    class Parts(Dot):
        def loss(self, outputs, batch):
            return [0.25 * outputs, (0.75 * outputs).mean()]

    batch = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    expected = measured([batch], 2).values(NORM)
    for model in (Two(5), Parts(5)):
        assert measured([batch], 2, model).values(NORM) == pytest.approx(expected, rel=1e-4)


def test_a_short_last_batch_is_skipped_but_batches_without_microbatches_are_refused() -> None:
    batches = regression_data(3, 4)
    batches.append(tuple(item[:2] for item in batches[0]))
    run = run_with(GradientNoiseScale("1ba"), model=None, data=_inputs(batches), device_train_microbatch_size=2)
    run.trainer.fit()
    assert run.steps(SCALE) == [1, 2, 3]
    run = run_with(GradientNoiseScale("1ba"))
    with pytest.raises(RuntimeError, match="device_train_microbatch_size"):
        run.trainer.fit()


def _inputs(batches: list[Any]) -> list[Any]:
    return [(x, torch.zeros(len(x), dtype=torch.long)) for x, _ in batches]


def test_measures_at_its_interval() -> None:
    run = run_with(GradientNoiseScale("3ba"), device_train_microbatch_size=1, max_duration="2ep")
    run.trainer.fit()
    assert run.steps(SCALE) == [1, 4, 7]


def _of_several(batches: list[torch.Tensor], size: int | None, sync: str | None) -> list[list[float]]:
    """Train on this rank's shard of each batch."""
    shard = [batch[dist.get_global_rank() :: dist.get_world_size()] for batch in batches]
    model = Dot(batches[0].shape[1])
    run = run_with(
        GradientNoiseScale("1ba", 0.0),
        model=model,
        data=shard,
        device_train_microbatch_size=size,
        ddp_sync_strategy=sync,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
        algorithms=GradientClipping("norm", 1e-3),
    )
    run.trainer.fit()
    return [run.values(name) for name in (NORM, TRACE, SCALE)]


@pytest.mark.parametrize("sync", ["single_auto_sync", "multi_auto_sync"])
@pytest.mark.parametrize("size", [None, 2])
def test_several_ranks_by_hand(size, sync, two_ranks) -> None:
    """The first microbatch of each rank against the global batch; ranks have 4 and 3 samples of 7."""
    torch.manual_seed(2)
    batches = [torch.randn(7, 5) + 1.0, torch.randn(7, 5) + 1.0]
    expected = []
    for batch in batches:
        firsts = [batch[rank::2][:size] for rank in range(2)]
        small = sum(first.mean(0).square().sum() for first in firsts) / 2
        small_size = 2 / sum(1 / len(first) for first in firsts)
        norm, trace = noise_scale_terms(small, batch.mean(0).square().sum(), small_size, 7)
        expected.append([norm.item(), trace.item(), (trace / norm).item()])
    for found in two_ranks.run(_of_several, batches, size, sync):
        assert found == [pytest.approx(values, rel=1e-4) for values in zip(*expected, strict=True)]


def _with_too_few() -> list[float]:
    """Rank 1 has no sample of the second batch."""
    batches = [torch.eye(4), torch.ones(1, 4)]
    shard = batches[:1] if dist.get_global_rank() else batches
    run = run_with(GradientNoiseScale("1ba", 0.5), model=Dot(4), data=Unsized(shard), device_train_microbatch_size=1)
    run.trainer.fit()
    return run.values(NORM)


def test_an_uneven_batch_on_a_single_rank_is_skipped(two_ranks) -> None:
    for values in two_ranks.run(_with_too_few):
        assert len(values) == 2
        assert values[1] == pytest.approx(values[0])


def _refusals() -> list[str]:
    found = []
    for arguments in ({"parallelism_config": {"fsdp": {}}}, {"ddp_sync_strategy": "forced_sync"}):
        data = [torch.randn(4, 3, generator=torch.Generator().manual_seed(dist.get_global_rank()))]
        run = run_with(GradientNoiseScale("1ba"), model=Dot(3), data=data, **arguments)
        with pytest.raises((NotImplementedError, RuntimeError)) as error:
            run.trainer.fit()
        found.append(str(error.value))
    return found


def test_refusals_in_distributed_training(two_ranks) -> None:
    for sharded, late in two_ranks.run(_refusals):
        assert "no rank ever holds a full local gradient" in sharded
        assert "ddp_sync_strategy='forced_sync'" in late


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"decay": 1}, "decay must be below 1"), ({"decay": -0.1}, "decay"), ({"interval": "1tok"}, "batches or epochs")],
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        GradientNoiseScale(**arguments)
