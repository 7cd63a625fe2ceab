"""AccumEquality: the gradient of k microbatches is that of the batch; losses and their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composer import Algorithm, ComposerModel, DataSpec
from composer.trainer.microbatch import named_losses
from tests.common import At, Received, Regression, classifier, labeled_data, regression_data, trainer_of
from tests.on_device import place

VOCABULARY = 7
DOUBLE = torch.float64


class LanguageModel(ComposerModel):
    """Predicts each token from the one before; the loss averages over the tokens that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 5, dtype=DOUBLE)
        self.head = nn.Linear(5, VOCABULARY, dtype=DOUBLE)

    def forward(self, batch):
        return self.head(torch.tanh(self.embed(batch["input_ids"])))

    def loss(self, outputs, batch):
        return cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def padded(lengths: list[int], width: int, seed: int = 0) -> dict[str, Any]:
    """A batch of sequences of different length, padded with -100 in the labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (len(lengths), width), generator=generator)
    labels = torch.randint(VOCABULARY, (len(lengths), width), generator=generator)
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    return {"input_ids": ids, "labels": labels, "names": [f"s{i}" for i in range(len(lengths))], "split": "train"}


def gradients(model: ComposerModel, data: Any, size: int | None, **arguments: Any) -> tuple[list[Tensor], list[float]]:
    """The gradient of each step, without ever moving the weights, and the logged losses."""
    flat = At("after_train_batch", lambda s: torch.cat([p.grad.flatten().clone() for p in s.model.parameters()]))
    log = Received()
    trainer_of(model, data, lr=0.0, device_train_microbatch_size=size, callbacks=flat, loggers=log, **arguments).fit()
    return flat.found, [value for _, value in log.series("loss/train/total")]


def assert_equal_gradients(model, data, size, **arguments) -> None:
    full, full_losses = gradients(model, data, None, **arguments)
    parts, part_losses = gradients(model, data, size, **arguments)
    assert len(full) == len(parts)
    for a, b in zip(full, parts, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-6)
    assert part_losses == pytest.approx(full_losses, abs=1e-6)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any),
    size=st.integers(1, 10),
    by_tokens=st.sampled_from([None, True]),
    seed=st.integers(0, 3),
)
@example(lengths=[6, 0, 0, 1, 2], size=2, by_tokens=None, seed=0)
@example(lengths=[0, 3], size=1, by_tokens=True, seed=0)
def test_AccumEquality_ragged_tokens(lengths, size, by_tokens, seed) -> None:
    """Padding counts nothing, and a microbatch of nothing but padding adds nothing, to the loss neither."""
    torch.manual_seed(seed)
    data = [padded(lengths, 6, seed)]
    assert_equal_gradients(LanguageModel(), data, size, accumulate_train_batch_on_tokens=by_tokens)


@settings(max_examples=25)
@given(batch_size=st.integers(1, 9), last=st.integers(1, 9), size=st.integers(1, 10))
def test_AccumEquality_samples_with_a_short_last_batch(batch_size, last, size) -> None:
    data = [*regression_data(2, batch_size, dtype=DOUBLE), *regression_data(1, min(last, batch_size), 5, DOUBLE)]
    assert_equal_gradients(Regression(dtype=DOUBLE), data, size)


@settings(max_examples=15)
@given(samples=st.integers(2, 8), size=st.integers(1, 7))
def test_AccumEquality_dict_batches(samples, size) -> None:
    class ByName(Regression):
        def forward(self, batch):
            return self.linear(batch["inputs"]["x"])

        def loss(self, outputs, batch):
            return nn.functional.mse_loss(outputs, batch["y"])

    data = [{"inputs": {"x": x}, "y": y, "scale": 2.0} for x, y in regression_data(2, samples, dtype=DOUBLE)]
    assert_equal_gradients(ByName(dtype=DOUBLE), data, size)


def test_AccumEquality_multiple_losses() -> None:
    class Several(Regression):
        def loss(self, outputs, batch):
            error = outputs - batch[1]
            return {"square": error.square().mean(), "absolute": error.abs()}

    assert_equal_gradients(Several(dtype=DOUBLE), regression_data(2, 7, dtype=DOUBLE), 3)


def test_AccumEquality_of_tokens_that_a_user_counts() -> None:
    """Tokens that the user's function counts, as numbers, for batches that are not dictionaries."""

    class Masked(Regression):
        def loss(self, outputs, batch):
            return ((outputs - batch[1]).square() * batch[2]).sum() / batch[2].sum()

    (x, y), mask = regression_data(1, 6, dtype=DOUBLE)[0], torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=DOUBLE)[:, None]
    data = DataSpec(
        [(x, y, mask)],
        get_num_tokens_in_batch=lambda batch: {"total": len(batch[0]), "loss_generating": int(batch[2].sum())},
    )
    assert_equal_gradients(Masked(dtype=DOUBLE), data, 2, accumulate_train_batch_on_tokens=True)


