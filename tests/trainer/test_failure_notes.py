"""Common mistakes in models and data: torch's error gets a note with the tensor and the remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, TensorDataset

from composer import ComposerModel, State, Trainer
from composer.models import ComposerClassifier
from composer.parallel.fsdp_units import has_fsdp_units
from composer.trainer import failure_dtypes, failure_notes
from composer.trainer.auto_microbatch.out_of_memory import ESTIMATE
from composer.trainer.failure_dtypes import input_dtype
from composer.trainer.failure_facts import facts_of
from composer.trainer.failure_notes import add_notes

CROSS_ENTROPY = nn.functional.cross_entropy


class Net(ComposerModel):
    """A model whose methods a test replaces."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = nn.Linear(4, 10) if net is None else net

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return CROSS_ENTROPY(outputs, batch[1])


def data(x: Any = None, y: Any = None) -> DataLoader:
    x = torch.randn(8, 4) if x is None else x
    return DataLoader(TensorDataset(x, torch.arange(8) if y is None else y), batch_size=4)


def classifier(outputs: int = 10, features: int = 4, num_classes: int = 10) -> ComposerClassifier:
    return ComposerClassifier(nn.Linear(features, outputs), num_classes=num_classes)


def failed(run, model: ComposerModel, loader: Any = None) -> BaseException:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = data() if loader is None else loader
    arguments = {"train_dataloader": loader, "optimizers": optimizer, "max_duration": 1, "progress_bar": False}
    with Trainer(model=model, device="cpu", **arguments) as trainer, pytest.raises(Exception) as raised:
        run(trainer, loader)
    return raised.value


def notes_of(model: ComposerModel, loader: Any = None, run=lambda trainer, loader: trainer.fit()) -> str:
    return "\n".join(getattr(failed(run, model, loader), "__notes__", []))


def images(*shape: int, dtype: torch.dtype = torch.float32) -> DataLoader:
    return data((torch.rand(8, *shape) * 9).to(dtype))


def conv(channels: int) -> Net:
    return Net(nn.Sequential(nn.Conv2d(channels, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 10)))


@pytest.mark.parametrize(
    ("model", "loader", "expected"),
    [
        (classifier(), data(y=torch.zeros(8)), ["batch[1], the target, is float32 (4,)", "y.long()", "loss_fn="]),
        (classifier(), data(y=torch.zeros(8, dtype=torch.int32)), ["batch[1], the target, is int32 (4,)", "y.long()"]),
        (classifier(), data(y=torch.zeros(8, 1).long()), ["is int64 (4, 1)", "y.squeeze(-1)"]),
        (classifier(), data(y=torch.full((8,), -1)), ["has class -1", "count from 0"]),
        (classifier(5), data(y=torch.arange(2, 10)),
         ["outputs are float32 (4, 5), of 5 classes (num_classes=10)", "has class 5", "at least 10 outputs"]),
        (classifier(5), data(), ["num_classes=10, but the outputs are float32 (4, 5)", "num_classes=5"]),
        (classifier(10, num_classes=5), data(), ["num_classes=5", "float32 (4, 10)", "num_classes=10"]),
        (classifier().double(), data(), ["batch[0] is float32 (4, 4)", "are float64", "model.float()"]),
        (classifier().half(), data(), ["are float16", "Trainer(precision='amp_bf16')"]),
        (classifier().bfloat16(), data(), ["are bfloat16", "Trainer(precision='amp_bf16')"]),
        (classifier(), data(torch.randn(8, 4).double()), ["batch[0] is float64 (4, 4)", "x.to(torch.float32)"]),
        (classifier(features=5), data(), ["module is Linear(in_features=5", "float32 (4, 4)", "in_features=4"]),
        (conv(3), images(8, 8, 3), ["net.0 is Conv2d(3", "x.permute(0, 3, 1, 2)"]),
        (conv(3), images(1, 8, 8), ["Set its channels to 1"]),
        (conv(1), images(8, 8), ["x.unsqueeze(1)"]),
        (conv(3), images(3, 8, 8, dtype=torch.uint8), ["batch[0] is uint8 (4, 3, 8, 8)", "x.float() / 255"]),
        (Net(nn.Linear(64, 10)), images(8, 8), ["net is Linear(in_features=64", "nn.Flatten()"]),
        (Net(nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(8, 10))), data(torch.full((8, 4), 7)),
         ["net.0 is Embedding(3, 2)", "index 7", "num_embeddings=8"]),
        (Net(nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(8, 10))), data(),
         ["batch[0] is float32 (4, 4)", "net.0 needs integer indices"]),
        (classifier(), torch.randn(6, 4), ["one Tensor of shape (6, 4)", "Use a DataLoader"]),
    ],
)  # fmt: skip
def test_mismatched_data(model, loader, expected) -> None:
    notes = notes_of(model, loader)
    for part in expected:
        assert part in notes, notes


