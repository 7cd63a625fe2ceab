from __future__ import annotations

import time
import types

import pytest

OFFLINE = {
    "COMET_INTERNAL_SENTRY_DSN": "",
    "COMET_LOGGING_CONSOLE": "error",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock controlled by the test."""
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    clock.tick = lambda seconds=1.0: setattr(clock, "now", clock.now + seconds)
    return clock


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep trackers offline, in temporary folders, and quiet."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", "COMET_API_KEY", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path_factory.getbasetemp() / "trackio"))  # read once
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path_factory.getbasetemp() / "mlruns").as_uri())
    monkeypatch.setenv("WANDB_DIR", str(tmp_path_factory.getbasetemp()))