def test_AccumEquality_of_a_microbatch_without_user_counted_tokens() -> None:
    """Nothing but padding, where the counts are numbers."""
    data = DataSpec(
        [padded([0, 4, 2], 6)],
        get_num_tokens_in_batch=lambda batch: {"total": 0, "loss_generating": int((batch["labels"] != -100).sum())},
    )
    assert_equal_gradients(LanguageModel(), data, 1)


def test_AccumEquality_of_the_weights_after_multiple_epochs() -> None:
    one, many = LanguageModel(), LanguageModel()
    many.load_state_dict(one.state_dict())
    data = [padded([6, 1, 3], 6, 1), padded([2, 2, 5], 6, 2), padded([4], 6, 3)]
    for model, accumulate in ((one, None), (many, 2)):
        trainer_of(model, data, lr=0.5, device_train_microbatch_size=accumulate, max_duration="5ep").fit()
    for a, b in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_weighting_by_samples_differs_where_tokens_are_ragged() -> None:
    """The test above can fail: averaging over samples gives another gradient."""
    model, data = LanguageModel(), [padded([6, 1], 6)]
    (full,), _ = gradients(model, data, None)
    (parts,), _ = gradients(model, data, 1, accumulate_train_batch_on_tokens=False)
    assert not torch.allclose(full, parts, atol=1e-4)
    samples = [{k: place(v[i : i + 1]) for k, v in data[0].items() if k != "split"} for i in (0, 1)]
    losses = [model.loss(model(sample), sample) for sample in samples]
    expected = torch.autograd.grad(sum(losses) / 2, list(model.parameters()))
    torch.testing.assert_close(parts, torch.cat([g.flatten() for g in expected]))


@pytest.mark.parametrize(("batch_size", "grad_accum", "parts"), [(6, 1, 1), (6, 3, 3), (6, 4, 3), (5, 2, 2), (4, 9, 4)])
def test_grad_accum_is_the_number_of_microbatches(batch_size, grad_accum, parts) -> None:
    """If it divides the batch; otherwise at most the given size."""
    loader = torch.utils.data.DataLoader(torch.arange(batch_size * 8.0).reshape(-1, 4), batch_size=batch_size)

    class OfX(Regression):
        def forward(self, batch):
            return self.linear(batch)

        def loss(self, outputs, batch):
            return outputs.mean()

    sizes = At("before_forward", lambda state: len(state.batch))
    trainer = trainer_of(OfX(), loader, lr=0.0, grad_accum=grad_accum, max_duration="1ba", callbacks=sizes)
    trainer.fit()
    assert len(sizes.found) == parts
    assert sum(sizes.found) == batch_size
    assert trainer.state.grad_accum == parts


def test_batch_is_restored_after_its_microbatches() -> None:
    sizes = {
        name: At(name, lambda s: len(s.batch[0])) for name in ("before_train_batch", "before_loss", "after_train_batch")
    }
    trainer_of(data=regression_data(1, 5), device_train_microbatch_size=2, callbacks=list(sizes.values())).fit()
    assert [at.found for at in sizes.values()] == [[5], [2, 2, 1], [5]]


def test_microbatch_transforms_apply_to_each_microbatch() -> None:
    data = DataSpec(regression_data(1, 4), microbatch_transforms=lambda batch: (batch[0] + len(batch[0]), batch[1]))
    plain = place(regression_data(1, 4)[0][0])
    for size, expected in ((None, plain + 4), (2, plain + 2)):
        seen = At("before_forward", lambda state: state.batch[0])
        trainer_of(data=data, device_train_microbatch_size=size, callbacks=seen).fit()
        torch.testing.assert_close(torch.cat(seen.found), expected)


