"""``make gpu`` in its small form on the CPU, and what it does with checks that fail, hang or cannot run."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import benchmarks.gpu.__main__ as driver
from benchmarks.gpu import PARTS, PIECES, nccl, speed, suite, tests
from benchmarks.gpu.options import Options, SkipError
from benchmarks.gpu.results import Outcome, Results
from tests.benchmarks import gpu_parts
from tests.design import ROOT

pytestmark = pytest.mark.slow


def run(*arguments: str, module: str = "benchmarks.gpu", mark: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, "COMPOSER_GPU_TEST": mark}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)


def results_of(folder: Path, part: str) -> tuple[str, dict[str, Any]]:
    [page], [file] = folder.glob(f"{part}-*-tiny.md"), folder.glob(f"{part}-*-tiny.json")
    return page.read_text(), json.loads(file.read_text())["checks"]


def alive_with(mark: str) -> list[str]:
    """The processes that have a variable of this value."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"COMPOSER_GPU_TEST={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def run_in_this_process(part: str, name: str, given: argparse.Namespace, seconds: float) -> Outcome:
    """What the process of a check does, in place of starting one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcome.json"
        driver._run_one(argparse.Namespace(**{**vars(given), "check": (part, name, file), "budget": seconds}))
        return Outcome(**json.loads(file.read_text()), seconds=0.0)


@pytest.mark.parametrize(
    ("part", "ran", "apart"),
    [("tests", {"compiler", "trains", "gpu"}, False), ("nccl", {"launched", "group"}, True)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_small_form(part: str, ran: set[str], apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part with all its processes, as users start it; the other without those of the checks."""
    arguments = [part, "--tiny", "--device", "cpu", "--out", str(tmp_path)]
    if apart:
        done = run(*arguments, mark="small")
        assert done.returncode == 0, done.stdout + done.stderr
        assert not alive_with("small")
    else:
        monkeypatch.setattr(driver, "_run_apart", run_in_this_process)
        assert here(monkeypatch, *arguments) == 0
    page, found = results_of(tmp_path, part)
    assert list(found) == list(importlib.import_module(f"benchmarks.gpu.{part}").CHECKS)
    assert {name for name, outcome in found.items() if outcome["state"] == "ran"} == ran
    assert {outcome["state"] for outcome in found.values()} <= {"ran", "skipped"}
    assert page.startswith(f"# {part} on ")
    assert all(f"| {name} | {outcome['state']} |" in page for name, outcome in found.items())
    assert ("the suite runs these tests on the CPU" in page) == (part == "tests")


def faulty(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = ["speed", "--tiny", "--device", "cpu", "--out", str(folder), *more]
    return run(*arguments, module="tests.benchmarks.gpu_parts", mark="faulty")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


def test_what_fails_hangs_or_cannot_run_is_a_row_and_the_others_go_on(folder: Path) -> None:
    done = faulty(folder, "--only", "passes", "fails", "raises", "lacks", "lacks a gpu")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("failed: fails, raises")
    page, found = results_of(folder, "speed")
    states = {name: outcome["state"] for name, outcome in found.items()}
    assert states == {
        "passes": "ran",
        "fails": "failed",
        "raises": "failed",
        "lacks": "skipped",
        "lacks a gpu": "skipped",
    }
    assert found["lacks"]["why"] == "not installed: a_package_that_is_not_there"
    assert found["lacks a gpu"]["why"] == "needs a GPU"
    assert "RuntimeError: the reason" in found["raises"]["why"]
    assert "one of two" in page
    assert "## It passes" in page


def test_a_check_that_hangs_is_ended_with_all_that_it_started(folder: Path) -> None:
    done = faulty(folder, "--only", "hangs", "--budget", "13")
    assert done.returncode == 1
    _, found = results_of(folder, "speed")
    assert found["hangs"]["state"] == "failed"
    assert found["hangs"]["why"].startswith("ended after ")
    assert found["hangs"]["seconds"] < 30
    # What was measured before stays.
    assert found["passes"]["state"] == "ran"
    assert not alive_with("faulty")


def here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """What the command returns, in this process."""
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    try:
        return driver.main()
    except SystemExit as error:
        return int(error.code or 0)


def test_no_time_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(speed, "CHECKS", gpu_parts.CHECKS)
    arguments = ["speed", "--tiny", "--device", "cpu", "--out", str(tmp_path), "--only", "hangs", "--budget", "2"]
    assert here(monkeypatch, *arguments) == 0
    _, found = results_of(tmp_path, "speed")
    assert found["hangs"]["state"] == "not run"
    assert found["hangs"]["why"] == "the part's 2 seconds were over"


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert here(monkeypatch, "tests") == 2
    out, errors = capfd.readouterr()
    [line] = errors.splitlines()
    assert line.startswith("make gpu: PyTorch sees no CUDA device here")
    assert not out


def test_unknown_checks_are_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert here(monkeypatch, "nccl", "--only", "fsdpp", "--device", "cpu") == 2
    assert "--only fsdpp: there are launched, group" in capfd.readouterr().err


def test_without_pytest_its_checks_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import environment

    monkeypatch.setattr(environment, "has", lambda module: module != "pytest")
    options = Options("cuda", False, 1, 60.0)
    for part in (tests, nccl):
        for name, check in part.CHECKS.items():
            if name not in ("compiler", "trains", "commands", "launched"):
                with pytest.raises(SkipError, match="not installed: pytest"):
                    check(options)


def test_every_test_of_a_device_belongs_to_a_check() -> None:
    """A new file in tests/gpu, one with a test that is marked, or a new group, has to be run by `make gpu`."""
    from tests.on_device import GROUPS, paths

    assert set(PARTS) == {"tests", "nccl", "speed", "memory"}
    assert set(GROUPS) - {"gpu"} == set(tests.anywhere())
    assert all(path.exists() for path in paths(GROUPS))
    run = {file for files in (*tests.on_gpu().values(), *tests.anywhere().values()) for file in files}
    needed = {path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    needed |= set(suite.marked())
    assert {"checkpoint/test_staging.py", "core/test_device_transfer.py", "test_environment.py"} <= needed
    assert needed - run == {"gpu/test_group.py"}
    assert nccl._FILE == "gpu/test_group.py"


def test_all_pieces_fit_into_ten_minutes_each_and_the_page_has_their_times() -> None:
    seconds = {}
    for piece in PIECES:
        given = shlex.split(piece)
        part = given[0].removeprefix("PART=")
        shares = importlib.import_module(f"benchmarks.gpu.{part}").SECONDS
        only = given[1].removeprefix("GPU_ARGS=--only ").split() if len(given) > 1 else list(shares)
        assert list(shares) == list(importlib.import_module(f"benchmarks.gpu.{part}").CHECKS)
        seconds[piece] = sum(shares[name] for name in only)
    assert list(seconds.values()) == [420, 300, 150, 450, 420, 300]
    assert max(seconds.values()) < driver.LONGEST
    page = (ROOT / "benchmarks" / "README.md").read_text()
    for piece, limit in seconds.items():
        assert re.search(rf"^make gpu {re.escape(piece)} +# {limit:g}$", page, re.MULTILINE), piece
    assert f"{sum(seconds.values()):g} seconds" in page


def test_what_takes_longer_than_ten_minutes_says_how_to_run_the_pieces(monkeypatch, capsys) -> None:
    ran: list[str] = []
    monkeypatch.setattr(driver, "_run_part", lambda part, given: ran.append(part) or [])
    for arguments, says in (([], True), (["speed"], True), (["nccl"], False), (["--tiny"], False)):
        monkeypatch.setattr(sys, "argv", ["make gpu", *arguments, "--device", "cpu"])
        assert driver.main() == 0
        said = capsys.readouterr().err
        assert all((f"make gpu {piece}" in said) == says for piece in PIECES)
    assert ran == [*PARTS, "speed", "nccl", *PARTS]


def test_checks_of_all_parts_but_speed_run_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never more than asked for, the longest first, each with time for a shared host, and speed alone at the end."""
    running: list[str] = []
    most: list[int] = []
    begun: list[tuple[str, str, float]] = []
    lock = threading.Lock()

    def apart(part: str, name: str, given: argparse.Namespace, seconds: float) -> Outcome:
        with lock:
            running.append(name)
            begun.append((part, name, seconds))
            most.append(len(running))
            assert part != "speed" or running == [name]
        time.sleep(0.02)
        with lock:
            running.remove(name)
        return Outcome("failed" if name == "leaks" else "ran", "", 0.0)

    monkeypatch.setattr(driver, "_run_apart", apart)
    assert here(monkeypatch, "--device", "cpu", "--parallel", "3", "--out", str(tmp_path)) == 1
    assert "failed: leaks" in capsys.readouterr().err
    assert max(most) == 3
    count = sum(len(importlib.import_module(f"benchmarks.gpu.{part}").CHECKS) for part in PARTS)
    assert len({(part, name) for part, name, _ in begun}) == len(begun) == count
    assert begun[0][:2] == ("tests", "commands")
    beside = [each for each in begun if each[0] != "speed"]
    assert begun[: len(beside)] == beside
    for part, name, seconds in beside:
        share = importlib.import_module(f"benchmarks.gpu.{part}").SECONDS[name]
        assert min(2 * share, 500) < seconds <= min(3 * share, driver.LONGEST)
    for part in PARTS:
        [file] = tmp_path.glob(f"{part}-*.json")
        assert set(json.loads(file.read_text())["checks"]) == set(
            importlib.import_module(f"benchmarks.gpu.{part}").CHECKS
        )


def test_fewer_workers_of_pytest_beside_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite.os, "sched_getaffinity", lambda pid: range(16))
    monkeypatch.setattr(suite.environment, "has", lambda name: True)
    for beside, workers in ((1, "8"), (2, "8"), (4, "4"), (5, "3")):
        assert suite._workers(Options("cuda", False, 1, 60.0, beside=beside)) == ["-n", workers]


def test_the_number_of_checks_at_a_time_is_positive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(monkeypatch, "--parallel", "0") == 2
    assert "--parallel must be at least 1; got 0" in capsys.readouterr().err


def test_the_checks_of_a_part_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(monkeypatch, "speed", "--list") == 0
    assert capsys.readouterr().out.split() == list(speed.CHECKS)


def test_no_check_takes_the_time_of_those_after_it(tmp_path: Path) -> None:
    done = faulty(tmp_path, "--only", "hangs", "lacks", "--budget", "24")
    assert done.returncode == 1
    _, found = results_of(tmp_path, "speed")
    assert {name: outcome["state"] for name, outcome in found.items()} == {"lacks": "skipped", "hangs": "failed"}


def cases_of(*tests: tuple[str, str, str]) -> list[ElementTree.Element]:
    """What pytest writes of tests: the file, the state, and why."""
    found = []
    for name, tag, message in tests:
        case = ElementTree.Element("testcase", classname=name, name="test_it", time="1.5")
        if tag:
            ElementTree.SubElement(case, tag, message=message)
        found.append(case)
    return found


def test_a_file_of_which_nothing_passed_has_failed() -> None:
    groups = {"a": ["gpu/test_a.py", "test_b.py"], "b": ["c/test_c.py", "c/test_d.py"]}
    cases = cases_of(
        ("tests.gpu.test_a.TestIt", "", ""),
        ("tests.test_b", "skipped", "not installed: deepspeed"),
        ("tests.c.test_c", "skipped", "I do not like it"),
    )
    report = suite.report("x", "title", groups, cases, 0, "")
    assert report.rows == [
        ["a: gpu/test_a.py", 1, 0, 0, 1.5],
        ["a: test_b.py", 0, 1, 0, 1.5],
        ["b: c/test_c.py", 0, 1, 0, 1.5],
        ["b: c/test_d.py", 0, 0, 0, 0],
    ]
    assert report.failed.splitlines()[::2] == ["2 failed", "c/test_c.py: no test passed", "c/test_d.py: no test passed"]


def test_tests_whose_time_is_over_leave_what_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--device')\n")
    (tmp_path / "tests" / "test_some.py").write_text(
        "import time\ndef test_a(): pass\ndef test_hangs(): time.sleep(1000)\n"
    )
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "_workers", lambda options: ["-p", "no:xdist"])
    run = suite.check("x", "title", lambda: {"some": ["test_some.py"]})
    for seconds in (10, 60, 300):  # on a busy machine, pytest may take longer than the shortest to start
        report = run(Options("cpu", False, 1, float(seconds)))
        if report.rows[0][1]:
            break
    assert report.rows[0][:2] == ["some: test_some.py", 1]
    assert f"ended after {seconds} s" in report.failed


def test_results_are_kept_by_names_that_any_system_takes(tmp_path: Path) -> None:
    machine = {"hardware": "NVIDIA H100 80GB HBM3, (SXM/5)", "libraries": {"torch": "2"}}
    for name in ("one", "two"):
        results = Results.of("speed", tmp_path, machine, tiny=False)
        results[name] = Outcome("ran", "", 1.0)
        results.write()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "speed-nvidia-h100-80gb-hbm3-sxm-5.json",
        "speed-nvidia-h100-80gb-hbm3-sxm-5.md",
    ]
    assert list(Results.of("speed", tmp_path, machine, tiny=False)) == ["one", "two"]
