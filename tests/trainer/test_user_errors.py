"""Errors of user code, at every stage, get no misleading notes."""

from __future__ import annotations

import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader

from composer import Callback, Trainer
from composer.models import ComposerClassifier
from tests.trainer.test_failure_notes import CROSS_ENTROPY, Net, data, notes_of

FOREIGN = (
    "No space left on device", "Connection to device lost", "device", "no such device: cuda:7", "Invalid device id",
    "cannot find a device for the label", "the tuple is too short", "expected a list", "dict has no key 'x'",
    "sequence length 9 is too long", "batch is a tuple", "None is no label", "unknown dtype", "bad data type in row 3",
    "this codec is not implemented for 'webm'", "the size of the file is 0", "image size is wrong", "shape of the mask",
    "inconsistent number of samples", "dimension of the embedding", "multi-target labels are not read",
    "index 7 is out of bounds", "Target 7 is out of bounds.", "label out of range", "list index out of range",
    "forward() missing 1 required positional argument: 'mask'", "loss() takes 2 positional arguments but 3 were given",
    "Net.forward() missing 1 required positional argument: 'y'", "element 0 of tensors does not require grad",
    "Could not infer output dtype", "CUDA error: device-side assert triggered",
    "mat1 and mat2 must have the same dtype",
    "Expected all tensors to be on the same device", "'Net' object has no attribute 'log'", "expected scalar type Long",
    "'tuple' object has no attribute 'shape'", "argument 'input' (position 1) must be Tensor, not tuple",
    "Using a target size (torch.Size([4])) that is different to the input size (torch.Size([4, 1]))", "",
)  # fmt: skip
KINDS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, OSError, ConnectionError, KeyError)


class Boom(torch.utils.data.Dataset):
    """A dataset that raises."""

    error: Exception

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index):
        raise self.error


def _method(name: str):
    def raising(self, *given, **named):
        raise self.error

    return lambda error: (type("Net", (Net,), {name: raising, "error": error})(), None, [])


def _listener(error: Exception):
    class Mine(Callback):
        def before_loss(self, state, logger):
            raise error

    return Net(), None, [Mine()]


def _data_set(error: Exception):
    boom = Boom()
    boom.error = error
    return Net(), DataLoader(boom, batch_size=4), []


class _Metric(torchmetrics.MeanMetric):
    error: Exception

    def update(self, *given):
        raise self.error


def _metric(error: Exception):
    metric = _Metric()
    metric.error = error
    return ComposerClassifier(nn.Linear(4, 10), train_metrics=metric, val_metrics={}), None, []


class _Optimizer(torch.optim.SGD):
    error: Exception

    def step(self, closure=None):
        raise self.error


STAGES = {
    **{name: _method(name) for name in ("forward", "loss")},
    "callback": _listener, "data set": _data_set, "metric": _metric, "optimizer": lambda error: (Net(), None, []),
}  # fmt: skip


# The gradients are there when an optimizer fails, and it may have changed some weights before.
@pytest.mark.filterwarnings("ignore:An exception in batch 0 was raised while the optimizers stepped")
@pytest.mark.parametrize("stage", STAGES)
def test_errors_of_user_code_get_no_note(stage: str) -> None:
    """Every message in every class, wherever users' code may raise it: an explanation would be a false one."""
    chosen = torch.Generator().manual_seed(len(stage))
    for text in FOREIGN:
        kind = KINDS[int(torch.randint(len(KINDS), (), generator=chosen))]
        for error in (kind(text), (RuntimeError, TypeError, IndexError, AttributeError)[len(text) % 4](text)):
            assert not _notes_at(stage, error), (stage, error)
    assert not _notes_at(stage, OSError(28, "No space left on device"))


def _notes_at(stage: str, error: Exception) -> list[str]:
    try:
        model, loader, callbacks = STAGES[stage](error)
        optimizer = (_Optimizer if stage == "optimizer" else torch.optim.SGD)(model.parameters(), lr=0.1)
        optimizer.error = error
        arguments = {"optimizers": optimizer, "max_duration": 1, "progress_bar": False, "device": "cpu"}
        trainer = Trainer(model=model, train_dataloader=loader or data(), callbacks=callbacks, **arguments)
        trainer.fit()
    except Exception as raised:
        assert raised is error or str(error) in str(raised)
        return [note for note in getattr(raised, "__notes__", []) if note.startswith("Composer: ")]
    raise AssertionError(f"{stage} did not raise")


def test_failing_worker_gets_no_note() -> None:
    boom = Boom()
    boom.error = RuntimeError("Expected all tensors to be on the same device, but found index 7 is out of bounds")
    assert notes_of(Net(), DataLoader(boom, batch_size=4, num_workers=1)) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda self, outputs, batch: int("a device of a dtype"),
        lambda self, outputs, batch: list(batch)[7],
        lambda self, outputs, batch: self.missing,
        lambda self, outputs, batch: [1, 2].shape,
        lambda self, outputs, batch: outputs[:, torch.arange(3) + 9],
        lambda self, outputs, batch: outputs + torch.zeros(3),
        lambda self, outputs, batch: outputs @ torch.zeros(10, 2).double(),
        lambda self, outputs, batch: CROSS_ENTROPY(outputs, batch[1]) + len(3),
        lambda self, outputs, batch: None + 1,
    ],
)
def test_errors_of_other_types_get_no_remedy(function) -> None:
    """In the loss, with outputs and targets that go together: none of the rules is about it."""
    notes = notes_of(type("Mine", (Net,), {"loss": function})())
    assert notes in (
        "",
        "Composer: Mine.loss had outputs float32 (4, 10), batch[0] float32 (4, 4), batch[1] int64 (4,).",
    )


def test_error_names_the_module_within_a_classifier() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 10)

        def forward(self, x, mask):
            return self.linear(x * mask)

    notes = notes_of(ComposerClassifier(Inner(), num_classes=10))
    assert "Inner.forward(float32 (4, 4)), but expects Inner.forward(x, mask)" in notes
    assert "forward(self, batch), with the full batch" not in notes

    class Outer(Net):
        def forward(self, batch):
            return Inner()(batch[0])

    assert "forward(self, batch), with" not in notes_of(Outer())
