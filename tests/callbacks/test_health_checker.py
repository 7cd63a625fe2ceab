from __future__ import annotations

import http.server
import json
import sys
import threading
import time
import types
import warnings

import pytest
import torch

from composer import Engine, State, dist
from composer.callbacks import HealthChecker
from composer.core import Event
from composer.warnings import ComposerWarning
from tests.callbacks.cases import Case

# Without an NVIDIA GPU it only warns.
CASE = Case(make=lambda folder: HealthChecker(wait=0, sample_freq=1e-6, window_size=1e-6), warns=True)


class NotSupportedError(Exception):
    """NVML's error for queries that a GPU does not support."""


class Driver(types.ModuleType):
    """Stands in for NVML: values per GPU, set by the test."""

    NVMLError = NVMLError_NotSupported = NotSupportedError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, gpus: int) -> None:
        super().__init__("pynvml")
        self.utilization, self.reasons = [50] * gpus, [0] * gpus
        self.errors: list[int | None] = [0] * gpus
        self.open, self.samples = 0, 0
        self.nvmlClocksEventReasonHwSlowdown = 8
        self.nvmlClocksEventReasonHwThermalSlowdown = 64
        self.nvmlClocksEventReasonHwPowerBrakeSlowdown = 128

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetUtilizationRates(self, gpu):
        self.samples += 1
        return types.SimpleNamespace(gpu=self.utilization[gpu])

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        if self.errors[gpu] is None:
            raise NotSupportedError("Not Supported")
        return self.reasons[gpu]

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, since):
        if self.errors[gpu] is None:
            raise NotSupportedError("Not Supported")
        return self.errors[gpu]


