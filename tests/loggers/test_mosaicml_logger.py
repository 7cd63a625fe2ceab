"""MosaicMLLogger: scripts that use it run, and it reports once that it logs nothing."""

from __future__ import annotations

import inspect
import json
import logging

import pytest
import torch

from composer.loggers import MosaicMLLogger, mosaicml_logger
from tests.common import trainer_of

CASE = {"make": MosaicMLLogger}


def test_it_reports_once_and_logs_nothing(monkeypatch, caplog) -> None:
    monkeypatch.setenv("RUN_NAME", "night-1")
    mosaicml_logger._report_once.cache_clear()
    with caplog.at_level(logging.WARNING, "composer"):
        first, second = (
            MosaicMLLogger(),
            MosaicMLLogger(log_interval=1, ignore_keys=["loss/*"], ignore_exceptions=False),
        )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "not supported" in caplog.text
    trainer = trainer_of(loggers=[first, second])
    assert not any(queue is not None for destination, queue in trainer.logger._queues if destination in (first, second))
    trainer.fit()
    first.log_metrics({"data_validated": 1.0})
    first.log_metadata({"loss": 1}, force_flush=True)
    first._flush_metadata(force_flush=True)
    trainer.close()
    assert first.buffered_metadata == second.buffered_metadata == {}
    assert (first.run_name, second.ignore_keys) == ("night-1", ["loss/*"])


def test_names_of_the_environment() -> None:
    names = {name: getattr(mosaicml_logger, name) for name in mosaicml_logger.__all__ if name.endswith("_ENV_VAR")}
    assert names == {
        "RUN_NAME_ENV_VAR": "RUN_NAME",
        "MOSAICML_PLATFORM_ENV_VAR": "MOSAICML_PLATFORM",
        "MOSAICML_ACCESS_TOKEN_ENV_VAR": "MOSAICML_ACCESS_TOKEN_FILE",
        "MOSAICML_LOG_DIR_ENV_VAR": "MOSAICML_LOG_DIR",
        "MOSAICML_GPU_LOG_FILE_PREFIX_ENV_VAR": "MOSAICML_GPU_LOG_FILE_PREFIX",
    }
    assert list(inspect.signature(MosaicMLLogger).parameters) == ["log_interval", "ignore_keys", "ignore_exceptions"]


def test_a_trainer_on_the_platform_adds_no_logger(monkeypatch) -> None:
    monkeypatch.setenv("MOSAICML_PLATFORM", "true")
    monkeypatch.setenv("MOSAICML_ACCESS_TOKEN_FILE", "token")
    with trainer_of() as trainer:
        assert not any(isinstance(one, MosaicMLLogger) for one in trainer.logger.destinations)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        ({"a": torch.tensor([42]), "b": {"c": True}}, {"a": 42, "b": {"c": True}}),
        ([torch.tensor([1, 2, 3])], ["Tensor of shape torch.Size([3])"]),
        (torch.float32, "torch.float32"),
    ],
)
def test_values_for_json(value, expected) -> None:
    found = mosaicml_logger.format_data_to_json_serializable(value)
    assert found == expected
    json.dumps(found)


def test_exceptions_for_json() -> None:
    class OwnError(ValueError):
        def __init__(self, where: str) -> None:
            self.where = where
            self.what = torch.float32
            super().__init__("went wrong")

    expected = {"class": "OwnError", "message": "went wrong", "attributes": {"where": "here", "what": "torch.float32"}}
    assert mosaicml_logger.exception_to_json_serializable_dict(OwnError("here")) == expected
