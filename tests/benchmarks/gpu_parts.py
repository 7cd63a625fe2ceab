"""Checks that pass, fail, hang and cannot run, in the place of those of a part; run as ``python -m benchmarks.gpu``."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import benchmarks.gpu.__main__ as driver
from benchmarks import environment
from benchmarks.gpu.options import Options
from benchmarks.report import Report


def passes(options: Options) -> Report:
    return Report("passes", "It passes", ["what", "value"], [["a", options.rounds]], [], [], {})


def fails(options: Options) -> Report:
    return Report("fails", "It fails", ["what"], [["a"]], [], [], {}, failed="one of two")


def raises(options: Options) -> Report:
    raise RuntimeError("the reason")


def lacks(options: Options) -> Report:
    options.need("a_package_that_is_not_there", "json")
    raise AssertionError


def lacks_a_gpu(options: Options) -> Report:
    options.need_gpu()
    raise AssertionError


def hangs(options: Options) -> Report:
    """Leaves a process in a session of its own, as the launcher's ranks are, and one in this."""
    for new in (True, False):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=new)
    time.sleep(1000)
    raise AssertionError


CHECKS = {
    "passes": passes,
    "fails": fails,
    "raises": raises,
    "lacks": lacks,
    "lacks a gpu": lacks_a_gpu,
    "hangs": hangs,
}

if __name__ == "__main__":
    # In place of the part, whose imports take seconds.
    sys.modules["benchmarks.gpu.speed"] = cast(Any, SimpleNamespace(CHECKS=CHECKS, SECONDS={}))
    if "--check" not in sys.argv:
        # The processes of the checks begin here, too.
        start = subprocess.Popen

        def popen(command, **arguments):
            return start([*command[:2], "tests.benchmarks.gpu_parts", *command[3:]], **arguments)

        driver.subprocess.Popen = popen
    else:
        environment.has = lambda module: module == "json"
    sys.exit(driver.main())