class Host:
    """An engine on a host with some GPUs, with a clock controlled by the test."""

    def __init__(self, monkeypatch, gpus: int = 2, **arguments) -> None:
        self.driver, self.now = Driver(gpus), 1000.0
        monkeypatch.setitem(sys.modules, "pynvml", self.driver)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid=index))
        monkeypatch.setattr(dist, "get_local_world_size", lambda: gpus)
        state = State(model=torch.nn.Linear(1, 1), run_name="r")
        state.device = types.SimpleNamespace(name="gpu", torch_device=torch.device("cuda", 0))
        self.engine = Engine(state, callbacks=HealthChecker(**arguments))

    def start(self) -> None:
        self.engine.run_event(Event.INIT)
        self.engine.run_event(Event.FIT_START)

    def train(self, seconds: float, step: float = 1.0) -> list[str]:
        """Advance the clock; return the warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(round(seconds / step)):
                self.now += step
                self.engine.run_event(Event.BATCH_END)
        assert all(warning.category is ComposerWarning for warning in caught)
        return [str(warning.message) for warning in caught]


def test_no_alert_for_healthy_gpus(monkeypatch):
    host = Host(monkeypatch)
    host.start()
    assert host.train(1000) == []
    assert host.driver.samples > 0


def test_samples_at_the_interval_after_the_initial_wait(monkeypatch):
    host = Host(monkeypatch, gpus=1, wait=20, sample_freq=5)
    host.start()
    host.train(19)
    assert host.driver.samples == 0
    host.train(101)
    assert host.driver.samples == 21


def test_low_utilization_of_a_gpu(monkeypatch):
    host = Host(monkeypatch, gpus=3, threshold=10, window_size=60, wait=0)
    host.start()
    host.driver.utilization = [30, 30, 40]
    assert host.train(60) == []
    host.driver.utilization = [30, 30, 45]
    assert host.train(60) == [
        "HealthChecker, run r, node 0: mean utilizations differ by more than 10 percentage points "
        "(GPU 0: 30 %, GPU 1: 30 %, GPU 2: 45 %)."
    ]


def test_only_the_mean_of_a_window_counts(monkeypatch):
    host = Host(monkeypatch, window_size=100, wait=0, sample_freq=1)
    host.start()
    for _ in range(5):
        host.driver.utilization = [0, 100]
        assert host.train(10) == []
        host.driver.utilization = [100, 0]
        assert host.train(10) == []


@pytest.mark.parametrize(
    ("bits", "why"),
    [(8, "hardware slowdown"), (8 | 64, "hardware slowdown, overheating"), (128, "power supply"), (4, None)],
)
def test_a_throttled_gpu(bits, why, monkeypatch):
    host = Host(monkeypatch, window_size=60, wait=0)
    host.start()
    host.driver.reasons[1] = bits
    host.train(10)
    host.driver.reasons[1] = 0
    warned = host.train(50)
    if why is None:  # a power limit that somebody set
        assert warned == []
    else:
        assert warned == [f"HealthChecker, run r, node 0: GPU 1 throttled: {why}."]
    assert host.train(60) == []


def test_memory_errors_are_reported_once(monkeypatch):
    host = Host(monkeypatch, window_size=60, wait=0)
    host.driver.errors = [3, None]  # of before this run
    host.start()
    assert host.train(60) == []
    host.driver.errors[0] = 5
    expected = "HealthChecker, run r, node 0: GPU 0 had 2 uncorrectable memory errors."
    assert host.train(60) == [expected]
    assert host.train(60) == []


def test_test_mode_gives_one_alert(monkeypatch):
    host = Host(monkeypatch, window_size=60, wait=0, test_mode=True)
    host.start()
    assert len(host.train(60)) == 1
    assert host.train(600) == []


def test_one_rank_per_node_queries_the_driver(monkeypatch):
    host = Host(monkeypatch)
    monkeypatch.setattr(dist, "get_local_rank", lambda: 1)
    host.start()
    host.train(1000)
    assert host.driver.open == 0
    assert host.driver.samples == 0


def test_a_driver_that_does_not_respond(monkeypatch):
    host = Host(monkeypatch)

    def fails():
        raise NotSupportedError("no driver")

    host.driver.nvmlInit = fails
    with pytest.warns(ComposerWarning, match="does not respond: no driver"):
        host.start()
    assert host.train(1000) == []
    host.engine.close()


def test_shuts_nvml_down(monkeypatch):
    host = Host(monkeypatch)
    host.start()
    assert host.driver.open == 1
    host.engine.close()
    host.engine.state.callbacks[0].close(host.engine.state, None)
    assert host.driver.open == 0


class Slack(http.server.ThreadingHTTPServer):
    """Stores the messages that are sent to it."""

    daemon_threads = True

    def __init__(self, status: int) -> None:
        self.texts: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("by_environment", [True, False])
def test_alerts_go_to_slack(status, by_environment, monkeypatch, caplog):
    server = Slack(status)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/hook"
    if by_environment:
        monkeypatch.setenv("SLACK_WEBHOOK_URL", url)
    host = Host(monkeypatch, wait=0, window_size=10, test_mode=True, slack_webhook_url=None if by_environment else url)
    host.start()
    warned = host.train(20)
    host.engine.close()
    server.shutdown()
    server.server_close()
    thread.join()
    assert server.texts == warned
    assert ("could not be sent to Slack" in caplog.text) == (status == 500)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": -1}, "threshold must be 0 or greater"),
        ({"sample_freq": 0}, "sample_freq must be greater than 0"),
        ({"window_size": 0}, "window_size must be greater than 0"),
        ({"wait": -1}, "wait must be 0 or greater"),
        ({"slack_webhook_url": "hooks.slack.com"}, "slack_webhook_url must begin with https://"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        HealthChecker(**arguments)


@pytest.mark.gpu
def test_the_driver_of_this_host_responds():
    if torch.version.cuda is None:
        pytest.skip("NVML is NVIDIA's")
    state = State(model=torch.nn.Linear(1, 1), device="gpu")
    engine = Engine(state, callbacks=HealthChecker(wait=0, sample_freq=1e-6, window_size=1e6))
    engine.run_event(Event.INIT)
    engine.run_event(Event.FIT_START)
    engine.run_event(Event.BATCH_END)
    (gpu,) = state.callbacks[0]._gpus
    assert 0 <= gpu.utilization[0] <= 100
    engine.close()
