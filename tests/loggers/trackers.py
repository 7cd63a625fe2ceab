"""Helpers for the tests of experiment trackers: marks, ranks, and readers of what the trackers wrote."""

from __future__ import annotations

import importlib.util
import json
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from composer.core import LoggerDestination
from tests.loggers.loop import Loop


def marks(package: str, *warnings: str) -> list[pytest.MarkDecorator]:
    """Skip without a package, and ignore the warnings that it emits by itself."""
    missing = importlib.util.find_spec(package) is None
    return [
        pytest.mark.skipif(missing, reason=f"needs {package}"),
        *(pytest.mark.filterwarnings(f"ignore:{warning}") for warning in warnings),
    ]


def resume_with(first: LoggerDestination, second: LoggerDestination, run_name: str = "test") -> Loop:
    """Train with one destination, load its state into another, and begin a run with that."""
    loop = Loop([first]).init().fit()
    state = json.loads(json.dumps(first.state_dict()))
    loop.close()
    loop = Loop([second])
    loop.state.run_name = run_name
    loop.init()
    loop.fire("before_load")
    second.load_state_dict(state)
    loop.fire("after_load")
    return loop


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int = 2) -> None:
    """Act as one of several ranks."""
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world_size)):
        monkeypatch.setenv(name, str(value))


def interrupt(loop: Loop, error: BaseException) -> None:
    """Make an exception leave the loop at the third batch, as in a trainer, and close."""
    ticks = iter(range(2))

    def tick() -> None:
        if next(ticks, None) is None:
            raise error

    loop.tick = tick
    try:
        loop.fit()
    except type(error):
        loop.logger.suspend()
    loop.close()


class WandBFile:
    """Records in the file of an offline run: blocks of 32 KiB that contain full or partial records."""

    def __init__(self, folder: Path, run_id: str) -> None:
        (self.path,) = folder.glob(f"wandb/offline-run-*-{run_id}")
        end = time.monotonic() + 20
        self._read()
        while not self.all("exit") and time.monotonic() < end:  # another process writes it
            time.sleep(0.02)
            self._read()

    def _read(self) -> None:
        from wandb.proto import wandb_internal_pb2

        data = next(self.path.glob("*.wandb")).read_bytes()
        self.records, offset, data_so_far = [], 7, b""
        while offset + 7 <= len(data):
            rest = 32768 - offset % 32768
            if rest < 7:
                offset += rest
                continue
            _, size, record_type = struct.unpack_from("<IHB", data, offset)
            chunk = data[offset + 7 : offset + 7 + size]
            data_so_far = chunk if record_type in (1, 2) else data_so_far + chunk
            offset += 7 + size
            if offset > len(data):
                break
            if record_type in (1, 4):
                self.records.append(wandb_internal_pb2.Record.FromString(data_so_far))

    def all(self, record_type: str) -> list[Any]:
        """Return the records of a type."""
        return [
            getattr(record, record_type) for record in self.records if record.WhichOneof("record_type") == record_type
        ]

    @property
    def rows(self) -> dict[int, dict[str, Any]]:
        """Logged values by step; nested names are joined by dots."""
        found = {}
        for history in self.all("history"):
            row = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json.replace("NaN", '"NaN"'))
                for item in history.item
            }
            found[row.pop("_step")] = {key: value for key, value in row.items() if not key.startswith("_")}
        return found

    @property
    def config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for config in self.all("config")
            for item in config.update
        }


class CometArchive:
    """The contents of an offline experiment."""

    def __init__(self, folder: Path, key: str) -> None:
        (path,) = folder.glob(f"{key}*.zip")
        self.zip = zipfile.ZipFile(path)
        self.experiment = json.loads(self.zip.read("experiment.json"))
        self.messages = [json.loads(line) for line in self.zip.read("messages.json").splitlines()]

    def payloads(self, record_type: str) -> list[dict]:
        return [message["payload"] for message in self.messages if message["type"] == record_type]

    def history(self, name: str) -> list[tuple[int, float]]:
        metrics = [payload["metric"] for payload in self.payloads("metric_msg")]
        return [(metric["step"], metric["metricValue"]) for metric in metrics if metric["metricName"] == name]

    @property
    def parameters(self) -> dict[str, object]:
        found = [payload["param"] for payload in self.payloads("parameter_msg")]
        return {param["paramName"]: param["paramValue"] for param in found if param["source"] == "manual"}

    @property
    def others(self) -> dict[str, object]:
        return {payload["key"]: payload["value"] for payload in self.payloads("log_other")}

    @property
    def files(self) -> dict[str, bytes]:
        found = {}
        for payload in self.payloads("file_upload"):
            about = payload["additional_params"]
            found[about["figName" if "figName" in about else "fileName"]] = self.zip.read(payload["file_path"])
        return found


def series(rows: dict[int, dict[str, Any]], name: str) -> list[tuple[int, Any]]:
    """Steps and values of one metric."""
    return [(step, row[name]) for step, row in sorted(rows.items()) if name in row]
