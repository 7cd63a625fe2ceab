from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from composer.core import Callback, Logger, LoggerDestination, State, Timestamp


class Keeps(LoggerDestination):
    """Keeps each call as (kind, arguments ...)."""

    def __init__(self, flush_interval=1, name="keeps", calls=None):
        self.__flush_interval__, self.name = flush_interval, name
        self.calls = [] if calls is None else calls

    def log_metrics(self, metrics, step=None):
        self.calls.append(("metrics", metrics, step))

    def log_hyperparameters(self, hyperparameters):
        self.calls.append(("hyperparameters", hyperparameters))

    def log_table(self, columns, rows, name="Table", step=None):
        self.calls.append(("table", columns, rows, name, step))

    def log_images(self, images, name="Images", channels_last=False, step=None, masks=None, labels=None, table=True):
        self.calls.append(("images", images, name, channels_last, step, masks, labels, table))

    def log_traces(self, traces):
        self.calls.append(("traces", traces))

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        self.calls.append(("file", state, remote_file_name, file_path, overwrite))

    def can_upload_files(self):
        return True

    def __suspend__(self):
        self.calls.append(("suspend",))


def state_of(**fields) -> State:
    state = State(model=torch.nn.Linear(1, 1), run_name="run", **fields)
    state.timestamp = Timestamp(batch=7, epoch=1)
    return state


def logger_of(*destinations, deferred=False, **arguments) -> Logger:
    logger = Logger(state_of(), destinations, **arguments)
    logger.deferred = deferred
    return logger


@pytest.fixture
def reads(monkeypatch):
    """Counts what would wait for a device: every way in which the value of a tensor reaches Python."""
    counted = []
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
        original = getattr(torch.Tensor, name)

        def counting(self, *args, name=name, original=original):
            counted.append(name)
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counting)
    return counted


