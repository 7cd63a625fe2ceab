"""Settings and fixtures of all tests: one thread, fixed seeds, reproducible examples, process groups."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Read when the thread pools are made, that is, when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

from tests import apart, browser, forking, leaked_processes, older_torch, on_device
from tests.ranks import Ranks, given

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So is it where the suite was started in the background; processes that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.accelerator.is_available():
    # For when an accelerator is initialized, torch would keep a stack trace of each call of torch.manual_seed.
    for _kind in (torch.cuda, torch.xpu, torch.mtia):
        _kind.manual_seed_all = _kind.manual_seed = lambda seed: None
apart.make_importable()
leaked_processes.adopt_orphans()

hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    # Fixtures are reset for each test, not for each example; no test of a law depends on one that it changes.
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Give each test the same random numbers, and the next one the defaults that this one may have changed."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    in_group = torch.distributed.is_initialized()
    with on_device.around():
        yield
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, cudnn
    torch.set_grad_enabled(True)
    if torch.distributed.is_initialized() and not in_group:
        torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True, scope="module")
def _fast_collections() -> None:
    """Collect what the last file left, and freeze what exists: later collections need not visit it.

    With all that the suite imports, each takes more than half a second, and simulated out-of-memory errors ask for one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _no_processes_left() -> Iterator[None]:
    """Check that each test file ends the processes that it starts."""
    yield
    browser.close()
    left = leaked_processes.end()
    assert not left, f"processes were left running, and are ended now: {left}"


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two ranks in a process group."""
    yield from given(2)


@pytest.fixture(scope="session")
def parent() -> Iterator[forking.Parent]:
    """A process to fork others from."""
    yield from forking.given()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four ranks in a process group."""
    yield from given(4)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the device be chosen."""
    parser.addoption(
        "--device",
        choices=on_device.CHOICES,
        default="cpu",
        help="cpu: all tests, and no GPU is seen; cuda: those that hold on any device, and those marked gpu; "
        "pretend: the former on the CPU, which refuses to mix what would lie on a GPU with what would not",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the device; let warnings that only older releases of torch or Python have be none of the errors."""
    on_device.choose(config.getoption("device"))
    for message in on_device.NOTICES if config.getoption("device") == "cuda" else ():
        config.addinivalue_line("filterwarnings", f"ignore:{message}:UserWarning")
    for message, kind in older_torch.messages():
        config.addinivalue_line("filterwarnings", f"ignore:{message}:{kind.__name__}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested for want of a browser."""
    line = browser.untested(terminalreporter.stats.get("skipped", ()))
    if line:
        terminalreporter.write_line(line, red=True, bold=True)


def pytest_unconfigure() -> None:
    """Say what a process of the suite waits for where it does not end after its last test, and end it."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass by files without a test for the device: some cannot even be imported on a machine that lacks packages."""
    return True if on_device.is_foreign(collection_path, config.getoption("device")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, and leave out what is not for the device."""
    # Workers get entire files: with a slow one at the end, the others would be idle.
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
    items[:], others = on_device.select(items, config.getoption("device"))
    if others:
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Skip by name what needs a package that is not there: machines with a GPU have what they have."""
    report = yield
    missing = None if call.excinfo is None else on_device.missing(call.excinfo.value)
    if report.failed and missing is not None and item.config.getoption("device") != "cpu":
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1] or 0, f"Skipped: {missing}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """The same for files that import one."""
    report = yield
    call = getattr(report, "call", None)  # --last-failed makes reports without one
    missing = None if call is None or call.excinfo is None else on_device.missing(call.excinfo.value)
    if report.failed and missing is not None and collector.config.getoption("device") != "cpu":
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {missing}")
    return report
