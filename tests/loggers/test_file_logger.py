from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from composer import Callback, dist
from composer.core import Logger, State
from composer.loggers import FileLogger
from tests.common import trainer_of
from tests.loggers.files import Uploads, in_own_folder, run
from tests.loggers.loop import Loop

CASE = {"make": in_own_folder(lambda folder: FileLogger(f"{folder}/logs.txt"))}


@pytest.fixture(autouse=True)
def _capsys(capsys: pytest.CaptureFixture[str]) -> None:
    """Use capsys in every test, so that the streams stay the same throughout."""


def test_each_type_of_line(tmp_path) -> None:
    file = FileLogger(f"{tmp_path}/{{run_name}}/logs-rank{{rank}}.txt")
    assert file.filename == f"{tmp_path}/{{run_name}}/logs-rank{{rank}}.txt"
    loop = Loop([file]).init()
    logger = loop.logger
    logger.log_hyperparameters({"lr": 0.1, "model": {"depth": 2}})
    logger.log_metrics({"loss/train/total": torch.tensor(0.25), "word": "a"}, step=3)
    logger.log_table(["a", "b"], [[1, "ü"], [torch.tensor(2), None]], name="T")
    logger.log_traces({"algorithm_traces/MixUp/after_loss": 1})
    file.write("[mine]: ", "one\ntwo")
    print("printed")
    print("warned", file=sys.stderr)
    loop.fire("fit_start")
    assert file.filename == f"{tmp_path}/test/logs-rank0.txt"
    loop.close()
    assert (tmp_path / "test" / "logs-rank0.txt").read_text(encoding="utf-8").splitlines() == [
        "[hyperparameter]: lr: 0.1000",
        "[hyperparameter]: model: {depth: 2}",
        "[metric][batch=3]: loss/train/total: 0.2500",
        "[metric][batch=3]: word: a",
        '[table]: T: {"columns": ["a", "b"], "data": [[1, "ü"], [2, null]]}',
        "[trace]: algorithm_traces/MixUp/after_loss: 1",
        "[mine]: one",
        "[mine]: two",
        "[stdout]: printed",
        "[stderr]: warned",
    ]


def test_metrics_of_a_run(tmp_path) -> None:
    run(FileLogger(f"{tmp_path}/logs.txt")).close()
    lines = (tmp_path / "logs.txt").read_text().splitlines()
    losses = [line for line in lines if "loss/train/total" in line]
    assert losses == [f"[metric][batch={k}]: loss/train/total: {1 / (k + 1):.4f}" for k in range(8)]
    accuracies = [line for line in lines if "Accuracy" in line]
    assert accuracies == [f"[metric][batch={k}]: metrics/eval/Accuracy: 0.5000" for k in (4, 8)]


def test_traces_can_be_left_out(tmp_path) -> None:
    loop = Loop([FileLogger(f"{tmp_path}/logs.txt", log_traces=False)]).init()
    loop.logger.log_traces({"trace": 1})
    loop.close()
    assert (tmp_path / "logs.txt").read_text() == ""


@pytest.mark.parametrize(("stdout", "stderr"), [(True, False), (False, True), (False, False)])
def test_what_is_captured(tmp_path, stdout: bool, stderr: bool) -> None:
    loop = Loop([FileLogger(f"{tmp_path}/logs.txt", capture_stdout=stdout, capture_stderr=stderr)]).init()
    print("out")
    print("err", file=sys.stderr)
    loop.close()
    expected = ["[stdout]: out"] * stdout + ["[stderr]: err"] * stderr
    assert (tmp_path / "logs.txt").read_text().splitlines() == expected


def test_nothing_is_captured_before_the_run_nor_after_it(tmp_path, capsys) -> None:
    streams = (sys.stdout, sys.stderr)
    file = FileLogger(f"{tmp_path}/logs.txt")
    print("before")
    loop = Loop([file]).init()
    print("within")
    loop.close()
    print("after")
    assert (tmp_path / "logs.txt").read_text() == "[stdout]: within\n"
    assert capsys.readouterr().out == "before\nwithin\nafter\n"
    assert all("write" not in vars(stream) for stream in streams)


