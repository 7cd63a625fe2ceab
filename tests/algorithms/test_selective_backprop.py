from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from composer import Trainer
from composer.algorithms import SelectiveBackprop, select_using_loss, should_selective_backprop
from composer.core import DataSpec
from composer.models import ComposerClassifier
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights

ALWAYS = {"start": 0.0, "end": 1.0, "interrupt": 0}


def _by_hand(batches):
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(outputs, target, reduction):
        return nn.functional.cross_entropy(outputs, target, reduction=reduction)

    for index, batch in enumerate(batches):
        if should_selective_backprop(index / len(batches), index, 0.0, 0.75, 2):
            batch = select_using_loss(*batch, model.net, loss, keep=0.5)
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)


CASE = Case(
    make=lambda: SelectiveBackprop(start=0.0, end=0.75),
    by_hand=_by_hand,
    neutral=lambda: SelectiveBackprop(keep=1.0, **ALWAYS),
    # Of the first batch only: two inputs make a loss twice as large, and other weights from then on.
    with_keys=lambda input_key, target_key: SelectiveBackprop(0.0, 0.2, input_key=input_key, target_key=target_key),
    graphs=2,  # samples are selected without gradients
)


def squares(outputs, target, reduction):
    assert reduction == "none"
    return (outputs - target) ** 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.4, 0), False),
        ((0.5, 0), True),
        ((0.5, 1), False),
        ((0.89, 2), True),
        ((0.9, 2), False),
        ((0.5, 1, 0.5, 0.9, 0), True),
        ((0.5, 2, 0.5, 0.9, 3), False),
        ((0.5, 0, 0.5, 0.9, 1), False),
    ],
)
def test_when(arguments, expected):
    assert should_selective_backprop(*arguments) is expected


