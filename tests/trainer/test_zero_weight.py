"""AccumEquality if parts of a batch have no valid target: they add nothing, whatever their loss is."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from composer import Algorithm, ComposerModel, DataSpec, dist
from composer.parallel import DDPSyncStrategy
from composer.trainer.zero_weight import weighted
from tests.common import At, Received, TwoLayers, regression_data, trainer_of
from tests.ranks import Ranks

DOUBLE = torch.float64

# What users write for "the mean over those that count"; each has a gradient that is not finite where none does.
LOSSES = {
    "mean": lambda error, mask: (error * mask).sum() / mask.sum(),
    "shares": lambda error, mask: (error * (mask / mask.sum())).sum(),
    "product": lambda error, mask: (error * mask).sum() * mask.sum().reciprocal(),
    "root": lambda error, mask: ((error * mask).sum() / mask.sum()).sqrt().square(),
    "infinite": lambda error, mask: (error * mask).sum() / mask.sum() + (0 if mask.any() else float("inf")),
    "log": lambda error, mask: (error * mask).sum().log().exp() / mask.sum(),
}


class Masked(ComposerModel):
    """Averages over what a mask says, with a parameter of the loss's own; ``inside`` does so in the forward pass."""

    def __init__(self, form: str = "mean", inside: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5, dtype=DOUBLE), nn.Linear(5, 1, dtype=DOUBLE)
        self.scale = nn.Parameter(torch.ones((1,), dtype=DOUBLE))
        self.form, self.inside = form, inside
        self.second._fsdp_wrap = True  # which is resharded after the forward pass

    def forward(self, batch):
        outputs = self.second(torch.tanh(self.first(batch["x"])))
        return {"loss": self.loss_of(outputs, batch), "logits": outputs} if self.inside else outputs

    def loss(self, outputs, batch):
        return outputs["loss"] if self.inside else self.loss_of(outputs, batch)

    def loss_of(self, outputs, batch):
        return LOSSES[self.form](self.scale * (outputs - batch["y"]).square(), batch["mask"])


class Several(Masked):
    def loss_of(self, outputs, batch):
        loss = super().loss_of(outputs, batch)
        return {"one": loss, "two": 2 * loss}


def masked_data(masks: list[list[int]], on_device: bool) -> DataSpec:
    """Batches of samples that count or do not."""

    def count(batch):
        counted = batch["mask"].sum()
        return {"total": len(batch["x"]), "loss_generating": counted.long() if on_device else int(counted)}

    batches = [
        {"x": x, "y": y, "mask": torch.tensor(mask, dtype=DOUBLE)[:, None]}
        for mask in masks
        for x, y in regression_data(1, len(mask), seed=len(mask), dtype=DOUBLE)
    ]
    return DataSpec(batches, get_num_tokens_in_batch=count)


def gradients(
    model: ComposerModel, data: DataSpec, size: int | str | None, **arguments: Any
) -> tuple[list[Tensor], list[float]]:
    """The gradient of each step, without ever moving the weights, and the logged losses."""
    found = At("after_train_batch", lambda s: torch.cat([whole(p.grad).flatten() for p in s.model.parameters()]))
    log = Received()
    trainer = trainer_of(
        model,
        data,
        lr=0.0,
        device_train_microbatch_size=size,
        accumulate_train_batch_on_tokens=True,
        callbacks=found,
        loggers=log,
        **arguments,
    )
    with trainer:
        trainer.fit()
    return found.found, [float(value) for _, value in log.series("loss/train/total")]


def whole(gradient: Any) -> Tensor:
    gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach().clone()


def assert_equal(found: Any, expected: Any) -> None:
    assert len(found[0]) == len(expected[0])
    for one, other in zip(found[0], expected[0], strict=True):
        assert torch.isfinite(other).all()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)


@settings(max_examples=60)
@given(
    mask=st.lists(st.integers(0, 1), min_size=1, max_size=7).filter(any),
    size=st.integers(1, 4),
    form=st.sampled_from(sorted(LOSSES)),
    inside=st.booleans(),
    on_device=st.booleans(),
)
@example(mask=[0, 0, 1], size=1, form="mean", inside=True, on_device=True)
@example(mask=[1, 1, 0], size=2, form="infinite", inside=False, on_device=False)
def test_AccumEquality_of_masked_means(mask, size, form, inside, on_device) -> None:
    torch.manual_seed(0)
    model, data = Masked(form, inside), masked_data([mask], on_device)
    assert_equal(gradients(model, data, size), gradients(model, data, None))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", ["several", "scaled", "compiled", "graph"])
