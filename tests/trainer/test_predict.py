"""Prediction."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from composer import DataSpec
from tests.common import At, Received, Regression, Unsized, regression_data, trainer_of
from tests.on_device import place


@pytest.mark.parametrize("data", [regression_data(3), Unsized(regression_data(3)), {"dataloader": regression_data(3)}])
def test_outputs_of_every_batch(data) -> None:
    model = Regression()
    outputs = trainer_of(model).predict(data)
    assert len(outputs) == 3
    for output, batch in zip(outputs, regression_data(3), strict=True):
        assert torch.equal(output, model(place(batch)).cpu())
        assert not output.requires_grad


def test_subset_and_no_outputs() -> None:
    seen = At("predict_batch_end", lambda state: (state.outputs.shape, state.predict_timestamp.batch.value))
    trainer = trainer_of(callbacks=seen)
    assert len(trainer.predict(regression_data(3), subset_num_batches=2)) == 2
    assert trainer.predict(regression_data(3), return_outputs=False) == []
    assert seen.found == [((2, 1), 1), ((2, 1), 2), ((2, 1), 1), ((2, 1), 2), ((2, 1), 3)]
    assert len(trainer.predict(Unsized(regression_data(3)), subset_num_batches=9)) == 3


def test_outputs_keep_their_structure() -> None:
    class Pair(NamedTuple):
        value: torch.Tensor
        name: str

    class Structured(Regression):
        def forward(self, batch):
            outputs = super().forward(batch)
            return {"pair": Pair(outputs, "a"), "list": [outputs, None]}

    (output,) = trainer_of(Structured()).predict(regression_data(1))
    assert output["pair"].name == "a"
    assert torch.equal(output["pair"].value, output["list"][0])


def test_callbacks_may_edit_outputs_and_see_the_state() -> None:
    def double(state) -> None:
        state.outputs = state.outputs * 2
        assert state.dataloader_label == "predict"
        assert state.dataloader_len == 2

    model = Regression()
    outputs = trainer_of(model, callbacks=At("predict_after_forward", double)).predict(regression_data(2))
    assert torch.equal(outputs[0], 2 * model(place(regression_data(2)[0])).cpu())


def test_transforms() -> None:
    spec = DataSpec(
        regression_data(1),
        batch_transforms=lambda batch: (batch[0] * 0, batch[1]),
        microbatch_transforms=lambda batch: (batch[0] + 1, batch[1]),
    )
    model = Regression()
    (output,) = trainer_of(model).predict(spec)
    assert torch.equal(output, model((place(torch.ones(2, 4)), None)).cpu())


def test_evaluation_mode_and_precision() -> None:
    class Dropped(Regression):
        def forward(self, batch):
            return self.linear(torch.nn.functional.dropout(batch[0], training=self.training))

    model = Dropped()
    trainer = trainer_of(model, precision="amp_bf16")
    first, second = (trainer.predict(regression_data(1))[0] for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == torch.bfloat16
    assert model.training


def test_training_time_does_not_advance() -> None:
    log = Received()
    trainer = trainer_of(loggers=log)
    trainer.fit(duration="2ba")
    before = trainer.state.timestamp
    trainer.predict(regression_data(2))
    assert trainer.state.timestamp == before
    trainer.fit(duration="2ba")
    assert trainer.state.timestamp.batch == 4