@given(number=st.integers(1, 120), percent=st.integers(1, 100))
def test_count_is_exact_and_examples_are_complete(number, percent):
    x = torch.arange(float(number))
    kept, target = select_using_loss(x, x + 0.5, nn.Identity(), squares, keep=percent / 100)
    assert len(kept) == max(number * percent // 100, 1)
    assert torch.equal(target, kept + 0.5)
    assert torch.equal(kept, kept.unique())  # in their order, none twice


def test_distribution_is_that_of_the_paper():
    """One of three: P(rank) ~ percentile ** (1 / keep - 1), with keep 1/3 the square of 1/6, 3/6, 5/6."""
    torch.manual_seed(0)
    x, counts = torch.tensor([3.0, 1.0, 2.0]), torch.zeros(4)
    for _ in range(2000):
        kept, _ = select_using_loss(x, torch.zeros(3), nn.Identity(), squares, keep=1 / 3)
        counts[int(kept)] += 1
    torch.testing.assert_close(counts[1:] / 2000, torch.tensor([1.0, 9.0, 25.0]) / 35, atol=0.03, rtol=0)


def test_losses_of_several_places_are_averaged():
    torch.manual_seed(0)
    x = torch.zeros(8, 5)
    x[3] = 100.0
    hits = sum(
        (select_using_loss(x, torch.zeros(8, 5), nn.Identity(), squares, keep=0.125)[0] == 100).any().item()
        for _ in range(50)
    )
    assert hits >= 25  # (15/16)^7 against all others: about 0.64 / 1.02


def test_scaled_images_are_only_for_the_losses():
    sizes = []

    def model(x):
        sizes.append(x.shape[-2:])
        return x.mean((1, 2, 3))

    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    kept, _ = select_using_loss(x, torch.zeros(4), model, squares, keep=0.5, scale_factor=0.5)
    assert sizes == [(4, 4)]
    assert kept.shape == (2, 3, 8, 8)
    assert kept.is_contiguous(memory_format=torch.channels_last)
    for bad in (torch.zeros(4, 3), torch.zeros(4, 3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="scale_factor"):
            select_using_loss(bad, torch.zeros(4), model, squares, scale_factor=0.5)


def test_collections():
    x = {"a": torch.arange(4.0), "b": torch.arange(4.0) * 10}
    kept, target = select_using_loss(x, [torch.arange(4)], lambda x: x["a"], lambda o, t, reduction: o, keep=0.5)
    assert torch.equal(kept["b"], kept["a"] * 10)
    assert torch.equal(target[0].float(), kept["a"])


def test_batch_normalization_and_modes_are_kept():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Flatten(0))
    model[1].eval()
    before = weights(model)
    x = torch.randn(4, 3)
    select_using_loss(x, torch.zeros(12), model, lambda o, t, reduction: (o**2).view(4, 3))
    assert same(weights(model), before)
    assert [module.training for module in model] == [True, False, True]


def test_wrong_losses():
    x = torch.randn(4)
    with pytest.raises(TypeError, match="loss_fun must take reduction='none'"):
        select_using_loss(x, x, nn.Identity(), lambda outputs, target: outputs)
    with pytest.raises(ValueError, match="loss of each example"):
        select_using_loss(x, x, nn.Identity(), lambda outputs, target, reduction: outputs.mean())
    for argument in ({"keep": 0.0}, {"keep": 1.5}, {"scale_factor": 2.0}):
        with pytest.raises(ValueError, match=next(iter(argument))):
            select_using_loss(x, x, nn.Identity(), squares, **argument)


class Counting(ComposerClassifier):
    """Counts forward passes and the examples in them."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), num_classes=3)
        self.passes = []

    def forward(self, batch):
        self.passes.append((len(batch[0]), torch.is_grad_enabled()))
        return super().forward(batch)


def fit(algorithm, batch_size=10, batches=4, **arguments):
    torch.manual_seed(0)
    model = Counting()
    data = [(torch.randn(batch_size, 4), torch.randint(3, (batch_size,))) for _ in range(batches)]
    trainer = Trainer(
        model=model, train_dataloader=arguments.pop("spec", lambda d: d)(data), max_duration=f"{batches}ba",
        optimizers=SGD(model.parameters(), lr=0.1), algorithms=[algorithm], device="cpu", progress_bar=False,
        **arguments,
    )  # fmt: skip
    trainer.fit()
    return model


def test_one_extra_forward_on_pruned_steps_only():
    model = fit(SelectiveBackprop(start=0.25, end=1.0, keep=0.3, interrupt=2))
    full, scores, pruned = (10, True), (10, False), (3, True)
    assert model.passes == [full, full, scores, pruned, full]
    assert model.module[1].num_batches_tracked == 4


def test_microbatches():
    model = fit(SelectiveBackprop(keep=0.7, **ALWAYS), batches=1, device_train_microbatch_size=4)
    assert model.passes == [(4, False), (4, False), (2, False), (4, True), (3, True)]


def test_microbatch_transforms_are_seen_by_the_scores():
    seen = []

    def transform(batch):
        seen.append(len(batch[0]))
        return batch

    fit(
        SelectiveBackprop(keep=0.5, **ALWAYS),
        batches=1,
        spec=lambda data: DataSpec(data, microbatch_transforms=transform),
    )
    assert seen == [10, 5]


def test_everything_with_one_entry_for_each_example_is_pruned():
    engine = loop.start(
        make_model(inputs=["x"], targets=["y"]), [SelectiveBackprop(**ALWAYS, input_key="x", target_key="y")]
    )
    x, y = make_batches(1)[0]
    engine.state.batch = {
        "x": x,
        "y": y,
        "weight": torch.arange(6),
        "classes": torch.zeros(4),
        "scale": torch.tensor(2),
    }
    engine.run_event("after_dataloader")
    batch = engine.state.batch
    assert [len(batch[name]) for name in ("x", "y", "weight", "classes")] == [3, 3, 3, 4]
    assert torch.equal(batch["x"], x[batch["weight"]])
    assert batch["scale"] == 2


def test_noise_of_training_is_not_in_the_scores():
    """Dropped-out outputs would rank the examples by chance."""
    model = ComposerClassifier(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9)), num_classes=3)
    modes = []
    model.module[1].register_forward_hook(lambda module, inputs, output: modes.append(torch.equal(inputs[0], output)))
    engine = loop.start(model, [SelectiveBackprop(**ALWAYS)])
    engine.state.batch = (torch.randn(6, 4), torch.randint(3, (6,)))
    engine.run_event("after_dataloader")
    assert modes == [True]
    assert all(module.training for module in model.modules())


def test_loss_without_reduction_is_named():
    class Plain(ComposerClassifier):
        def loss(self, outputs, batch):
            return super().loss(outputs, batch)

    engine = loop.start(Plain(nn.Linear(4, 3), num_classes=3), [SelectiveBackprop()])
    with pytest.raises(TypeError, match=r"Plain\.loss.*reduction"):
        engine.run_event("fit_start")


def test_needs_a_maximum():
    engine = loop.start(make_model(), [SelectiveBackprop()], max_duration=None)
    engine.state.batch = make_batches()[0]
    with pytest.raises(ValueError, match="max_duration"):
        engine.run_event("after_dataloader")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 1.2}, "start"),
        ({"start": 0.5, "end": 0.4}, "end must not be before start"),
        ({"keep": 0.0}, "keep"),
        ({"scale_factor": 1.5}, "scale_factor"),
        ({"interrupt": -1}, "interrupt"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelectiveBackprop(**arguments)


def test_parameters_are_looked_at_once_for_a_training(monkeypatch):
    looks = []
    name = f"{SelectiveBackprop.__module__}.is_dtensor"
    monkeypatch.setattr(name, lambda parameter: bool(looks.append(parameter)))
    model = make_model()
    engine = loop.start(model, [SelectiveBackprop(**ALWAYS)])
    for _ in range(2):
        engine.run_event("fit_start")
        for batch in make_batches():
            engine.state.batch = batch
            engine.run_event("after_dataloader")
    assert len(looks) == 2 * len(list(model.parameters()))