def test_AccumEquality_of_masked_means_in_other_ways(kind, on_device) -> None:
    class NeedsGraph(Algorithm):
        backwards_create_graph = kind == "graph"

        def after_backward(self, state, logger):
            assert state.model.scale.grad.requires_grad or not self.backwards_create_graph

    torch.manual_seed(0)
    model = Several() if kind == "several" else Masked()
    data = masked_data([[0, 1, 0, 0, 1]], on_device)
    arguments = {
        "compiled": {"compile_config": {"backend": "aot_eager"}},
        "graph": {"algorithms": NeedsGraph()},
    }.get(kind, {})
    expected = gradients(model, data, None)
    if kind == "scaled":
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        arguments = {"algorithms": Scales(scaler)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
        assert_equal(gradients(model, data, 2, **arguments), expected)
    if kind == "scaled":
        assert scaler.get_scale() == 8.0  # no overflow was seen


class Scales(Algorithm):
    """Scales gradients as amp_fp16 does on accelerators."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler

    def fit_start(self, state, logger):
        state.scaler = self.scaler


class Embedded(Masked):
    """Sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(3, 5, sparse=True, mode="sum", dtype=DOUBLE)

    def forward(self, batch):
        return self.second(torch.tanh(self.first((batch["x"] > 0).long())))


@pytest.mark.parametrize("on_device", [False, True])
def test_AccumEquality_of_sparse_gradients(on_device) -> None:
    torch.manual_seed(0)
    model, data = Embedded(), masked_data([[0, 1, 0, 1]], on_device)
    assert_equal(gradients(model, data, 1), gradients(model, data, None))


SIZES = [None, 4, 2, "auto"]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("form", sorted(LOSSES))
@pytest.mark.parametrize("size", SIZES)
def test_batch_of_weight_zero_adds_exactly_0(size, form, on_device) -> None:
    """Also for a batch that is not split, such as the second; the others are not touched."""
    data = masked_data([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]], on_device)
    torch.manual_seed(0)
    model = Masked(form)
    found, losses = gradients(model, data, size)
    assert not found[1].any()
    assert losses[1] == 0
    for step in (0, 2):
        batch = data.dataloader[step]
        chosen = batch["mask"].flatten().bool()
        model.zero_grad()
        error = model.scale * (model(batch) - batch["y"]).square()
        error[chosen].mean().backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        torch.testing.assert_close(found[step], expected, rtol=0, atol=1e-6)
        assert losses[step] == pytest.approx(error[chosen].mean().item(), rel=1e-6)


def test_samples_are_not_counted_if_the_batch_is_not_split() -> None:
    """Samples always count: nothing has to be masked, so the ordinary step has nothing to count."""
    model, (batch,) = TwoLayers(), regression_data(1, 4, seed=1)
    calls: list[int] = []
    spec = DataSpec([batch], get_num_tokens_in_batch=lambda batch: calls.append(1) or len(batch[0]))
    counted = []
    for by_tokens in (None, True):
        calls.clear()
        with trainer_of(model, spec, accumulate_train_batch_on_tokens=by_tokens) as trainer:
            trainer.fit()
        counted.append(len(calls))
    assert counted[1] == counted[0] + 1


@pytest.mark.parametrize("size", SIZES)
def test_uncountable_tokens_raise(size) -> None:
    """To take them as none would mean to train nothing."""
    with (
        trainer_of(
            TwoLayers(),
            regression_data(1, 4, seed=1),
            accumulate_train_batch_on_tokens=True,
            device_train_microbatch_size=size,
        ) as trainer,
        pytest.raises(ValueError, match=r"accumulate_train_batch_on_tokens=True.*get_num_tokens_in_batch"),
    ):
        trainer.fit()


