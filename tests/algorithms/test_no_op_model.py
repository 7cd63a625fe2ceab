from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import NoOpModel
from composer.algorithms.no_op_model import NoOpModelClass
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model

CASE = Case(
    make=NoOpModel,
    by_hand=None,
    why_no_function="it replaces the model as a whole",
    neutral=None,
    why_not_neutral="it has no setting",
    graphs=0,
)


def test_one_step_by_hand():
    model = NoOpModelClass(nn.Linear(2, 2))
    batch = torch.zeros(2, 1), torch.tensor([1, 3])
    outputs = model(batch)
    assert outputs.tolist() == [1.5, 4.5]
    loss = model.loss(outputs, batch)
    assert loss.item() == pytest.approx((0.5**2 + 1.5**2) / 2)
    loss.backward()
    assert model.weights.grad.item() == pytest.approx((2 * 0.5 * 1 + 2 * 1.5 * 3) / 2)


def test_optimizer_learns_the_number_only():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = loop.start(model, [NoOpModel()], optimizer)
    new = engine.state.model
    assert isinstance(new, NoOpModelClass)
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(new.weights)]
    before = new.weights.item()
    loop.fit(engine, make_batches())
    assert 1 < new.weights.item() < before


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(2), torch.tensor([1, 2])),
        [torch.zeros(2), {"a": torch.zeros(2), "b": torch.tensor([1, 2])}],
        {"labels": torch.tensor([1, 2]), "z": torch.zeros(2)},
        {"image": torch.zeros(2), "class": torch.tensor([1, 2])},
        torch.tensor([1.0, 2.0]),
    ],
)
def test_batches(batch):
    assert NoOpModelClass(nn.Linear(1, 1))(batch).tolist() == [1.5, 3.0]


def test_batch_without_tensors():
    with pytest.raises(TypeError, match="needs a tensor among the targets"):
        NoOpModelClass(nn.Linear(1, 1))(("text", "text"))


def test_takes_over_what_others_ask_for():
    original = nn.Linear(1, 1)
    original.num_classes = 7
    model = NoOpModelClass(original)
    assert model.num_classes == 7
    assert not hasattr(NoOpModelClass(nn.ReLU()), "num_classes")
    assert model.get_metrics(is_train=True) == {}
    assert model.eval_forward((None, torch.ones(1))).tolist() == [1.5]
    assert NoOpModel.required_on_load()
