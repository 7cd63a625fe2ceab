"""Rolling back what running a batch changed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import CatMetric, MeanSquaredError, SumMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.wrappers import MultioutputWrapper

from composer import State
from composer.trainer.auto_microbatch.batch_rollback import BatchRollback, MetricStates


class Mixed(nn.Module):
    """Running statistics, a table that nothing changes, a buffer that is replaced, and one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("last", None)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.last = x.sum()
        self.steps = self.steps + 1
        return nn.functional.dropout(self.norm(x))


def contents(model: nn.Module) -> list[torch.Tensor | None]:
    return [
        None if module._buffers[name] is None else module._buffers[name].clone()
        for module in model.modules()
        for name in module._buffers
    ]


def test_every_batch_can_be_replayed() -> None:
    """Also after it is known which buffers change, more often than once."""
    model = Mixed()
    replay = BatchRollback(State(model=model))
    for _ in range(6):
        replay.save()
        before, batch = contents(model), torch.rand(4, 2, generator=torch.Generator().manual_seed(1))
        outputs = []
        for _ in range(3):
            outputs.append((model(batch), random.random(), np.random.rand(), contents(model)))
            replay.restore()
            for now, old in zip(contents(model), before, strict=True):
                assert (now is None and old is None) or torch.equal(now, old)
        first, *others = outputs
        for other in others:
            assert torch.equal(first[0], other[0])
            assert first[1:3] == other[1:3]
        model(batch)


class Large(nn.Module):
    """A large buffer, written from some batch on in a way custom."""

    def __init__(self, since: int, write) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(2**18))
        self.batch, self.since, self.write = 0, since, write

    def forward(self):
        if self.batch >= self.since:
            self.write(self)


def replace(model: nn.Module) -> None:
    model.table = model.table + 1


def replace_data(model: nn.Module) -> None:
    model.table.data = model.table.data + 1


def grow(model: nn.Module) -> None:
    model.table.data = torch.cat([model.table.data, torch.ones(1)])


def write_without_version_bump(model: nn.Module) -> None:
    model.table.data.add_(1)


WRITES = {"in place": lambda model: model.table.add_(1), "replaced": replace, "other data": replace_data, "grown": grow}


def values_of_passes(model: Large, batches: int) -> None:
    """Each batch is run twice, the second time as if for the first."""
    replay = BatchRollback(State(model=model))
    for model.batch in range(batches):
        replay.save()
        before = model.table.clone()
        model()
        replay.restore()
        replay.restore()
        assert torch.equal(model.table, before)
        model()