def forward_of_x(self, x):
    return self.net(x)


def forward_of_attribute(self, batch):
    return self.net(batch.flatten(1))


def forward_of_two(self, x, y):
    return self.net(x)


def forward_without_return(self, batch):
    self.net(batch[0])


def forward_without_graph(self, batch):
    with torch.no_grad():
        return self.net(batch[0])


def forward_on_meta(self, batch):
    return self.net(batch[0]) + self.constant


def loss_of_batch(self, outputs, batch):
    return CROSS_ENTROPY(outputs, batch)


def loss_of_three(self, outputs, x, y):
    return outputs.sum()


def loss_detached(self, outputs, batch):
    return CROSS_ENTROPY(outputs, batch[1]).detach()


def loss_of_hits(self, outputs, batch):
    return outputs.argmax(1)


def loss_with_log(self, outputs, batch):
    self.log("loss", 1)


def loss_bce(self, outputs, batch):
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], batch[1])


@pytest.mark.parametrize(
    ("method", "function", "expected"),
    [
        ("forward", forward_of_x, ["gets the full batch, here a tuple of 2", "x, y = batch"]),
        ("forward", forward_of_attribute, ["gets the full batch, here a tuple of 2", "x, y = batch"]),
        ("forward", forward_without_return, ["forward returned None"]),
        ("forward", forward_without_graph, ["neither the outputs nor the loss, float32 a scalar", "no_grad"]),
        ("forward", forward_on_meta, ["Mine.constant float32 (10,) is on meta", "register_buffer"]),
        ("loss", loss_of_batch, ["the targets are batch[1]"]),
        ("loss", loss_detached, ["the outputs have a graph, but the loss, float32 a scalar, has none"]),
        ("loss", loss_of_hits, ["the loss is int64 (4,), which has no gradient"]),
        ("loss", loss_with_log, ["Use self.logger.log_metrics({'name': value})"]),
        ("loss", loss_bce, ["batch[1], the target, is int64 (4,)", "y.float()"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_mismatched_methods(method, function, expected) -> None:
    mine = type("Mine", (Net,), {method: function})()
    mine.constant = torch.zeros(10, device="meta")
    notes = notes_of(mine)
    for part in expected:
        assert part in notes, notes


def test_methods_with_other_arguments() -> None:
    class Two(Net):
        def forward(self, x, y):
            return self.net(x)

    class Three(Net):
        def loss(self, outputs, x, y):
            return outputs.sum()

    assert "the trainer calls forward(self, batch), with the full batch, here a tuple of 2" in notes_of(Two())
    assert "the trainer calls loss(self, outputs, batch)" in notes_of(Three())


def test_frozen_models() -> None:
    model = Net()
    model.requires_grad_(False)
    assert "no parameter of Net requires gradients" in notes_of(model)


@pytest.mark.parametrize(
    "run",
    [
        lambda trainer, loader: trainer.eval(loader),
        lambda trainer, loader: trainer.predict(loader),
        lambda trainer, loader: trainer.find_lr(),
    ],
    ids=["eval", "predict", "find_lr"],
)
def test_other_loops(run) -> None:
    notes = notes_of(classifier(features=5), run=run)
    assert "module is Linear(in_features=5" in notes
    assert "ComposerClassifier.forward had batch[0] float32 (4, 4), batch[1] int64 (4,)." in notes


def test_nested_evaluation_error_describes_its_own_batch() -> None:
    def run(trainer, loader):
        trainer.fit(eval_dataloader=DataLoader(TensorDataset(torch.zeros(2, 4), torch.zeros(2)), batch_size=2))

    assert "batch[1], the target, is float32 (2,)" in notes_of(classifier(), run=run)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (lambda loss: None, "got None. Let loss() return it."),
        (lambda loss: loss.item(), "Return the tensor itself, without item() or float()."),
        (lambda loss: {"loss": loss, "hits": 3}, "Its entry 'hits' is 3: return only losses to minimize"),
        (lambda loss: (loss, None), "Its entry 1 is None"),
        (lambda loss: {}, "got {}."),
        (lambda loss: [], "got []."),
        (lambda loss: "loss", "got 'loss'."),
    ],
)
def test_invalid_losses(value, remedy) -> None:
    mine = type("Mine", (Net,), {"loss": lambda self, outputs, batch: value(outputs.sum())})()
    error = failed(lambda trainer, loader: trainer.fit(), mine)
    assert isinstance(error, TypeError)
    assert str(error).startswith("The model's loss must be a tensor, or a sequence or mapping of tensors; got ")
    assert remedy in str(error)


def test_notes_never_mask_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class OddError(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no text")

    class Mine(Net):
        def loss(self, outputs, batch):
            raise OddError

    assert type(failed(lambda trainer, loader: trainer.fit(), Mine())) is OddError
    monkeypatch.setattr(failure_notes, "_RULES", (lambda facts: 1 / 0,))
    error = failed(lambda trainer, loader: trainer.fit(), classifier(features=5))
    assert "mat1 and mat2" in str(error)
    assert len(error.__notes__) == 1


def test_other_exceptions_are_unchanged() -> None:
    class Mine(Net):
        def forward(self, batch):
            raise KeyError("mine")

    assert not hasattr(failed(lambda trainer, loader: trainer.fit(), Mine()), "__notes__")


def test_nothing_is_inspected_before_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_notes, "facts_of", None)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(model=model, train_dataloader=data(), max_duration=1, optimizers=optimizer, progress_bar=False).fit()


def test_no_note_on_dtypes_that_the_batch_does_not_explain() -> None:
    facts = facts_of(RuntimeError("mat1 and mat2 must have the same dtype"), State(model=Net()))
    assert input_dtype(dataclasses.replace(facts, stage="forward", batch=[torch.ones(1, 4)])) is None


def test_no_note_on_weights_of_which_fsdp_has_gathered_some(monkeypatch) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10).double())
    assert "several dtypes" in notes_of(Net(net))
    monkeypatch.setattr(failure_dtypes, "has_fsdp_units", lambda model: True)
    assert "several dtypes" not in notes_of(Net(net))
    net.__class__ = type("FSDPSequential", (FSDPModule, nn.Sequential), {})
    assert has_fsdp_units(Net(net))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("HIP out of memory.")])
def test_errors_of_memory_name_the_command(error: Exception) -> None:
    state = State(model=nn.Linear(1, 1))
    for _ in range(2):  # of an evaluation during training
        add_notes(error, state)
    assert error.__notes__ == [f"Composer: {ESTIMATE}"]
    told = RuntimeError(f"Out of memory. {ESTIMATE}")
    told.__cause__ = error
    add_notes(told, state)
    assert not hasattr(told, "__notes__")