# ---------------------------------------------------------------------------------------------------- losses


def test_every_type_of_named_losses() -> None:
    one, two = torch.tensor(1.0), torch.tensor([2.0, 4.0])
    cases: list[tuple[Any, float, dict[str, float]]] = [
        (one, 1.0, {}),
        (two, 3.0, {}),
        ([one], 1.0, {}),
        ((one, two), 4.0, {"loss0": 1.0, "loss1": 3.0}),
        ({"a": one}, 1.0, {"a": 1.0}),
        ({"a": one, "b": two}, 4.0, {"a": 1.0, "b": 3.0}),
        ({"a": one, "total": two}, 3.0, {"a": 1.0}),
    ]
    for loss, total, parts in cases:
        found, named = named_losses(loss)
        assert found == total
        assert named == {f"loss/train/{name}": value for name, value in parts.items()} | {"loss/train/total": total}


@pytest.mark.parametrize("loss", [None, 1.0, "loss", [], (), {"a": torch.tensor(3)}])
def test_loss_of_none_raises(loss) -> None:
    with pytest.raises(TypeError, match="The model's loss must be a tensor, or a sequence or mapping of tensors; got"):
        named_losses(loss)


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (torch.tensor(1 + 2j), "It is complex"),
        (torch.ones(2, dtype=torch.complex64), "It is complex"),
        ({"total": torch.tensor(1.0), "spectrum": torch.tensor(1 + 2j)}, "Its entry 'spectrum' is complex"),
        ([torch.tensor(1.0), torch.tensor(1 + 2j)], "Its entry 1 is complex"),
    ],
)
def test_a_complex_loss_raises(loss: Any, what: str) -> None:
    with pytest.raises(TypeError, match=rf"{what}, and only a real number can be minimized: return its abs\(\) or"):
        named_losses(loss)


def test_losses_of_the_same_name_raise() -> None:
    with pytest.raises(ValueError, match="two entries of the same name: 0, '0'"):
        named_losses({0: torch.tensor(1.0), "0": torch.tensor(2.0)})


def test_an_algorithm_may_scale_the_loss() -> None:
    class Triple(Algorithm):
        def after_loss(self, state, logger):
            state.loss = state.loss * 3

    model, data = Regression(dtype=DOUBLE), regression_data(1, 5, dtype=DOUBLE)
    (plain,), _ = gradients(model, data, None)
    (tripled,), (logged,) = gradients(model, data, 2, algorithms=Triple())
    torch.testing.assert_close(tripled, plain * 3)
    assert logged == pytest.approx(3 * model.loss(model(place(data[0])), place(data[0])).item())


def test_create_graph_if_an_algorithm_requires_it() -> None:
    class PenalizeGradient(Algorithm):
        backwards_create_graph = True

        def after_backward(self, state, logger):
            weight = state.model.linear.weight
            assert weight.grad.requires_grad
            (penalty,) = torch.autograd.grad(weight.grad.square().sum(), weight)
            weight.grad = weight.grad.detach() + penalty

    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
        trainer_of(algorithms=PenalizeGradient(), lr=0.01).fit()


def test_train_metrics_see_the_unedited_batch() -> None:
    """A method that edits targets for the loss does not change what is measured."""

    class Spoil(Algorithm):
        def before_loss(self, state, logger):
            state.batch_set_item(1, torch.zeros_like(state.batch[1]))

    data = labeled_data(2, 8)
    model = classifier()
    logs = []
    for algorithms in ((), Spoil()):
        log = Received()
        trainer_of(model, data, lr=0.0, algorithms=algorithms, loggers=log, device_train_microbatch_size=3).fit()
        logs.append([value for _, value in log.series("metrics/train/MulticlassAccuracy")])
    assert logs[0] == logs[1]
    correct = [(model(batch).argmax(1) == batch[1]).sum().item() for batch in place(data)]
    assert logs[0][:2] == pytest.approx([correct[0] / 8, sum(correct) / 16])