def test_a_run_continues_after_an_exception(tmp_path) -> None:
    class Fail(Callback):
        failing = True

        def batch_end(self, state, logger):
            print(f"batch {state.timestamp.batch.value}")
            if self.failing and state.timestamp.batch == "2ba":
                raise RuntimeError("out of luck")

    fail = Fail()
    trainer = trainer_of(loggers=FileLogger(f"{tmp_path}/logs.txt"), callbacks=fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.fit()
    print("between")
    fail.failing = False
    trainer.fit()
    trainer.close()
    print("after")
    lines = (tmp_path / "logs.txt").read_text().splitlines()
    printed = [line for line in lines if line.startswith("[stdout]")]
    assert printed == [f"[stdout]: {text}" for text in ("batch 1", "batch 2", "between", "batch 3", "batch 4")]
    assert sum("loss/train/total" in line for line in lines) == 4
    assert sum(line == "[stderr]: RuntimeError: out of luck" for line in lines) == 1


class Crash(Callback):
    def fit_start(self, state, logger):
        raise RuntimeError("My Exception! token=hf_abcdefghijklmnopqrstuvwxyz0123456789\n\nsecond line")


@pytest.mark.parametrize("is_printed", [True, False])
def test_the_traceback_of_a_crash_is_in_the_file_once(tmp_path, is_printed: bool) -> None:
    trainer = trainer_of(loggers=FileLogger(f"{tmp_path}/logs.txt"), callbacks=Crash())
    try:
        trainer.fit()
    except RuntimeError:
        if is_printed:
            sys.excepthook(*sys.exc_info())  # as the interpreter does where nobody catches it
    trainer.close()
    lines = (tmp_path / "logs.txt").read_text().splitlines()
    assert sum(line.startswith("[stderr]: Traceback") for line in lines) == 1
    assert sum(line.startswith("[stderr]: RuntimeError: My Exception!") for line in lines) == 1
    assert "[stderr]: second line" in lines
    if not is_printed:
        assert "hf_abcdefghijklmnopqrstuvwxyz0123456789" not in "".join(lines)


def test_no_line_ends_in_a_space(tmp_path) -> None:
    loop = Loop([FileLogger(f"{tmp_path}/logs.txt")]).init()
    print("first\n\n   \nlast   ")
    loop.logger.log_hyperparameters({"empty": "", "text": "a "})
    loop.logger.log_metrics({"word": ""})
    loop.close()
    lines = (tmp_path / "logs.txt").read_text().split("\n")
    assert lines == [
        "[stdout]: first",
        "",
        "",
        "[stdout]: last",
        "[hyperparameter]: empty:",
        "[hyperparameter]: text: a",
        "[metric][batch=0]: word:",
        "",
    ]


def test_logging_that_was_set_up_before_is_captured(tmp_path) -> None:
    handler = logging.StreamHandler()
    loop = Loop([FileLogger(f"{tmp_path}/logs.txt")]).init()
    handler.emit(logging.makeLogRecord({"msg": "careful"}))
    loop.close()
    assert (tmp_path / "logs.txt").read_text() == "[stderr]: careful\n"


def test_an_uncaught_exception_leaves_a_complete_file(tmp_path) -> None:
    script = f"""
    import torch
    from composer import Engine, Logger, State
    from composer.loggers import FileLogger

    file = FileLogger({str(tmp_path / "logs.txt")!r}, buffer_size=100_000)
    state = State(torch.nn.Linear(1, 1), callbacks=[file])
    logger = Logger(state, file)
    engine = Engine(state, logger)
    engine.run_event("init")
    engine.run_event("fit_start")
    logger.deferred = True
    logger.log_metrics({{"loss/train/total": torch.tensor(0.5)}})
    print("printed")
    raise RuntimeError("out of luck")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 1
    assert "out of luck" in done.stderr
    lines = (tmp_path / "logs.txt").read_text().splitlines()
    assert "[stdout]: printed" in lines
    assert "[metric][batch=0]: loss/train/total: 0.5000" in lines


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_an_earlier_run(tmp_path, overwrite: bool) -> None:
    for number in range(3):
        loop = Loop([FileLogger(f"{tmp_path}/logs.txt", overwrite=overwrite)]).init()
        print(number)
        loop.close()
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    newest = {"logs.txt": "[stdout]: 2\n"}
    older = {"logs.1.txt": "[stdout]: 0\n", "logs.2.txt": "[stdout]: 1\n"}
    assert texts == (newest if overwrite else newest | older)


def test_a_resumed_run_continues_its_file(tmp_path) -> None:
    file = FileLogger(f"{tmp_path}/logs.txt")
    loop = Loop([file]).init()
    print("first")
    loop.fire("fit_start")
    saved = file.state_dict()
    loop.close()
    other = FileLogger(f"{tmp_path}/logs.txt")
    loop = Loop([other]).init()
    other.load_state_dict(saved)
    print("second")
    loop.fire("fit_start")
    loop.close()
    assert (tmp_path / "logs.txt").read_text() == "[stdout]: first\n[stdout]: second\n"


def test_the_file_is_uploaded(tmp_path) -> None:
    uploads = Uploads()
    file = FileLogger(f"{tmp_path}/logs.txt", "{run_name}/logs-rank{rank}.txt")
    assert file.remote_file_name == "{run_name}/logs-rank{rank}.txt"
    run(file, uploads).close()
    assert uploads.texts == {"test/logs-rank0.txt": (tmp_path / "logs.txt").read_text()}


def test_metrics_are_fetched_at_the_interval(tmp_path) -> None:
    loop = Loop([FileLogger(f"{tmp_path}/logs.txt", flush_interval=3)], "100ba", length=100).init()
    loop.fire("fit_start")
    loop.logger.deferred = True
    lengths = []
    for _ in range(7):
        loop.batch()
        lengths.append((tmp_path / "logs.txt").read_text().count("loss/train/total"))
    assert lengths == [0, 0, 3, 3, 3, 6, 6]
    loop.close()


def test_every_rank_has_its_own_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    run(FileLogger(f"{tmp_path}/logs-rank{{rank}}.txt")).close()
    assert [path.name for path in tmp_path.iterdir()] == ["logs-rank1.txt"]
    loop = Loop([FileLogger(f"{tmp_path}/one.txt")]).init()
    assert "write" not in vars(sys.stdout)
    loop.close()
    assert [path.name for path in tmp_path.iterdir()] == ["logs-rank1.txt"]


def test_print_does_not_raise_on_a_full_disk(tmp_path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def fileno(self) -> int:
            return real.fileno()

    state = State(torch.nn.Linear(1, 1))
    file = FileLogger(f"{tmp_path}/logs.txt")
    logger = Logger(state, file)
    file.init(state, logger)
    file.fit_start(state, logger)
    real, file.file = file.file, Full()
    print("text")
    with pytest.raises(OSError, match="No space left"):
        file.epoch_end(state, logger)
    file.file = real
    file.close(state, logger)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"filename='\{epoch\}' has the placeholder \{epoch\}, but does not change"):
        FileLogger("{epoch}")
    with pytest.raises(ValueError, match=r"remote_file_name='\{x\}' has the unknown placeholder"):
        FileLogger(remote_file_name="{x}")
    with pytest.raises(ValueError, match="buffer_size must be greater than 0"):
        FileLogger(buffer_size=0)
