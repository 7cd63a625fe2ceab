"""The metrics of a model are checked when the trainer is created."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import MeanSquaredError, MetricCollection

from composer import Trainer
from tests.common import Regression, regression_data


def of(returned, *, in_training: bool):
    def get_metrics(self, is_train):
        return returned if is_train == in_training else {}

    return type("Mine", (Regression,), {"get_metrics": get_metrics})()


@pytest.mark.parametrize("in_training", [True, False])
@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "got None."),
        ([1], "got [1]."),
        (MeanSquaredError(), "got MeanSquaredError()."),
        ({"error": MeanSquaredError}, "its entry 'error' is <class "),
        ({"error": torch.nn.functional.mse_loss}, "its entry 'error' is <function mse_loss"),
    ],
)
def test_other_values_than_metrics_by_name(in_training, returned, shown) -> None:
    with pytest.raises(TypeError) as raised:
        Trainer(model=of(returned, in_training=in_training), eval_dataloader=regression_data(1), progress_bar=False)
    start = f"Mine.get_metrics(is_train={in_training}) must return {{'accuracy': metric}}, or {{}} for none; {shown}"
    assert str(raised.value).startswith(start)


def test_a_collection_is_accepted() -> None:
    model = of(MetricCollection({"error": MeanSquaredError()}), in_training=False)
    trainer = Trainer(model=model, eval_dataloader=regression_data(1), progress_bar=False)
    trainer.eval()
    assert sorted(trainer.state.eval_metrics["eval"]) == ["error"]