@pytest.mark.parametrize("on_device", [False, True])
def test_nonzero_weight_nan_loss_stays_nan(on_device) -> None:
    """Of a batch in two parts, one of which has no target; an error of the user's is not hidden."""
    data = masked_data([[1, 0, 0, 0], [0, 0, 1, 1]], on_device)
    data.dataloader[1]["x"][2] = float("nan")
    torch.manual_seed(0)
    (first, second), losses = gradients(Masked(), data, 2)
    assert torch.isfinite(first).all()
    assert second.isnan().any()
    assert [math.isnan(loss) for loss in losses] == [False, True]


def test_masked_gradients_leave_nothing_behind() -> None:
    """A second backward pass of the user's own has its gradients."""
    model, data = Masked(), masked_data([[0, 1]], False)
    gradients(model, data, 1)
    model.zero_grad()
    model.loss(model(data.dataloader[0]), data.dataloader[0]).backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("weight", [0.0, torch.tensor(0.0)])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.0])
def test_a_loss_of_weight_zero_is_zero(weight, value) -> None:
    assert weighted(torch.tensor(value), weight) == 0
    counted = weighted(torch.tensor(value), weight + 1)
    torch.testing.assert_close(counted, torch.tensor(value), equal_nan=True)


# ------------------------------------------------------------------------------------------ with others

# Of each rank; the second one has no target in the first step, and no batch in the last.
MASKS = [[[0, 1, 0, 0, 1], [1, 0, 0, 1], [0, 0, 1]], [[0, 0, 0], [0, 0, 1, 1]]]
FSDP = {"parallelism_config": {"fsdp": {}}}


def run_on_rank(inside: bool, on_device: bool, form: str, ways: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    found = []
    for size, arguments in ways:
        torch.manual_seed(0)
        model = Masked(form, inside)
        found.append(gradients(model, masked_data(MASKS[dist.get_global_rank()], on_device), size, **arguments))
    return found


def joined(step: int) -> DataSpec:
    """The batches of both ranks as one."""
    data = masked_data([], False)
    parts = [masked_data(masks, False).dataloader[step] for masks in MASKS if step < len(masks)]
    data.dataloader = [{name: torch.cat([part[name] for part in parts]) for name in parts[0]}]
    return data


@pytest.mark.slow
@pytest.mark.parametrize(("inside", "on_device", "form"), [(False, True, "shares"), (True, False, "infinite")])
def test_AccumEquality_of_masked_means_on_two_ranks(two_ranks: Ranks, inside, on_device, form) -> None:
    expected: tuple[list[Tensor], list[float]] = [], []
    for step in range(3):
        torch.manual_seed(0)
        gradient, loss = gradients(Masked(form), joined(step), None)
        expected[0].extend(gradient)
        expected[1].extend(loss)
    ways = [(size, {"ddp_sync_strategy": sync}) for size in (None, 2) for sync in [None, *map(str, DDPSyncStrategy)]]
    ways += [(size, FSDP) for size in (None, 2)]
    ways.append((2, {**FSDP, "ddp_sync_strategy": "single_auto_sync"}))
    for found in two_ranks.run(run_on_rank, inside, on_device, form, ways, timeout=120):
        assert len(found) == len(ways)
        for one in found:
            assert_equal(one, expected)


def steps_on_rank(on_device: bool, ways: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    """Batches in which nothing counts on this rank, on the other one, and on both."""
    masks = [[[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]], [[1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]]
    found = []
    for size, arguments in ways:
        torch.manual_seed(0)
        data = masked_data(masks[dist.get_global_rank()], on_device)
        found.append(gradients(Masked(), data, size, **arguments))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("on_device", [False, True])
def test_batch_of_weight_zero_adds_exactly_0_on_two_ranks(two_ranks: Ranks, on_device) -> None:
    torch.manual_seed(0)
    expected, losses = gradients(Masked(), masked_data([[1, 0, 1, 1]], False), None)
    ways = [(size, arguments) for size in SIZES for arguments in ({}, FSDP)]
    for found in two_ranks.run(steps_on_rank, on_device, ways, timeout=120):
        assert len(found) == len(ways)
        for steps, logged in found:
            assert not steps[1].any()
            assert logged == pytest.approx([losses[0], 0, losses[0]], rel=1e-6)
            for step in (0, 2):
                torch.testing.assert_close(steps[step], expected[0], rtol=0, atol=1e-6)
