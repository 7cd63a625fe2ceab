"""Tests of the suite as a check: which passed, which were skipped for what, and what failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.environment import ROOT
from benchmarks.gpu.options import Options, SkipError
from benchmarks.report import Report

IN_THE_SUITE = "the suite runs these tests on the CPU"
_MOST_WORKERS = 12  # each has a context of CUDA, of half a gigabyte, and starts compilers
_LONGEST = 1500  # characters of a failure
_MARGIN = 25.0  # seconds in which pytest writes what it has, where its time is over
_MARKER = re.compile(r"pytest\.mark\.gpu\b")
_LACKS = ("not installed", "could not import", "which cannot be imported")  # how skips say that a package is missing


def check(
    name: str,
    title: str,
    groups: Callable[[], Mapping[str, Sequence[str]]],
    *words: str,
    tiny: Sequence[str] = (),
) -> Callable[[Options], Report]:
    """Return a check that runs tests on the device, all in one call of pytest: workers take ten seconds to start.

    Args:
        name: Of the check.
        title: What holds if they pass.
        groups: Returns, by what they are about, the files below ``tests``; the rows of the table say how each came out.
        *words: More options of pytest.
        tiny: Single tests of the tiny form, in which a check without any is skipped: CI runs them in the suite itself.
    """

    def run(options: Options) -> Report:
        options.need("pytest", "hypothesis")
        if options.tiny and not tiny:
            raise SkipError(IN_THE_SUITE)
        return _run(name, title, {"tiny": tiny} if options.tiny else groups(), words, options)

    return run


def marked(*but: str) -> list[str]:
    """Return the files below ``tests`` that have tests marked ``gpu``.

    Args:
        *but: Folders that are left out.
    """
    tests = ROOT / "tests"
    found = [path.relative_to(tests) for path in tests.rglob("test_*.py") if _MARKER.search(path.read_text())]
    return sorted(path.as_posix() for path in found if path.parts[0] not in but)


def _run(name: str, title: str, groups: Mapping[str, Sequence[str]], words: Sequence[str], options: Options) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
            f"--device={options.device}",
        ]
        command += [f"--junitxml={results}", f"--basetemp={folder}/tests", *_workers(options), *words]
        command += [str(ROOT / "tests" / test) for tests in groups.values() for test in tests]
        variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        over, text = "", ""
        try:
            text, _ = process.communicate(timeout=max(options.seconds - _MARGIN, options.seconds / 2))
        except subprocess.TimeoutExpired:
            over = f"ended after {options.seconds:.0f} s; what has no row did not end"
            process.send_signal(signal.SIGINT)  # it writes what it has
            try:
                text, _ = process.communicate(timeout=_MARGIN * 0.8)
            except subprocess.TimeoutExpired:
                process.kill()
                text, _ = process.communicate()
        cases = list(ElementTree.parse(results).iter("testcase")) if results.exists() else []
        return report(name, title, groups, cases, process.returncode, over or text)


def _workers(options: Options) -> list[str]:
    """Several processes, where pytest-xdist is installed and there is enough for them; else none."""
    cores = len(os.sched_getaffinity(0))
    if not environment.has("xdist"):
        # The options for it in pyproject.toml would be unknown.
        return ["-o", "addopts=--import-mode=importlib --strict-markers -ra"]
    if options.tiny or cores < 4:
        return []
    # Alone, half of the cores are left to the compilers that the tests start; beside other checks, to these.
    return ["-n", str(min(_MOST_WORKERS, cores // max(2, options.beside)))]


def report(
    name: str,
    title: str,
    groups: Mapping[str, Sequence[str]],
    cases: Sequence[ElementTree.Element],
    code: int,
    text: str,
) -> Report:
    """Return what came of the tests, file by file.

    Args:
        name: Of the check.
        title: What holds if they pass.
        groups: The files below ``tests`` that were to run, by what they are about.
        cases: What pytest wrote of each test.
        code: With which it ended.
        text: What it printed, or why it was ended.
    """
    counts: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    why: dict[str, Counter[str]] = {}
    failures: list[str] = []
    for case in cases:
        # A file that could not be imported is itself the name.
        file = _file_of((case.get("classname") or case.get("name", "")).split("."))
        seconds[file] += float(case.get("time", 0))
        kind = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        state = "passed" if kind is None else "skipped" if kind.tag == "skipped" else "failed"
        counts[file, state] += 1
        if kind is not None and state == "skipped":
            why.setdefault(file, Counter())[kind.get("message", "")] += 1
        elif kind is not None:
            failures.append(f"{file}::{case.get('name')}\n{_end(kind.text or kind.get('message', ''))}")
    if code not in (0, 1) or (code == 1 and not failures):
        failures.append(f"pytest ended with code {code}:\n{_end(text)}")
    rows: list[list[Any]] = []
    for group, tests in groups.items():
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            states = [counts[file, state] for state in ("passed", "skipped", "failed")]
            rows.append([f"{group}: {file}", *states, seconds[file]])
            lacks = all(any(word in reason for word in _LACKS) for reason in why.get(file, {"": 1}))
            if states[0] == states[2] == 0 and not lacks:
                failures.append(f"{file}: no test passed")
    reasons = sum(why.values(), Counter())
    notes = [f"skipped {number}: {reason}" for reason, number in sorted(reasons.items())]
    columns = ["file", "passed", "skipped", "failed", "seconds"]
    failed = "\n\n".join([f"{len(failures)} failed", *failures[:60]]) if failures else ""
    return Report(name, title, columns, rows, [], notes, {}, failed=failed)


def _file_of(parts: list[str]) -> str:
    """``tests.gpu.test_a.TestClass`` is ``gpu/test_a.py``."""
    last = next((place for place, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    return "/".join(parts[parts[0] == "tests" : last + 1]) + ".py"


def _end(text: str) -> str:
    """The lines of errors, and the last ones."""
    errors = [line for line in text.splitlines() if re.match(r"E  ", line)]
    return "\n".join([*errors[:15], text[-_LONGEST:]])
