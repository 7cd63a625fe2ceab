"""Run the parts, each check in a process of its own, and write ``benchmarks/results/gpu/``.

A check that fails, hangs or cannot run is a row of the table; the others go on. Results are kept check by check, so that
``--only`` adds to what was measured before with the same hardware and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.gpu import PARTS
from benchmarks.gpu.options import Options, SkipError
from benchmarks.gpu.results import Outcome, Results, hardware

BUDGET = 500.0  # seconds for a part: whoever lends a machine may end commands after ten minutes
_MARGIN = 5.0  # seconds left to write results


def main() -> int:
    """Return 0 if no check failed; those that were skipped and goals that were missed are no failures."""
    given = _arguments()
    if given.check is not None:
        _run_one(given)
        return 0
    failed = [name for part in given.parts or PARTS for name in _run_part(part, given)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=f"{', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes; figures mean nothing")
    parser.add_argument("--rounds", type=int, default=None, help="measurements of each contender (5; 1 with --tiny)")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for each part (%(default)g)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CHECK", help="checks by name; others keep their results"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the checks, and run none")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu", help="folder of the results"
    )
    parser.add_argument("--check", nargs=3, metavar=("PART", "CHECK", "FILE"), default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.rounds = given.rounds or (1 if given.tiny else 5)
    names = [name for part in given.parts or PARTS for name in _checks(part)]
    unknown = [name for name in given.only if name not in names]
    if unknown:
        parser.error(f"--only {' '.join(unknown)}: there are {', '.join(names)}")
    if given.list:
        print("\n".join(names))
        parser.exit()
    if given.check is None and given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("there is no CUDA device here; --tiny --device cpu runs the small form")
    return given


def _checks(part: str) -> dict[str, Any]:
    return import_module(f"benchmarks.gpu.{part}").CHECKS


def _run_part(part: str, given: argparse.Namespace) -> list[str]:
    """Run the checks of a part; return the names of those that failed."""
    end = time.monotonic() + given.budget
    results = Results.of(part, given.out, hardware(given.device), tiny=given.tiny)
    for name in _checks(part):
        if given.only and name not in given.only:
            continue
        print(f"{part}: {name} ...", file=sys.stderr, flush=True)
        results[name] = outcome = _run_apart(part, name, given, end - time.monotonic() - _MARGIN)
        print(outcome.text(name), flush=True)
        results.write()
    print(f"{results.page} and .json", file=sys.stderr)
    return [name for name in results.new if results[name].state == "failed"]


def _run_apart(part: str, name: str, given: argparse.Namespace, seconds: float) -> Outcome:
    """Run a check in a process of its own: an error of CUDA spoils the process that it happens in."""
    if seconds <= 0:
        return Outcome("not run", f"the part's {given.budget:g} seconds were over", 0.0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        file = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "benchmarks.gpu", "--check", part, name, str(file)]
        command += ["--device", given.device, "--rounds", str(given.rounds), "--budget", str(seconds)]
        command += ["--tiny"] if given.tiny else []
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True, env=_variables())
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_session(process)
        taken = time.monotonic() - start
        if code == 0 and file.exists():
            return Outcome(**json.loads(file.read_text()), seconds=taken)
        log.seek(0)
        why = f"ended after {seconds:.0f} s" if code is None else f"ended with code {code}"
        return Outcome("failed", f"{why}:\n{log.read()[-3000:]}", taken)


def _variables() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }


def _end_session(process: subprocess.Popen[Any]) -> None:
    """End a check and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _run_one(given: argparse.Namespace) -> None:
    """The other side: run a check in this process, and write its outcome."""
    part, name, file = given.check
    options = Options(given.device, given.tiny, given.rounds, given.budget)
    try:
        report = _checks(part)[name](options)
    except SkipError as error:
        outcome = {"state": "skipped", "why": str(error)}
    else:
        outcome = {"state": "failed" if report.failed else "ran", "why": report.failed, "report": asdict(report)}
    Path(file).write_text(json.dumps(outcome))


if __name__ == "__main__":
    sys.exit(main())
