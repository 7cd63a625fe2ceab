"""Tests of the suite as a check: which passed, which were skipped for what, and what failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import environment
from benchmarks.environment import ROOT
from benchmarks.gpu.options import Options, SkipError
from benchmarks.report import Report

IN_THE_SUITE = "the suite runs these tests on the CPU"
_MOST_WORKERS = 8  # each has a context of CUDA, of half a gigabyte
_LONGEST = 1500  # characters of a failure


def check(
    name: str, title: str, tests: Sequence[str], *words: str, tiny: Sequence[str] = ()
) -> Callable[[Options], Report]:
    """Return a check that runs tests on the device.

    Args:
        name: Of the check.
        title: What holds if they pass.
        tests: Files, folders or single tests, below ``tests``.
        *words: More options of pytest.
        tiny: Those of the tiny form, in which a check without any is skipped: CI runs them in the suite itself.
    """

    def run(options: Options) -> Report:
        options.need("pytest", "hypothesis")
        if options.tiny and not tiny:
            raise SkipError(IN_THE_SUITE)
        return _run(name, title, tiny if options.tiny else tests, words, options)

    return run


def _run(name: str, title: str, tests: Sequence[str], words: Sequence[str], options: Options) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--device={options.device}"]
        command += [f"--junitxml={results}", f"--basetemp={folder}/tests", *_workers(options), *words]
        command += [str(ROOT / "tests" / test) for test in tests]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **threads},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        cases = list(ElementTree.parse(results).iter("testcase")) if results.exists() else []
    return _report(name, title, cases, done)


def _workers(options: Options) -> list[str]:
    """Several processes, where pytest-xdist is installed and there is enough for them; else none."""
    cores = len(os.sched_getaffinity(0))
    if not environment.has("xdist"):
        # The options for it in pyproject.toml would be unknown.
        return ["-o", "addopts=--import-mode=importlib --strict-markers -ra"]
    return [] if options.tiny or cores < 4 else ["-n", str(min(_MOST_WORKERS, cores // 2))]


def _report(name: str, title: str, cases: list[ElementTree.Element], done: subprocess.CompletedProcess[str]) -> Report:
    counts: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    why: Counter[str] = Counter()
    failures: list[str] = []
    for case in cases:
        file = case.get("classname", "").removeprefix("tests.")
        seconds[file] += float(case.get("time", 0))
        kind = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        state = "passed" if kind is None else "skipped" if kind.tag == "skipped" else "failed"
        counts[file, state] += 1
        if kind is not None and state == "skipped":
            why[kind.get("message", "")] += 1
        elif kind is not None:
            failures.append(f"{file}::{case.get('name')}\n{_end(kind.text or kind.get('message', ''))}")
    files = sorted(seconds)
    rows = [
        [file, *(counts[file, state] for state in ("passed", "skipped", "failed")), seconds[file]] for file in files
    ]
    notes = [f"skipped {number}: {reason}" for reason, number in sorted(why.items())]
    if done.returncode not in (0, 1) or (done.returncode == 1 and not failures):
        failures.append(f"pytest ended with code {done.returncode}:\n{_end(done.stdout)}")
    elif not cases:
        failures.append(f"no test ran:\n{_end(done.stdout)}")
    columns = ["file", "passed", "skipped", "failed", "seconds"]
    failed = "\n\n".join([f"{len(failures)} failed", *failures[:10]]) if failures else ""
    return Report(name, title, columns, rows, [], notes, {}, failed=failed)


def _end(text: str) -> str:
    """The lines of errors, and the last ones."""
    errors = [line for line in text.splitlines() if re.match(r"E  ", line)]
    return "\n".join([*errors[:15], text[-_LONGEST:]])