class Operations(TorchDispatchMode):
    """Keeps the names of the operations that leave the device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten._to_copy.default):
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class TestDestinations:
    def test_accepted_types(self):
        one, two = Keeps(), Keeps()
        state = state_of()
        assert Logger(state).destinations == Logger(state, ()).destinations == ()
        assert Logger(state, one).destinations == (one,)
        assert Logger(state, [one, two]).destinations == (one, two)

    @pytest.mark.parametrize("given", [[3], 3, [Keeps], "file", [Callback()]])
    def test_invalid_destinations(self, given):
        shown = given[0] if isinstance(given, list) else given
        with pytest.raises(
            TypeError, match=f"^loggers must be LoggerDestination objects; got {re.escape(repr(shown))}"
        ):
            Logger(state_of(), given)

    def test_on_error_is_checked(self):
        with pytest.raises(ValueError, match=r"^on_error must be one of 'warn', 'raise', but got 'rise'\. Did"):
            Logger(state_of(), on_error="rise")

    def test_base_class_accepts_and_discards_everything(self):
        base = LoggerDestination()
        base.log_metrics({"m": 1})
        base.log_hyperparameters({})
        base.log_table([], [])
        base.log_traces({})
        base.log_images([])
        base.upload_file(state_of(), "name", Path("file"), overwrite=False)
        base.__suspend__()
        assert not base.can_upload_files()
        message = "LoggerDestination does not store files, so 'weights.pt' cannot be downloaded."
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            base.download_file("weights.pt", "here")

    def test_due(self):
        state = state_of()
        destination = Keeps(flush_interval=3)
        due = []
        for batch in range(7):
            state.timestamp = Timestamp(batch=batch)
            due.append(destination.__due__(state))
        assert due == [True, False, False, True, False, False, True]


class TestRefusedMetrics:
    """What no logger can write is refused where it is logged, whatever the loggers, and nothing else is lost."""

    @pytest.mark.parametrize("loggers", [(), (Keeps(),)], ids=["no logger", "logger"])
    @pytest.mark.parametrize("value", [torch.ones((), device="meta"), torch.ones(3, device="meta")])
    def test_tensors_without_data(self, loggers, value):
        for given in (value, [1, value], {"part": (value,)}):
            with pytest.raises(TypeError, match=r"^The metric 'bad' is a tensor on the device 'meta' of shape \("):
                logger_of(*loggers).log_metrics({"good": 1, "bad": given})

    @pytest.mark.parametrize("loggers", [(), (Keeps(),)], ids=["no logger", "logger"])
    @pytest.mark.parametrize("name", [1, None, ("a", 1)])
    def test_names_that_are_no_text(self, loggers, name):
        message = f"The name of a metric must be a string, but got {name!r} of type {type(name).__name__}. Convert it"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            logger_of(*loggers).log_metrics({name: 1.0})

    def test_records_logged_before_are_delivered(self):
        keeps = Keeps()
        logger = logger_of(keeps, deferred=True)
        logger.enqueue({"loss": torch.tensor(0.5)})
        logger.log_metrics({"sparse": torch.ones(1).to_sparse(), "eye": torch.eye(2).to_sparse()})
        with pytest.raises(TypeError, match="'bad'"):
            logger.log_metrics({"bad": torch.ones((), device="meta")})
        logger.flush()
        (_, first, _), (_, second, _) = keeps.calls
        assert first == {"loss": 0.5}
        assert (second["sparse"].tolist(), second["eye"].tolist()) == ([1], [[1, 0], [0, 1]])


class TestSteps:
    def test_the_number_of_batches_by_default(self):
        keeps = Keeps()
        logger = logger_of(keeps)
        logger.log_metrics({"m": 1})
        logger.log_metrics({"m": 2}, step=3)
        logger.log_metrics({"m": 3}, step=0)
        logger.log_table(["a"], [[1]])
        logger.log_table(["a"], [[1]], "mine", 0)
        logger.log_images("an image")
        logger.log_images("an image", "mine", True, 0, {"m": "mask"}, {1: "cat"}, False)
        assert keeps.calls == [
            ("metrics", {"m": 1}, 7),
            ("metrics", {"m": 2}, 3),
            ("metrics", {"m": 3}, 0),
            ("table", ["a"], [[1]], "Table", 7),
            ("table", ["a"], [[1]], "mine", 0),
            ("images", "an image", "Images", False, 7, None, None, True),
            ("images", "an image", "mine", True, 0, {"m": "mask"}, {1: "cat"}, False),
        ]

    def test_step_is_that_of_logging_not_delivery(self):
        keeps = Keeps()
        logger = logger_of(keeps, deferred=True)
        logger.log_metrics({"m": 1})
        logger._state.timestamp = Timestamp(batch=50)
        logger.log_metrics({"m": 2})
        logger.flush()
        assert keeps.calls == [("metrics", {"m": 1}, 7), ("metrics", {"m": 2}, 50)]

    def test_tables_and_images_do_not_advance_the_step(self):
        """LogAxis: every destination gets the same step for the same event, whatever is logged in between."""
        first, second = Keeps(), Keeps(flush_interval=5)
        logger = logger_of(first, second, deferred=True)
        logger.log_metrics({"m": 1})
        logger.log_table([], [], step=100)
        logger.log_images([], step=200)
        logger.log_metrics({"m": 2})
        assert logger._state.timestamp.batch == 7
        logger.flush()
        steps = [[(call[0], call[-1]) for call in d.calls if call[0] == "metrics"] for d in (first, second)]
        assert steps == [[("metrics", 7)] * 2] * 2

    def test_receive_gets_the_time_of_logging_too(self):
        got = []

        class Timed(LoggerDestination):
            def __receive__(self, metrics, step, timestamp):
                got.append((metrics, step, timestamp.epoch.value))

        logger_of(Timed()).log_metrics({"m": 1}, step=2)
        assert got == [({"m": 1}, 2, 1)]


class TestQueue:
    def test_delivered_at_once_unless_deferred(self):
        keeps = Keeps()
        logger_of(keeps).log_metrics({"m": torch.tensor(0.5)})
        assert keeps.calls == [("metrics", {"m": 0.5}, 7)]

    def test_without_destinations_nothing_is_kept_or_read(self, reads):
        logger = logger_of(deferred=True)
        logger.log_metrics({"m": torch.tensor(0.5)})
        logger.enqueue({"m": torch.tensor(0.5)})
        assert not logger.poll()
        logger.deliver()
        logger.flush()
        logger.log_table([], [])
        assert reads == []

    def test_one_transfer_for_a_hundred_steps_and_two_destinations(self, reads):
        first, second = Keeps(), Keeps()
        logger = logger_of(first, second, deferred=True)
        with Operations() as operations:
            for step in range(100):
                logger.log_metrics({"loss": torch.tensor(float(step)), "norm": torch.tensor([step * 2.0])}, step)
            assert (reads, operations.names) == ([], [])
            logger.flush()
        assert (reads, operations.names) == (["cpu"], [])
        expected = [("metrics", {"loss": float(step), "norm": step * 2.0}, step) for step in range(100)]
        assert first.calls == second.calls == expected
        logger.flush()
        assert len(first.calls) == 100

    def test_one_transfer_for_each_dtype(self, reads):
        keeps = Keeps()
        logger = logger_of(keeps, deferred=True)
        values = {
            "float": torch.tensor(0.1, dtype=torch.float64),
            "half": torch.tensor([[0.5]], dtype=torch.bfloat16),
            "long": torch.tensor(2**60 + 1),
            "bool": torch.tensor(True),
            "long too": torch.tensor([3]),
        }
        logger.log_metrics(values)
        logger.flush()
        assert reads == ["cpu"] * 4
        got = keeps.calls[0][1]
        for name, value in values.items():
            assert torch.equal(got[name], value)
            assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape)
        logger.enqueue(values)
        logger.flush()
        assert reads == ["cpu"] * 4 + ["item"] * 5  # on the host there is nothing to transfer
        got = keeps.calls[1][1]
        assert got == {"float": 0.1, "half": 0.5, "long": 2**60 + 1, "bool": True, "long too": 3}
        assert [type(value) for value in got.values()] == [float, float, int, bool, int]

    def test_values_are_read_once_for_all_destinations(self, reads):
        often, seldom = Keeps(1), Keeps(10)
        logger = logger_of(often, seldom, deferred=True)
        logger.log_metrics({"loss": torch.tensor(1.0)})
        assert logger.poll()
        logger.deliver()
        assert (len(often.calls), len(seldom.calls), reads) == (1, 0, ["cpu"])
        logger.flush()
        assert (len(often.calls), len(seldom.calls), reads) == (1, 1, ["cpu"])

    def test_other_values_are_delivered_unchanged(self):
        keeps = Keeps()
        marker = object()
        vector = torch.arange(3)
        logger_of(keeps).log_metrics({"vector": vector, "text": "a", "none": None, "thing": marker, "n": 3})
        got = keeps.calls[0][1]
        assert torch.equal(got.pop("vector"), vector)
        assert got == {"text": "a", "none": None, "thing": marker, "n": 3}

    def test_numpy_scalars_are_unchanged(self):
        keeps = Keeps()
        logger_of(keeps).log_metrics({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)})
        got = keeps.calls[0][1]
        assert got == {"a": 0.5, "b": 3, "c": True}
        assert [type(value) for value in got.values()] == [np.float32, np.int64, np.bool_]

    def test_tensors_in_containers_are_copies_without_a_graph(self):
        """What metrics such as a curve compute, and whatever a callback logs."""
        keeps = Keeps()
        logger = logger_of(keeps, deferred=True)
        weight = torch.nn.Parameter(torch.ones(2))
        logger.log_metrics({"curve": (weight * 2, [weight, 3]), "by class": {"cat": weight * 3}})
        state = torch.zeros(3)  # as a metric returns what it counts in
        logger.enqueue({"counts": state, "both": (state, state)}, as_numbers=False)
        logger.flush()
        state.add_(1)
        with torch.no_grad():
            weight.add_(1)
        got = keeps.calls[0][1] | keeps.calls[1][1]
        assert got["curve"][0].tolist() == [2, 2]
        assert got["curve"][1][0].tolist() == [1, 1]
        assert got["curve"][1][1] == 3
        assert got["by class"]["cat"].tolist() == [3, 3]
        assert (got["counts"].tolist(), got["both"][1].tolist()) == ([0, 0, 0], [0, 0, 0])
        assert not got["curve"][0].requires_grad
        assert type(got["curve"][1][0]) is torch.Tensor

    def test_values_have_separate_memory(self):
        keeps = Keeps()
        logger = logger_of(keeps, deferred=True)
        for step in range(10):
            logger.log_metrics({"a": torch.tensor(float(step))}, step)
        logger.flush()
        values = [metrics["a"] for _, metrics, _ in keeps.calls]
        values[0].add_(100)
        assert values[1].tolist() == 1
        assert {value.untyped_storage().nbytes() for value in values} == {4}

    def test_values_may_change_after_they_were_logged(self):
        keeps = Keeps()
        logger = logger_of(keeps, deferred=True)
        parameter = torch.nn.Parameter(torch.tensor(1.0))
        vector, array, items, metrics = torch.ones(2), np.ones(2), [1], {}
        metrics |= {"number": parameter, "vector": vector, "array": array, "items": items}
        logger.log_metrics(metrics)
        with torch.no_grad():
            parameter.add_(1)
        vector.add_(1)
        array += 1
        items.append(2)
        metrics["late"] = 1
        logger.flush()
        got = keeps.calls[0][1]
        assert (got["number"], got["vector"].tolist(), got["array"].tolist(), got["items"]) == (
            1.0,
            [1, 1],
            [1, 1],
            [1],
        )
        assert "late" not in got
        assert not got["vector"].requires_grad

    def test_destination_may_modify_its_values(self):
        class Greedy(Keeps):
            def log_metrics(self, metrics, step=None):
                super().log_metrics(dict(metrics), step)
                metrics.clear()

            def log_hyperparameters(self, hyperparameters):
                hyperparameters.clear()

        greedy, keeps = Greedy(), Keeps()
        logger = logger_of(greedy, keeps)
        logger.log_metrics({"m": 1})
        logger.log_hyperparameters({"lr": 0.1})
        assert keeps.calls == [("metrics", {"m": 1}, 7), ("hyperparameters", {"lr": 0.1})]

    def test_values_logged_by_a_destination_are_delivered(self):
        class Echo(Keeps):
            def log_metrics(self, metrics, step=None):
                super().log_metrics(metrics, step)
                if "echo" not in metrics:
                    logger.log_metrics({"echo": 1})

        echo, keeps = Echo(), Keeps()
        logger = logger_of(echo, keeps)
        logger.log_metrics({"m": 1})
        assert echo.calls == keeps.calls == [("metrics", {"m": 1}, 7), ("metrics", {"echo": 1}, 7)]


def test_files():
    keeps = Keeps()
    assert logger_of(LoggerDestination(), keeps).has_file_upload_destination()
    assert not logger_of(LoggerDestination()).has_file_upload_destination()
    assert not logger_of().has_file_upload_destination()


def test_logger_for_some_destinations_keeps_the_order() -> None:
    from tests.common import Received

    one, two = Received(), Received()
    logger = Logger(State(torch.nn.Linear(1, 1)), [one, two], on_error="raise")
    logger.deferred = True
    for number in range(3):
        logger.log_metrics({"both": number})
        logger.only([two]).log_metrics({"some": number})
    assert not one.metrics
    logger.flush()
    assert [list(metrics) for _, metrics in one.metrics] == [["both"]] * 3
    assert [list(metrics) for _, metrics in two.metrics] == [["both"], ["some"]] * 3
