"""The memory of passes with fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from composer.memory.fake_passes import FakePasses

CPU = torch.device("cpu")
FLOAT = 4


def test_peak_of_a_linear_layer() -> None:
    model = nn.Linear(100, 200, bias=False)
    passes = FakePasses(model, torch.zeros(16, 100), CPU)
    weight, outputs = FLOAT * 100 * 200, FLOAT * 16 * 200

    def loss(batch):
        return model(batch).sum()

    assert passes.peak(loss, passes.batch) == weight + 2 * FLOAT  # and the loss; the outputs are freed
    assert passes.peak(loss, passes.batch, gradients=True) == 2 * weight + 2 * FLOAT
    assert passes.peak(loss, passes.batch, gradients=True, counts_gradients=False) == weight + 2 * FLOAT
    assert passes.peak(lambda batch: model(batch).square().sum(), passes.batch) >= weight + outputs


def test_what_is_on_another_device_does_not_count() -> None:
    model = nn.Linear(100, 200)
    passes = FakePasses(model, torch.zeros(16, 100), torch.device("cuda"))
    assert passes.peak(lambda batch: model(batch).sum(), passes.batch) == 0


def test_workspaces_count_while_a_kernel_runs() -> None:
    model = nn.Linear(4, 4, bias=False)
    passes = FakePasses(model, torch.zeros(2, 4), CPU, lambda func, inputs, outputs: 1000)
    assert passes.peak(lambda batch: model(batch).sum(), passes.batch) >= 1000


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [(torch.optim.SGD, 0), (torch.optim.RMSprop, 1), (torch.optim.Adam, 2), (torch.optim.AdamW, 2)],
)
def test_state_of_optimizers(optimizer, copies) -> None:
    model = nn.Linear(100, 200, bias=False)
    made = optimizer(model.parameters(), lr=0.1)
    made.register_step_post_hook(lambda *_: pytest.fail("a hook was called"))
    passes = FakePasses(model, torch.zeros(1, 100), CPU)
    steps = 4 * (copies > 0)  # a counter
    before = model.weight.clone()
    assert passes.optimizer_state(made) == copies * model.weight.nbytes + steps
    assert (dict(made.state), model.weight.grad) == ({}, None)
    assert torch.equal(model.weight, before)
    made.state[model.weight]["step"] = torch.zeros(1)
    assert passes.optimizer_state(made) == 0


def test_optimizer_state_of_no_parameter() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            self.state["total_step"] += 1
            self.state["rates"] *= 0.9
            return super().step(closure)

    model = nn.Linear(100, 200, bias=False)
    optimizer = Counting(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state["total_step"], optimizer.state["rates"] = 1, torch.ones(2)
    passes = FakePasses(model, torch.zeros(1, 100), CPU)
    assert passes.optimizer_state(optimizer) >= model.weight.nbytes
    assert optimizer.state["total_step"] == 1
    assert optimizer.state["rates"].tolist() == [1, 1]


def test_values_that_are_not_there() -> None:
    model = nn.Linear(4, 1)

    def loss(batch):
        if batch.max().item() > 2 or torch.isnan(batch).any():
            raise ValueError
        return model(batch[batch.sum(1) > 0]).sum() / batch.sum().item()

    passes = FakePasses(model, torch.zeros(8, 4), CPU)
    assert passes.peak(loss, passes.batch) > 0


def test_an_operator_without_shapes_raises() -> None:
    library = torch.library.Library("composer_test_fake", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x.detach(), "CPU")
    model = nn.Linear(4, 1)
    passes = FakePasses(model, torch.zeros(8, 4), CPU)
    with pytest.raises((UnsupportedOperatorException, RuntimeError)):
        passes.peak(lambda batch: model(torch.ops.composer_test_fake.twice(batch)).sum(), passes.batch)
    library._destroy()


def test_tensors_that_are_left_are_found() -> None:
    model, kept = nn.Linear(4, 1), []
    passes = FakePasses(model, torch.zeros(8, 4), CPU)

    def loss(batch):
        kept.append(batch + 1)
        return model(batch).sum()

    passes.peak(loss, passes.batch)
    assert [each is kept[0] for each in passes.left()] == [True]
    kept.clear()
    assert passes.left() == []


def test_quantized_optimizer_states_count_by_their_parts() -> None:
    optim = pytest.importorskip("torchao.optim")
    model = nn.Linear(64, 64, bias=False)
    passes = FakePasses(model, torch.zeros(2, 64), torch.device("cpu"))
    with torch.compiler.set_stance("force_eager"):
        found = passes.optimizer_state(optim.AdamW8bit(model.parameters()))
    assert found == 2 * (64 * 64 + 16 * 4 + 256 * 4) + 4
