"""The losses of the samples of a replayed step are those of the loss function of the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from composer.algorithms import LabelSmoothing, MixUp
from tests.trainer.replay import test_replay
from tests.trainer.replay.test_replay import Net, Seen, trainer


def test_sample_losses(tmp_path):
    with trainer(tmp_path, algorithms=MixUp(0.0), device_train_microbatch_size=2) as run:
        record = run.replay(2)
    assert record.start == "seed 11" and record.sample_losses is not None
    assert np.mean(record.sample_losses) == pytest.approx(record.loss, rel=1e-5)
    assert [one.loss for one in record.microbatches] == pytest.approx(
        [np.mean(record.sample_losses[:2]), np.mean(record.sample_losses[2:])], rel=1e-5
    )
    expected = nn.functional.cross_entropy(record.microbatches[0].outputs, record.batch[1][:2], reduction="none")
    assert record.sample_losses[:2] == pytest.approx(expected.tolist(), rel=1e-6)
    assert len(record.outputs) == 2
    with trainer(tmp_path, algorithms=LabelSmoothing(0.5)) as run:  # edits the targets for the loss
        smooth = run.replay(2)
    expected = nn.functional.cross_entropy(smooth.outputs, smooth.batch[1], reduction="none", label_smoothing=0.5)
    assert smooth.sample_losses == pytest.approx(expected.tolist(), rel=1e-6)


class Contrastive(Net):
    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


class Counted(Net):
    """Counts the calls of its loss function, and so notices one more."""

    calls = 0

    def loss(self, outputs, batch):
        self.calls += 1
        return super().loss(outputs, batch) * self.calls


def test_sample_losses_that_are_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(test_replay, "Net", Contrastive)
    with trainer(tmp_path) as run:
        record = run.replay(2)
    assert record.sample_losses is None
    assert "neither the mean" in record.unknown["sample_losses"]
    monkeypatch.setattr(test_replay, "Net", Counted)
    seen = Seen()
    with trainer(tmp_path, [seen]) as run:
        run.fit()
    with trainer(tmp_path) as run:
        record = run.replay(2)
    assert record.loss == seen.steps[2]["loss"]
    assert "neither the mean" in record.unknown["sample_losses"]
    monkeypatch.undo()
    with trainer(tmp_path, algorithms=MixUp(0.3, interpolate_loss=True)) as run:
        record = run.replay(2)
    assert "combines several losses" in record.unknown["sample_losses"]
