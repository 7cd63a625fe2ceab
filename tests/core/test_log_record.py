"""Log records: values are read back from the device completely, and later steps do not change them."""

from __future__ import annotations

import dataclasses
import threading
from array import array
from collections import UserDict, deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from composer.core import Logger, LoggerDestination, State, _log_record
from composer.core._log_record import LogRecord, complete_records, copy_value, dense_tensor
from composer.core._snapshot import snapshot
from composer.core.timestamp import Timestamp
from tests.streams import FakeCuda, RaceError, side_stream


def logged(as_numbers: bool) -> LogRecord:
    """An entry of device tensors that are changed after they were logged."""
    values: dict[str, Any] = {"loss": torch.ones(()).to("cuda"), "norm": torch.ones(1).to("cuda")}
    values |= {"vector": torch.ones(3).to("cuda"), "nested": [torch.ones(2).to("cuda")]}
    metrics = {name: value if name == "nested" else copy_value(name, value) for name, value in values.items()}
    entry = LogRecord(metrics, 1, Timestamp(), as_numbers)
    for name in ("loss", "norm", "vector"):
        values[name].add_(1)
    return entry


@pytest.mark.parametrize("as_numbers", [True, False])
def test_values_read_are_complete(as_numbers: bool) -> None:
    with FakeCuda():
        entry = logged(as_numbers)
        complete_records([entry])
        found = entry.metrics
        assert not any(value.is_cuda for value in (found["vector"], found["nested"][0]))
        assert (float(found["loss"]), float(found["norm"])) == (1.0, 1.0)
        assert (found["vector"].sum().item(), found["nested"][0].sum().item()) == (3.0, 2.0)


def test_numbers_of_many_steps_are_read_from_a_device_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(self.numel()) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("A number was read by itself."))
    with FakeCuda():
        entries = [LogRecord({"loss": torch.tensor(0.5).to("cuda")}, step, Timestamp(), True) for step in range(100)]
        complete_records(entries)
    assert set(reads) == {100}  # FakeCuda calls it once more
    assert [entry.metrics["loss"] for entry in entries] == [0.5] * 100


@pytest.mark.parametrize("name", ["loss", "vector"])
def test_fake_streams_detect_an_unsynchronized_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: to(self, "cpu", non_blocking=True))
    monkeypatch.setattr(_log_record, "_to_host", lambda tensor: tensor.to("cpu", non_blocking=True))
    with FakeCuda(), pytest.raises(RaceError, match="'host' uses what stream 'default' may not have finished"):
        entry = logged(as_numbers=False)
        entry.metrics = {name: entry.metrics[name]}
        complete_records([entry])
        entry.metrics[name].sum().item()


def test_fake_streams_detect_values_of_an_unsynchronized_stream() -> None:
    with FakeCuda(), pytest.raises(RaceError):
        with side_stream():
            value = torch.ones(()).to("cuda")
        entry = LogRecord({"loss": value}, 1, Timestamp(), as_numbers=True)
        complete_records([entry])


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:Sparse CSC tensor support is in beta"
)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_value_is_copied_to_a_dense_one(layout: torch.layout) -> None:
    value = torch.eye(2, requires_grad=True).to_sparse(layout=layout)
    copied = copy_value("m", {"part": [value]})["part"][0]
    value.detach().values().zero_()
    assert copied.layout is torch.strided
    assert copied.tolist() == [[1, 0], [0, 1]]
    assert not copied.requires_grad


class Items(NamedTuple):
    items: list[Any]


@dataclasses.dataclass(frozen=True)
class Config:
    layers: list[Any]
    name: str = "a"


def mutables() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Values that can be modified, by name, and how."""

    def fill(one: Any) -> None:
        one[0] = 2

    return {
        "list": ([1], fill),
        "dict": ({"a": [1]}, lambda one: fill(one["a"])),
        "tuple": ((1, [1]), lambda one: fill(one[1])),
        "named tuple": (Items([1]), lambda one: fill(one.items)),
        "set": ({1}, lambda one: one.add(2)),
        "set in a list": ([{1}], lambda one: one[0].add(2)),
        "deque": (deque([1], maxlen=1), lambda one: one.append(2)),
        "deque of lists": (deque([[1]]), lambda one: fill(one[0])),
        "user dict": (UserDict(a=1), lambda one: one.update(a=2)),
        "read-only view": (MappingProxyType({"a": [1]}), lambda one: fill(one["a"])),
        "bytes": (bytearray(b"a"), fill),
        "array": (array("i", [1]), fill),
        "numpy": (np.ones(2), fill),
        "numpy objects": (np.array([[1], None], dtype=object), lambda one: fill(one[0])),
        "tensor": (torch.ones(2), fill),
        "dataclass": (Config([1]), lambda one: fill(one.layers)),
    }


@pytest.mark.parametrize("kind", mutables())
def test_what_is_modified_after_it_was_logged_was_logged_before(kind: str) -> None:
    class Keeps(LoggerDestination):
        __flush_interval__ = 100

        def log_metrics(self, metrics, step=None):
            received.append(metrics["m"])

        def log_hyperparameters(self, hyperparameters):
            received.append(hyperparameters["m"])

        def log_table(self, columns, rows, name="Table", step=None):
            received.append(rows[0][0])

        def log_traces(self, traces):
            received.append(traces["m"])

    received: list[Any] = []
    logger = Logger(State(model=torch.nn.Linear(1, 1)), Keeps())
    logger.deferred = True
    value, modify = mutables()[kind]
    logger.log_metrics({"m": value})
    logger.log_hyperparameters({"m": value})
    logger.log_table(["c"], [[value]])
    logger.log_traces({"m": value})
    modify(value)
    logger.flush()
    expected, _ = mutables()[kind]
    if isinstance(value, Mapping):
        expected = dict(expected)
    assert [repr(one) for one in received] == [repr(expected)] * 4


def test_only_containers_are_copied() -> None:
    """Other objects may be large, as models are, or have no copy, as locks have."""
    lock = threading.Lock()
    shape, itself = torch.Size([2]), []
    itself.append(itself)
    assert snapshot({"lock": [lock]})["lock"][0] is lock
    assert snapshot(shape) is shape
    assert snapshot(Config) is Config
    assert snapshot(itself)[0] is itself


def test_what_cannot_be_dense_is_refused_by_name() -> None:
    at, shape = torch.zeros(2, 1, dtype=torch.long), (2**31, 2**31 - 1)
    huge = torch.sparse_coo_tensor(at, torch.ones(1), shape, check_invariants=True)
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for value in (huge, ragged):
        with pytest.raises(ValueError, match=r"^The metric 'm' has the layout .* cannot be made dense .* summary"):
            dense_tensor("m", value)


def test_a_dense_value_is_not_copied_again() -> None:
    value = torch.ones(2)
    assert dense_tensor("m", value) is value


def test_memory_that_runs_out_keeps_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(torch.Tensor, "to_dense", fail)
    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        dense_tensor("m", torch.ones(1).to_sparse())
