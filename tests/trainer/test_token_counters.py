"""The user's token counting functions measure training time; loss weights of microbatches follow the labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from composer import Algorithm, ComposerModel, DataSpec, Evaluator, Event, dist
from tests.common import At, Regression, regression_data, trainer_of
from tests.ranks import Ranks
from tests.trainer.test_batch_counts import Accelerator, on_host
from tests.trainer.test_microbatch import DOUBLE, LanguageModel, padded

COUNTERS: dict[str, Any] = {
    "none": None,
    "zero": lambda batch: 0,
    "constant": lambda batch: 7,
    "with padding": lambda batch: batch["input_ids"].numel(),
    "uneven": lambda batch: int(batch["input_ids"].sum()),
    "tensor": lambda batch: batch["input_ids"].sum(),
    "tensor of 0": lambda batch: torch.zeros((), dtype=torch.long),
    "targets": lambda batch: (batch["labels"] != -100).sum(),
    "mapping": lambda batch: {"total": batch["input_ids"].numel()},
    "both": lambda batch: {"total": 3, "loss_generating": 0},
}
STEPS = [[[6, 0, 3], [1, 2]], [[4], [0, 0]], [[0, 2, 5, 1], [6]]]  # lengths, by step and rank


def spec_of(batches: list[Any], name: str) -> DataSpec:
    return DataSpec(batches, get_num_tokens_in_batch=COUNTERS[name])


def trained(data: Any, size: int | str | None, model: ComposerModel | None = None, **arguments: Any) -> tuple[Any, Any]:
    """Gradients of each step, without ever moving the weights, and the timestamp at the end."""
    torch.manual_seed(3)
    model = LanguageModel() if model is None else model
    flat = At("after_train_batch", lambda s: torch.cat([p.grad.flatten().clone() for p in s.model.parameters()]))
    with trainer_of(model, data, lr=0.0, device_train_microbatch_size=size, callbacks=flat, **arguments) as trainer:
        trainer.fit()
        return flat.found, trainer.state.timestamp


def by_hand(batch: Any, weights: list[float] | None = None) -> torch.Tensor:
    """The gradient of the loss of a batch; with weights that of its samples one by one."""
    torch.manual_seed(3)
    model = LanguageModel()
    if weights is None:
        loss: Any = model.loss(model(batch), batch)
    else:
        rows = [{key: batch[key][row : row + 1] for key in ("input_ids", "labels")} for row in range(len(weights))]
        loss = sum(w / sum(weights) * model.loss(model(row), row) for w, row in zip(weights, rows, strict=True) if w)
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    name=st.sampled_from(sorted(COUNTERS)),
    size=st.sampled_from([None, 1, 2, 4, "auto"]),
)
def test_gradient_matches_the_full_batch_for_any_counter(lengths, name, size) -> None:
    batch = padded(lengths, 5)
    (found,), timestamp = trained(spec_of([batch], name), size)
    torch.testing.assert_close(found, by_hand(batch), rtol=0, atol=1e-12)
    counted = 5 * len(lengths) if COUNTERS[name] is None else COUNTERS[name](batch)
    assert timestamp.token == int(counted["total"] if isinstance(counted, dict) else counted)


def batch_of(step: int, ranks: list[int]) -> dict[str, Any]:
    parts = [padded(STEPS[step][rank], 6, seed=10 * step + rank) for rank in ranks]
    return {key: torch.cat([part[key] for part in parts]) for key in ("input_ids", "labels")}


def on_this_rank(by_tokens: bool | None) -> list[Any]:
    rank = dist.get_global_rank()
    batches = [batch_of(step, [rank]) for step in range(len(STEPS))]
    names = [name for name in COUNTERS if by_tokens is None or name in ("zero", "tensor of 0", "targets", "both")]
    return [
        (name, size, *trained(spec_of(batches, name), size, accumulate_train_batch_on_tokens=by_tokens))
        for name in names
        for size in (None, 2)
    ]


def test_gradient_matches_the_full_batch_on_two_ranks(two_ranks: Ranks) -> None:
    whole = [batch_of(step, [0, 1]) for step in range(len(STEPS))]
    for results in two_ranks.run(on_this_rank, None):
        for name, size, found, timestamp in results:
            for gradient, batch in zip(found, whole, strict=True):
                torch.testing.assert_close(gradient, by_hand(batch), rtol=0, atol=1e-6, msg=f"{name}, {size}")
            if name in ("constant", "with padding"):
                per_step = [sum(7 if name == "constant" else 6 * len(rank) for rank in step) for step in STEPS]
                assert timestamp.token == sum(per_step)


def test_two_ranks_weight_by_samples_where_tokens_are_not_tracked(two_ranks: Ranks) -> None:
    """And by what is tracked otherwise; that nothing counts is said by the entry "loss_generating"."""
    for results in two_ranks.run(on_this_rank, True):
        for name, size, found, _ in results:
            if name == "both":
                assert not any(gradient.any() for gradient in found)
            elif name == "targets":
                torch.testing.assert_close(found[0], by_hand(batch_of(0, [0, 1])), rtol=0, atol=1e-6)
            elif size is None:
                # Of the mean of each rank: three samples of five, and two.
                parts = [by_hand(batch_of(0, [rank])) * len(STEPS[0][rank]) / 5 for rank in (0, 1)]
                torch.testing.assert_close(found[0], sum(parts), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "weights"),
    [("zero", [1, 1]), ("tensor of 0", [1, 1]), ("constant", [1, 1]), ("uneven", None), ("tensor", None)],
)
def test_user_counts_are_loss_weights_on_request(name: str, weights: list[float] | None) -> None:
    batch = padded([5, 2], 5)
    expected = weights or batch["input_ids"].sum(1).tolist()
    (found,), _ = trained(spec_of([batch], name), 1, accumulate_train_batch_on_tokens=True)
    torch.testing.assert_close(found, by_hand(batch, expected), rtol=0, atol=1e-12)
    (whole,), _ = trained(spec_of([batch], name), None, accumulate_train_batch_on_tokens=True)
    torch.testing.assert_close(whole, by_hand(batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("by_tokens", [None, False, True])
def test_zero_count_without_labels_trains(by_tokens: bool | None) -> None:
    data, model = regression_data(2, 4, dtype=DOUBLE), Regression(dtype=DOUBLE)
    expected, _ = trained(data, None, model)
    for size in (None, 3):
        spec = DataSpec(data, get_num_tokens_in_batch=lambda batch: 0)
        found, _ = trained(spec, size, model, accumulate_train_batch_on_tokens=by_tokens)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_custom_counter_does_not_read_from_the_device() -> None:
    """The weights are counted on the device, of the labels, by no one who waits for them."""
    counter = on_host_of("input_ids", lambda batch: int((batch["input_ids"] != 0).sum()))
    made = trainer_of(
        LanguageModel(),
        DataSpec([padded([3, 0, 2], 5)], get_num_tokens_in_batch=counter),
        device_train_microbatch_size=1,
    )
    made.state.device = Accelerator()
    made.fit()
    assert made.state.timestamp.token > 0


def on_host_of(key: str, count: Any) -> Any:
    """As ``on_host``, for batches with another key."""
    checked = on_host(lambda batch: count(batch["all"]))
    return lambda batch: checked({"x": batch[key], "all": batch})


class Drops(Algorithm):
    """Takes from the batch what only counters read."""

    def match(self, event, state):
        return event is Event.AFTER_DATALOADER

    def apply(self, event, state, logger):
        state.batch = {key: value for key, value in state.batch.items() if key != "mask"}


@pytest.mark.parametrize("by_tokens", [None, True])
def test_algorithm_may_drop_entries_read_by_the_counter(by_tokens: bool | None) -> None:
    batch = padded([5, 2], 5) | {"mask": torch.ones(2, 5, dtype=torch.long)}
    spec = DataSpec(
        [batch],
        get_num_tokens_in_batch=lambda batch: int(batch["mask"].sum()),
        get_num_samples_in_batch=lambda batch: len(batch["mask"]),
    )
    arguments: dict[str, Any] = {"algorithms": Drops(), "accumulate_train_batch_on_tokens": by_tokens}
    (found,), timestamp = trained(spec, None, **arguments)
    torch.testing.assert_close(found, by_hand(batch), rtol=0, atol=1e-12)
    assert timestamp.token == 10
    if by_tokens is None:
        (found,), _ = trained(spec, 1, **arguments)
        torch.testing.assert_close(found, by_hand(batch), rtol=0, atol=1e-12)
    else:
        with pytest.raises(
            ValueError, match=r"get_num_tokens_in_batch raised KeyError.*AFTER_DATALOADER: these must keep"
        ):
            trained(spec, 1, **arguments)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, TypeError),
        (3.5, TypeError),
        (3.0, TypeError),
        (torch.tensor(2.5), TypeError),
        (torch.ones(2), TypeError),
        ("5", TypeError),
        (True, TypeError),
        (-1, ValueError),
        ({"total": None}, TypeError),
        ({"total": -2}, ValueError),
        ({"other": 2}, ValueError),
    ],
)
def test_invalid_number_of_tokens_raises(value: Any, error: type[Exception]) -> None:
    spec = DataSpec([padded([5, 2], 5)], get_num_tokens_in_batch=lambda batch: value)
    shown = value["total"] if isinstance(value, dict) and "total" in value else value
    text = "without 'total'" if isinstance(value, dict) and "other" in value else repr(shown)
    with pytest.raises(error) as raised:
        trained(spec, None)
    assert "get_num_tokens_in_batch" in str(raised.value)
    assert text in str(raised.value)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), torch.tensor(-2.0)])
def test_invalid_number_of_samples_raises(value: Any) -> None:
    with pytest.raises(ValueError, match="get_num_samples_in_batch must return a number of 0 or more, but returned"):
        trained(DataSpec([padded([5, 2], 5)], get_num_samples_in_batch=lambda batch: value), None)


@pytest.mark.parametrize("value", [-1, float("nan")])
def test_invalid_number_of_targets_raises(value: Any) -> None:
    spec = DataSpec([padded([5, 2], 5)], get_num_tokens_in_batch=lambda b: {"total": 9, "loss_generating": value})
    with pytest.raises(ValueError, match="get_num_tokens_in_batch must return a number of 0 or more, but returned"):
        trained(spec, 1, accumulate_train_batch_on_tokens=True)


class OneArgument(DataSpec):
    def get_num_tokens_in_batch(self, batch):
        return 11


class TwoArguments(DataSpec):
    def get_num_tokens_in_batch(self, batch, token_type="total"):
        return 11 if token_type == "total" else int((batch["labels"] != -100).sum())


class Default(DataSpec):
    def _default_get_num_tokens_in_batch(self, batch):
        return 11

    def _default_get_num_samples_in_batch(self, batch):
        return 2


@pytest.mark.parametrize("kind", [OneArgument, TwoArguments, Default, "assigned"], ids=str)
@pytest.mark.parametrize("by_tokens", [None, True])
def test_custom_counters_with_one_argument(kind: Any, by_tokens: bool | None) -> None:
    batch = padded([5, 2], 5)
    spec = DataSpec([batch]) if kind == "assigned" else kind([batch])
    if kind == "assigned":
        spec.get_num_tokens_in_batch = lambda batch: 11
    (found,), timestamp = trained(spec, 1, accumulate_train_batch_on_tokens=by_tokens)
    assert (timestamp.token, timestamp.sample) == (11, 2)
    exact = by_tokens is None or kind is TwoArguments
    torch.testing.assert_close(found, by_hand(batch, None if exact else [1, 1]), rtol=0, atol=1e-12)


class PerSample(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch):
        return self.layer(batch["input_ids"][:, :1].float())

    def loss(self, outputs, batch):
        return outputs.mean()


def evaluated() -> list[int]:
    """Tokens at the end of each batch of an evaluation, and of a prediction."""
    rows = [{"input_ids": torch.full((6,), row)} for row in range(10)]
    spec = DataSpec(DataLoader(rows, batch_size=3), get_num_tokens_in_batch=lambda b: int((b["input_ids"] != 0).sum()))
    seen = At("eval_batch_end", lambda state: int(state.eval_timestamp.token))
    predicted = At("predict_batch_end", lambda state: int(state.predict_timestamp.token))
    with trainer_of(PerSample(), DataLoader(rows, batch_size=5), callbacks=[seen, predicted]) as trainer:
        trainer.eval(Evaluator(label="e", dataloader=spec, device_eval_microbatch_size=2))
        trainer.predict(spec)
    return [*seen.found, -1, *predicted.found]


def test_evaluation_and_prediction_count_tokens(two_ranks: Ranks) -> None:
    assert evaluated() == [12, 30, 48, 54, -1, 12, 30, 48, 54]
    for found in two_ranks.run(evaluated):  # a rank has every other batch
        assert found == [30, 54, -1, 30, 54]