@pytest.mark.parametrize("since", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("kind", sorted(WRITES))
def test_large_buffer_may_change_in_any_batch(kind, since) -> None:
    model = Large(since, WRITES[kind])
    values_of_passes(model, 7)
    assert (len(model.table) if kind == "grown" else model.table[0]) == (2**18 if kind == "grown" else 0) + 7 - since


@pytest.mark.parametrize("since", [0, 2])
def test_large_buffer_written_without_version_bump_early(since) -> None:
    model = Large(since, write_without_version_bump)
    values_of_passes(model, 7)
    assert model.table[0] == 7 - since


def test_large_buffer_written_without_version_bump_later_raises() -> None:
    """Rather than left with the values of a batch that was half done."""
    with pytest.raises(RuntimeError, match=r"buffer 'table' of Large cannot be restored: .*`.data`"):
        values_of_passes(Large(4, write_without_version_bump), 7)


def test_small_buffers_may_be_written_without_version_bump() -> None:
    """As batch normalization writes its running statistics."""
    norm = nn.BatchNorm1d(2, momentum=None)
    replay = BatchRollback(State(model=norm))
    for batch in range(8):
        norm.train(batch >= 5)
        replay.save()
        before = contents(norm)
        norm(torch.rand(4, 2))
        replay.restore()
        assert all(torch.equal(now, old) for now, old in zip(contents(norm), before, strict=True))
        norm(torch.rand(4, 2))
    assert norm.num_batches_tracked == 3


@pytest.mark.parametrize("since", range(8))
def test_one_of_several_small_buffers_is_replaced(since) -> None:
    """The others are in place, and are saved together; then another shape, and in place again."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    replay = BatchRollback(State(model=model))
    for batch in range(16):
        if batch == since:
            model[0].running_mean = torch.rand(2)
        if batch == since + 4:
            model[1].running_var.data = model[1].running_var.data.clone()
        replay.save()
        before = contents(model)
        for _ in range(2):
            model(torch.rand(4, 2))
            if batch == since + 2:
                model[1].running_mean = torch.rand(2)
            replay.restore()
            assert all(torch.equal(now, old) for now, old in zip(contents(model), before, strict=True))
        model(torch.rand(4, 2))
    assert replay._in_place is not None
    assert not replay._others


def test_a_buffer_that_is_replaced_in_each_batch_does_not_slow_down_others() -> None:
    model = Mixed()
    replay = BatchRollback(State(model=model))
    for _ in range(8):
        replay.save()
        model(torch.rand(4, 2))
    assert sorted(buffer.name for buffer in replay._others) == ["last", "steps"]


LAYOUTS = {
    "transposed": lambda buffer: buffer.data.t(),
    "a part": lambda buffer: buffer.data[:1],
    "another shape": lambda buffer: buffer.data.view(-1),
    "bits": lambda buffer: buffer.data.view(torch.int32),
    "narrower": lambda buffer: buffer.data.half(),
    "empty": lambda buffer: buffer.data[:0],
    "with gaps": lambda buffer: torch.arange(32.0).view(4, 8)[:, ::2],
    "complex": lambda buffer: torch.complex(buffer.data, buffer.data).conj(),
    "negative": lambda buffer: torch.complex(buffer.data, buffer.data).conj().imag,
}


@pytest.mark.parametrize("since", [0, 2, 5])
@pytest.mark.parametrize("during", [True, False])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_small_buffer_may_get_another_layout(layout, during, since) -> None:
    """In a batch or between two; with the same memory or another, and back again."""
    model = nn.Module()
    model.register_buffer("table", torch.arange(16.0).view(4, 4))
    buffer, first = model.table, model.table.data
    replay = BatchRollback(State(model=model))
    for batch in range(9):
        if not during:
            buffer.data = LAYOUTS[layout](buffer) if batch == since else first if batch == since + 1 else buffer.data
        replay.save()
        before = buffer.clone()
        if during and batch == since:
            buffer.data = LAYOUTS[layout](buffer)
        buffer.add_(1)
        replay.restore()
        assert model.table is buffer
        assert (buffer.shape, buffer.dtype) == (before.shape, before.dtype)
        assert torch.equal(buffer, before)
        buffer.mul_(2)


def test_small_complex_buffer_may_be_conjugated() -> None:
    """Which changes neither its memory nor its layout."""
    model = nn.Module()
    model.register_buffer("table", torch.arange(4.0) + 1j)
    replay = BatchRollback(State(model=model))
    for _ in range(8):
        replay.save()
        before = model.table.resolve_conj().clone()
        model.table.mul_(2)
        replay.restore()
        assert torch.equal(model.table, before)
        model.table.data = model.table.data.conj()


def test_buffer_that_moves_to_another_module() -> None:
    """Under the same name, so that only its place changes."""
    model = nn.Sequential(*(nn.Module() for _ in range(3)))
    for module in model[:2]:
        module.register_buffer("table", torch.zeros(2))
    replay = BatchRollback(State(model=model))
    for batch in range(9):
        if batch == 6:  # they are in place
            model[2].register_buffer("table", model[0]._buffers.pop("table"))
        replay.save()
        before = contents(model)
        for buffer in model.buffers():
            buffer.add_(batch + 1)
        replay.restore()
        assert [hasattr(module, "table") for module in model] == [batch < 6, True, batch >= 6]
        assert all(torch.equal(now, old) for now, old in zip(contents(model), before, strict=True))
        model[1].table.add_(1)


def test_buffer_created_in_forward_is_recreated() -> None:
    """In whatever batch: the second time it is not there either."""

    class Lazy(nn.Module):
        def forward(self, batch):
            if batch == 4:
                self.register_buffer("seen", torch.zeros(()), persistent=False)
            if batch >= 4:
                self.seen += 1

    model = Lazy()
    replay = BatchRollback(State(model=model))
    for batch in range(7):
        replay.save()
        model(batch)
        replay.restore()
        assert hasattr(model, "seen") is (batch > 4)
        model(batch)
    assert model.seen == 3


def test_overlapping_buffer_is_left_alone() -> None:
    """Nobody can write it, nor has to."""
    model = nn.Module()
    model.register_buffer("expanded", torch.ones(()).expand(4))
    replay = BatchRollback(State(model=model))
    for _ in range(6):
        replay.save()
        replay.restore()
    assert torch.equal(model.expanded, torch.ones(4))


class Copies(TorchDispatchMode):
    """Adds up how many elements are written."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.elements += result.numel() if isinstance(result, torch.Tensor) and "detach" not in str(func) else 0
        return result


def test_large_tables_are_not_copied_in_each_batch() -> None:
    model = nn.Sequential(Mixed(), Large(100, replace))
    replay = BatchRollback(State(model=model))
    written = []
    for _ in range(7):
        with Copies() as copies:
            replay.save()
        written.append(copies.elements)
        model[0](torch.rand(4, 2))
    assert all(elements >= 2**18 for elements in written[:4])
    assert all(elements < 2**16 for elements in written[4:])  # most of it random generators


@pytest.mark.parametrize(
    ("metric", "update"),
    [
        (SumMetric(), lambda m: m.update(torch.rand(3))),
        (CatMetric(), lambda m: m.update(torch.rand(3))),
        (MeanSquaredError(), lambda m: m.update(torch.rand(3), torch.rand(3))),
        (MulticlassAccuracy(3), lambda m: m.update(torch.rand(4, 3), torch.randint(3, (4,)))),
        (MultioutputWrapper(MeanSquaredError(), 2), lambda m: m.update(torch.rand(3, 2), torch.rand(3, 2))),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("before", [0, 2])
def test_metrics(metric, update, before) -> None:
    metric.reset()
    for _ in range(before):
        update(metric)
    called, expected = metric.update_called, metric.compute() if before else None
    states = MetricStates({"metric": metric})
    for _ in range(2):
        update(metric)
        metric.compute()
        states.restore()
        assert metric.update_called is called
        if before:
            assert torch.equal(metric.compute(), expected)
