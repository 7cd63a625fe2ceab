"""Batches of another form than the model expects: the error gets a note with the entry and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.test_failure_notes import CROSS_ENTROPY, Net, classifier, conv, data, images, notes_of

KEYS = DataLoader([{"image": torch.randn(4), "label": n} for n in range(4)], batch_size=4)  # type: ignore[arg-type]


def of_key(self, batch):
    return self.net(batch["x"])


def of_pair(self, batch):
    x, _ = batch
    return self.net(x)


def of_three(self, batch):
    x, _, _ = batch
    return self.net(x)


def of_batch(self, batch):
    return self.net(batch)


def loss_of_key(self, outputs, batch):
    return CROSS_ENTROPY(outputs, batch["y"])


def loss_of_pair(self, outputs, batch):
    _, y = batch
    return CROSS_ENTROPY(outputs, y)


def mine(**methods) -> Net:
    return type("Mine", (Net,), methods)()


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # torch, of a tensor indexed by text
@pytest.mark.parametrize(
    ("model", "loader", "expected"),
    [
        (mine(forward=of_key), data(), ["the batch is a tuple of 2, without keys", "by position: x, y = batch."]),
        (mine(loss=loss_of_key), data(), ["the batch is a tuple of 2, without keys"]),
        (mine(forward=of_key), [torch.randn(3, 4)], ["the batch is float32 (3, 4), without keys", ": x = batch."]),
        (mine(forward=of_key), KEYS, ["the batch is a dict of 2, which has no key 'x'", "Its keys: 'image', 'label'."]),
        (mine(forward=of_three), data(), ["the batch is a tuple of 2, which is unpacked", ": x, y = batch."]),
        (mine(forward=of_pair), [tuple(torch.randn(3, 2, 4))], ["a tuple of 3, which is", ": x, y, z = batch."]),
        (mine(forward=of_pair), [torch.randn(3, 4)], ["the batch is float32 (3, 4), which is unpacked"]),
        (mine(forward=of_pair), KEYS, ["'image' is a key of the batch, a dict of 2, not its value",
                                       "Write image = batch['image'], label = batch['label']."]),
        (mine(forward=lambda self, batch: self.net(batch["image"]), loss=loss_of_pair), KEYS, ["'label' is a key of"]),
        (classifier(), [(np.zeros((3, 4)), torch.arange(3))], ["batch[0] is a numpy array of shape (3, 4)"]),
        (classifier(), [(torch.zeros(3, 4), np.arange(3))], ["batch[1] is a numpy array of shape (3,)", "from_numpy"]),
        (classifier(), [(torch.zeros(1, 4), ("cat",))], ["batch[1] is text, such as 'cat'", "class indices"]),
        (mine(), [(torch.zeros(2, 4), ["cat", "dog"])], ["batch[1] is text, such as 'cat'"]),
        (mine(), [(torch.zeros(2, 4), (0, 1))], ["batch[1] is a tuple of 2, not a tensor", "torch.as_tensor(x)"]),
    ],
)  # fmt: skip
def test_batches_of_another_form(model, loader, expected) -> None:
    notes = notes_of(model, loader)
    for part in expected:
        assert part in notes, notes


def test_convolutions_of_the_full_batch_or_of_arrays() -> None:
    """Their error lists signatures, in place of the argument that is no tensor."""
    wrong = conv(3)
    wrong.__class__ = type("Mine", (Net,), {"forward": of_batch})
    assert "gets the full batch, here a tuple of 2" in notes_of(wrong, images(3, 8, 8))
    arrays = [(np.zeros((2, 3, 8, 8), dtype=np.float32), torch.zeros(2).long())]
    assert "batch[0] is a numpy array of shape (2, 3, 8, 8), not a tensor." in notes_of(conv(3), arrays)


@pytest.mark.parametrize(("samples", "size"), [(5, None), (8, 3)], ids=["rest of an epoch", "rest of a batch"])
def test_batch_normalization_of_one_sample(samples, size) -> None:
    model = Net(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 10)))
    loader = DataLoader(TensorDataset(torch.randn(samples, 4), torch.arange(samples)), batch_size=4)
    notes = notes_of(model, loader, lambda trainer, loader: trainer.fit(device_train_microbatch_size=size))
    assert "has one sample, which batch normalization cannot normalize" in notes
    assert "drop_last=True" in notes
    assert "another device_train_microbatch_size" in notes


def test_errors_about_something_else_get_no_note() -> None:
    def of_own_dict(self, batch):
        return {"a": 1}["image"]

    def of_own_tuple(self, batch):
        _, _, _ = self.pair

    def of_shape(self, batch):
        _, _, _ = batch[0].shape

    model = mine(forward=of_own_tuple)
    model.pair = (1, 2)
    assert notes_of(model, [tuple(torch.randn(3, 2, 4))]) == ""
    assert notes_of(mine(forward=of_shape), [tuple(torch.randn(4, 2, 4, 1, 1))]) == ""
    assert notes_of(mine(forward=of_own_dict)) == ""
    assert notes_of(mine(forward=of_own_dict), KEYS) == ""
