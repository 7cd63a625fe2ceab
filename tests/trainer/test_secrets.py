"""Secrets passed to a run by any argument are in nothing that it writes, prints, logs, saves or raises."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Algorithm, Callback, Logger, State, Trainer
from composer.callbacks import CheckpointSaver, LoadCheckpoint
from composer.checkpoint import read_checkpoint
from composer.hparams import trainer_from_args, trainer_from_config
from composer.hparams.config_tree import ConfigError
from composer.loggers import (
    ConsoleLogger,
    CSVLogger,
    FileLogger,
    InMemoryLogger,
    JSONLinesLogger,
    LoggerDestination,
    RemoteUploaderDownloader,
    TensorboardLogger,
)
from composer.storage import Folder
from composer.utils import get_file
from tests.common import classifier, labeled_data
from tests.hparams.configured import config
from tests.trainer.vault import Vault

CANARY = "cAn4ry-Hunter2"
HERE = "tests.trainer.test_secrets"


class Client(LoggerDestination):
    """A tracker with a key; fails when it is reported to, saying its key."""

    def __init__(self, api_key: str, headers: dict[str, str] | None = None, fails: bool = False) -> None:
        self.api_key, self.headers, self.fails = api_key, headers, fails
        self.seen: list[Any] = []

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        self.seen.append(hyperparameters)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if self.fails:
            raise ConnectionError(f"https://me:{self.api_key}@tracker/x?token={self.api_key} does not answer")


class Method(Algorithm):
    """A method with a token."""

    def __init__(self, hub_token: str, input_key: str = "image") -> None:
        self.hub_token, self.input_key = hub_token, input_key

    def epoch_start(self, state: State, logger: Logger) -> None:
        state.model.train()


class Refusing(Callback):
    """Refuses its password."""

    def __init__(self, db_password: str, uri: str = "") -> None:
        raise ValueError(f"the password {db_password} is too short for {uri}")


@pytest.fixture
def produced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., bytes]]:
    """Return all that was produced: files, output, log records, warnings, and texts that are given."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG, "composer")
    Vault.store.clear()
    Vault.refused.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")

        def everything(*texts: object) -> bytes:
            files = [path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()]
            kept = [file.getvalue() for file in Vault.store.values()]
            out, err = capfd.readouterr()
            said = [out, err, caplog.text, *(str(warning.message) for warning in warned), *map(str, texts)]
            return b"\n".join([*files, *kept, *(text.encode() for text in said)])

        yield everything
    Vault.store.clear()
    Vault.refused.clear()


def check(found: bytes) -> None:
    place = found.find(CANARY.encode())
    assert place < 0, found[max(place - 300, 0) : place + 100].decode(errors="replace")


def raised_by(action: Callable[[], object], kind: type[BaseException] = Exception) -> str:
    """The traceback as Python prints it, without the lines of the sources, in which a test may have its secret."""
    with pytest.raises(kind) as caught:
        action()
    lines = traceback.TracebackException.from_exception(caught.value)
    return "".join(lines.format())


def arguments(**more: Any) -> dict[str, Any]:
    return {"model": classifier(), "train_dataloader": labeled_data(2), "max_duration": "1ep", **more}


def loggers() -> list[LoggerDestination]:
    return [
        Client(CANARY, {"Authorization": f"Bearer {CANARY}"}),
        InMemoryLogger(),
        FileLogger("logs.txt"),
        CSVLogger("metrics.csv"),
        JSONLinesLogger("metrics.jsonl"),
        TensorboardLogger("board"),
        ConsoleLogger("1ba"),
    ]


def test_a_run_in_a_script(produced: Callable[..., bytes]) -> None:
    given = loggers()
    folder = f"vault://me:{CANARY}@host/{{run_name}}"
    for duration in ("1ep", "2ep"):
        with Trainer(
            **arguments(
                loggers=given,
                algorithms=Method(CANARY),
                save_folder=folder,
                run_name="night",
                autoresume=True,
                auto_log_hparams=True,
                python_log_level="debug",
                save_interval="1ba",
                save_num_checkpoints_to_keep=1,
            )
            | {"max_duration": duration}
        ) as trainer:
            trainer.logger.log_hyperparameters({"hf_token": CANARY, "input_key": "image", "cfg": Method(CANARY)})
            trainer.fit()
    assert trainer.state.timestamp.epoch == 2
    saved = [name for name in Vault.store if name.endswith(".pt")]
    assert saved
    log = given[1]
    assert isinstance(log, InMemoryLogger)
    assert log.hyperparameters["save_folder"] == "vault://me:***@host/{run_name}"
    assert log.hyperparameters["input_key"] == log.hyperparameters["algorithms"]["input_key"] == "image"
    assert log.hyperparameters["hf_token"] == "***"
    # What the saver itself keeps is tested separately.
    Vault.store.clear()
    found = produced(log.hyperparameters, given[0].seen)  # pyright: ignore[reportAttributeAccessIssue]
    assert b"me:***@host" in found
    check(found)


def test_checkpoints(produced: Callable[..., bytes]) -> None:
    folder = f"vault://me:{CANARY}@host/run"
    with Trainer(**arguments(loggers=loggers(), algorithms=Method(CANARY), save_folder=folder)) as trainer:
        trainer.fit()
    assert any(name.endswith(".pt") for name in Vault.store)
    check(produced())


