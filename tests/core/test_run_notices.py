"""Each notice is printed once: on the console if there is one, in the logs, and on rank 0 only."""

from __future__ import annotations

import logging

import pytest
import torch

from composer import dist
from composer.core import Logger, LoggerDestination, State
from composer.core.run_notices import Notices


class Console(LoggerDestination):
    def __init__(self, sees: bool = True) -> None:
        self.lines: list[str] = []
        self.sees = sees

    def __show_notice__(self, text: str) -> bool:
        self.lines.append(text)
        return self.sees


def test_only_the_first_console_prints(caplog) -> None:
    caplog.set_level(logging.INFO, "composer")
    blind, first, second = Console(sees=False), Console(), Console()
    logger = Logger(State(torch.nn.Linear(1, 1)), [blind, first, second])
    logger.notice("resumed")
    assert (first.lines, second.lines) == (["resumed"], [])
    assert logger.notices.texts == ["resumed"]
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("composer", "INFO", "resumed")
    ]


def test_nested_loggers_print_in_one_place() -> None:
    console = Console()
    logger = Logger(State(torch.nn.Linear(1, 1)), [console])
    logger.only([]).notice("resumed")
    assert console.lines == logger.notices.texts == ["resumed"]


def test_only_rank_0_prints(monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO, "composer")
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    notices = Notices(lambda text: pytest.fail(text))
    notices.report("resumed", urgent=True)
    assert notices.texts == caplog.records == []


@pytest.mark.parametrize(("shown", "urgent", "on_stderr"), [(False, True, 1), (False, False, 0), (True, True, 0)])
def test_urgent_notices_go_to_stderr_once_without_console(shown, urgent, on_stderr, capfd, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("composer"), "handlers", [])
    Notices(lambda text: shown).report("interrupted", urgent=urgent)
    assert capfd.readouterr().err.count("interrupted") == on_stderr


def test_passwords_in_uris_are_masked() -> None:
    notices = Notices(lambda text: True)
    notices.report("resumed from sftp://me:SECRET@host/run/ep1.pt at epoch 1, batch 4")
    notices.report("resumed from oci://bucket@namespace/ep1:2.pt")
    assert notices.texts == [
        "resumed from sftp://me:***@host/run/ep1.pt at epoch 1, batch 4", "resumed from oci://bucket@namespace/ep1:2.pt"
    ]  # fmt: skip


def test_failing_console_does_not_affect_others() -> None:
    class Broken(Console):
        def __show_notice__(self, text: str) -> bool:
            raise OSError("the terminal is gone")

    console = Console()
    logger = Logger(State(torch.nn.Linear(1, 1)), [Broken(), console])
    with pytest.warns(UserWarning, match="the terminal is gone"):
        logger.notice("resumed")
    assert console.lines == ["resumed"]


def test_a_nan_loss_is_reported_once(caplog) -> None:
    class Reader(LoggerDestination):
        def __due__(self, state) -> bool:
            return True

    state = State(torch.nn.Linear(1, 1))
    logger = Logger(state, [Reader()])
    logger.deferred = True
    nan = torch.tensor(float("nan"))
    for step, loss in enumerate([torch.tensor(1.0), torch.tensor(float("inf")), nan, torch.tensor(1.0), nan]):
        logger.enqueue({"loss/train/total": loss, "other": nan}, step)
    logger.flush()
    logger.enqueue({"loss/train/total": nan}, 5)
    logger.flush()
    assert logger.notices.texts == ["loss is NaN since batch 2 (NaNMonitor raises an error there)"]
    logger.begin()  # of another training
    logger.enqueue({"loss/train/total": nan}, 6)
    logger.flush()
    assert logger.notices.texts[1:] == ["loss is NaN since batch 6 (NaNMonitor raises an error there)"]


def test_a_nan_loss_of_an_earlier_step_is_reported(caplog) -> None:
    """A model may return a loss in some steps only, and records are delivered after steps without it."""
    state = State(torch.nn.Linear(1, 1))
    logger = Logger(state, [LoggerDestination()])
    logger.deferred = True
    for step in range(4):
        some = {"loss/train/aux": torch.tensor(float("nan"))} if step == 2 else {}
        state.total_loss_dict = {"loss/train/total": torch.tensor(0.5), **some}
        logger.enqueue(dict(state.total_loss_dict), step)
    logger.flush()
    assert logger.notices.texts == ["loss is NaN since batch 2 (NaNMonitor raises an error there)"]