def test_a_run_from_a_configuration(produced: Callable[..., bytes], tmp_path: Path, capfd) -> None:
    content = config(
        loggers=[{"class_path": f"{HERE}.Client", "init_args": {"api_key": CANARY, "headers":
            {"Authorization": CANARY}}},
                 "InMemoryLogger"],
        algorithms={"class_path": f"{HERE}.Method", "init_args": {"hub_token": CANARY, "input_key": "pixels"}},
        callbacks={"class_path": "LoadCheckpoint", "init_args": {"load_path": f"vault://me:{CANARY}@host/a.pt",
            "event": "FIT_END"}},
        save_folder="kept",
    )  # fmt: skip
    trainer_from_config(config()).save_checkpoint(f"vault://me:{CANARY}@host/a.pt")
    trainer = trainer_from_config(content)
    assert trainer.state.algorithms[0].hub_token == CANARY
    trainer.fit()
    trainer.close()
    text = (tmp_path / "kept" / "config.yaml").read_text()
    assert "input_key: pixels" in text
    log = trainer.logger.destinations[1]
    assert isinstance(log, InMemoryLogger)
    check(produced(log.hyperparameters))

    masked = r"^algorithms\.hub_token, callbacks\.load_path, loggers\.0\.api_key, loggers\.0\.headers\.Authorization: "
    with pytest.raises(ConfigError, match=rf"{masked}the secret was masked .*--algorithms\.hub_token VALUE"):
        trainer_from_config(tmp_path / "kept" / "config.yaml")
    again = ["kept/config.yaml", "--save_folder", "other", "--loggers.0.api_key", CANARY]
    again += ["--loggers.0.headers", "{}", "--algorithms.hub_token", CANARY]
    printed = raised_by(lambda: trainer_from_args(again), SystemExit)
    assert "error: callbacks.load_path: the secret was masked" in capfd.readouterr().err
    again += ["--callbacks.load_path", f"vault://me:{CANARY}@host/a.pt"]
    trainer = trainer_from_args(again)
    assert trainer.state.algorithms[0].hub_token == CANARY
    trainer_printed = raised_by(lambda: trainer_from_args([*again, "--print_config"]), SystemExit)
    check(produced(printed, trainer_printed))


def mistakes() -> dict[str, Callable[[], object]]:
    uri = f"vault://me:{CANARY}@host/absent.pt"
    saver = CheckpointSaver(f"vault://me:{CANARY}@host/run")
    return {
        "load_path": lambda: Trainer(**arguments(load_path=uri)),
        "LoadCheckpoint": lambda: Trainer(**arguments(callbacks=LoadCheckpoint(uri))),
        "no such scheme": lambda: Trainer(**arguments(load_path=f"nowhere://me:{CANARY}@host/x")),
        "no file": lambda: Trainer(**arguments(load_path=f"vault://me:{CANARY}@host")),
        "port": lambda: Trainer(**arguments(load_path=f"sftp://me:pa/{CANARY}@host/x")),
        "memory": lambda: Trainer(**arguments(load_path=f"memory://me:{CANARY}@host/x")),
        "web": lambda: Trainer(**arguments(load_path=f"http://me:{CANARY}@127.0.0.1:1/x?sig={CANARY}",
            load_progress_bar=False)),
        "get_file": lambda: get_file(uri, "x"),
        "Folder": lambda: Folder("vault://host", {"password": CANARY}).read_text("absent.pt"),
        "loggers": lambda: Trainer(**arguments(loggers=[{"api_key": CANARY}])),
        "callbacks": lambda: Trainer(**arguments(callbacks=[uri])),
        "uploader": lambda: RemoteUploaderDownloader(f"vault://me:{CANARY}@host").download_file("x", "x"),
        "of another bucket": lambda: RemoteUploaderDownloader("vault://host").download_file(uri, "x"),
        "saver": lambda: _save_refused(saver),
        "type": lambda: trainer_from_config(config(loggers={"class_path": f"{HERE}.Client", "init_args":
            {"api_key": [CANARY]}})),
        "value": lambda: trainer_from_config(
            config(callbacks={"class_path": f"{HERE}.Refusing", "init_args": {"db_password": CANARY, "uri": uri}})
        ),
        "unknown": lambda: trainer_from_config(
            config(loggers={"class_path": f"{HERE}.Client", "init_args": {"api_key": CANARY, "fals": 1}})
        ),
        "yaml": lambda: trainer_from_args(["--loggers", f'{{api_key: "{CANARY}']),
        "option": lambda: trainer_from_args(["--model.api_key.x", CANARY], defaults={"model":
            {"class_path": f"{HERE}.Client", "init_args": {"api_key": CANARY}}}),
    }  # fmt: skip


def _save_refused(saver: CheckpointSaver) -> None:
    Vault.refused.add("put")
    with Trainer(**arguments(callbacks=saver)) as trainer:
        trainer.fit()


@pytest.mark.parametrize("name", mistakes())
def test_errors(name: str, produced: Callable[..., bytes]) -> None:
    said = raised_by(mistakes()[name], BaseException)
    check(produced(said))


def test_background_failures(produced: Callable[..., bytes]) -> None:
    Vault.refused.add("put")
    saver = CheckpointSaver(f"vault://me:{CANARY}@host/run", on_failure="warn")
    with Trainer(**arguments(callbacks=saver, loggers=Client(CANARY, fails=True))) as trainer:
        trainer.fit()
    found = produced()
    for said in (
        b"A checkpoint could not be uploaded",
        b"Client failed and may have lost log records",
        b"vault://me:***@host",
    ):
        assert said in found
    check(found)


def test_algorithm_with_a_secret_is_restored(tmp_path: Path) -> None:
    trainer = Trainer(**arguments(algorithms=Method(CANARY), progress_bar=False))
    path = trainer.save_checkpoint(str(tmp_path / "a.pt"))
    assert path is not None
    saved = read_checkpoint(path)["state"]["algorithms"]
    assert saved == [("Method", {"repr": "Method(hub_token='***', input_key='image')"})]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(**arguments(algorithms=Method(CANARY), progress_bar=False, load_path=path))
    assert torch.load(path, weights_only=True)
