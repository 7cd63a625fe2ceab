"""Run the parts, each check in a process of its own, and write ``benchmarks/results/gpu/``.

A check that fails, hangs or cannot run is a row of the table; the others go on. Results are kept check by check, so
that ``--only`` adds to what was measured before with the same hardware and versions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.gpu import ALONE, PARTS, PIECES
from benchmarks.gpu.options import Options, SkipError
from benchmarks.gpu.results import Outcome, Results, hardware

LONGEST = 540.0  # seconds: whoever lends a machine may end commands after ten minutes
_MARGIN = 5.0  # seconds left to write results
_END_LIMIT = 5.0  # seconds that killed processes may take to end
_MARK = "COMPOSER_GPU_CHECK"  # the variable by which processes that a check left behind are found


def main() -> int:
    """Return 0 if no check failed; those that were skipped and goals that were missed are no failures."""
    given = _arguments()
    if given.check is not None:
        _run_one(given)
        return 0
    whole = sum(_budget(part, given) for part in given.parts or PARTS)
    if whole > LONGEST and not given.tiny and given.parallel == 1:
        print(
            f"make gpu: this takes up to {whole / 60:.0f} minutes. Where commands may take ten, run the pieces:",
            *(f"  make gpu {piece}" for piece in PIECES),
            sep="\n",
            file=sys.stderr,
            flush=True,
        )
    chosen = list(given.parts or PARTS)
    beside = [part for part in chosen if part not in ALONE] if given.parallel > 1 else []
    failed = _run_beside(beside, given) if beside else []
    failed += [name for part in chosen if part not in beside for name in _run_part(part, given)]
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
    parser.add_argument(
        "--budget", type=float, default=None, help="seconds for each part (the sum of what its checks have)"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CHECK", help="checks by name; others keep their results"
    )
    parser.add_argument(
        "--parallel",
        type=int,
        default=1,
        metavar="N",
        help="run N checks at a time, of all parts but speed, which is measured alone afterwards (1)",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the checks, and run none")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "gpu",
        help="folder of the results; those of other checks that lie there are kept",
    )
    parser.add_argument("--check", nargs=3, metavar=("PART", "CHECK", "FILE"), default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.parallel < 1:
        parser.error(f"--parallel must be at least 1; got {given.parallel}")
    given.rounds = given.rounds or (1 if given.tiny else 5)
    if given.check is not None:
        return given  # which parts there are was checked by who started this; importing them all takes seconds
    names = [name for part in given.parts or PARTS for name in _checks(part)]
    unknown = [name for name in given.only if name not in names]
    if unknown:
        parser.error(f"--only {' '.join(unknown)}: there are {', '.join(names)}")
    if given.list:
        print("\n".join(names))
        parser.exit()
    if given.device == "cuda":
        _require_a_gpu()
    return given


def _require_a_gpu() -> None:
    """End with one line and code 2 where there is none."""
    try:
        import torch

        why = "" if torch.cuda.is_available() else "PyTorch sees no CUDA device here"
    except ModuleNotFoundError:
        why = "PyTorch is not installed here"
    if why:
        print(f"make gpu: {why}; GPU_ARGS='--tiny --device cpu' runs the small form on the CPU", file=sys.stderr)
        sys.exit(2)


def _checks(part: str) -> dict[str, Any]:
    return import_module(f"benchmarks.gpu.{part}").CHECKS


def _shares(part: str, given: argparse.Namespace) -> dict[str, float]:
    """The seconds of each check of a part that is to run."""
    seconds = import_module(f"benchmarks.gpu.{part}").SECONDS
    shares = {name: seconds.get(name, 60.0) for name in _checks(part) if not given.only or name in given.only}
    usual = 3.0 if given.tiny else 1.0  # the small form runs on machines that are small, and has no limit to meet
    times = usual if given.budget is None else given.budget / max(sum(shares.values()), 1.0)
    return {name: share * times for name, share in shares.items()}


def _budget(part: str, given: argparse.Namespace) -> float:
    return sum(_shares(part, given).values())


def _run_part(part: str, given: argparse.Namespace) -> list[str]:
    """Run the checks of a part; return the names of those that failed."""
    shares = _shares(part, given)
    begin, allowed = time.monotonic(), 0.0
    results = Results.of(part, given.out, hardware(given.device), tiny=given.tiny)
    for name, share in shares.items():
        print(f"{part}: {name} ...", file=sys.stderr, flush=True)
        # What those before it left over is for it as well, and nothing of what those after it have.
        allowed += share
        results[name] = outcome = _run_apart(part, name, given, begin + allowed - time.monotonic() - _MARGIN)
        print(outcome.text(name), flush=True)
        results.write()
    print(f"{results.page} and .json", file=sys.stderr)
    return [name for name in results.new if results[name].state == "failed"]


def _run_beside(parts: list[str], given: argparse.Namespace) -> list[str]:
    """Run the checks of several parts, N at a time, those that take longest first; return those that failed.

    Figures of time mean nothing then. Each check has N times its seconds, since the host is shared, but all together no
    more than one command may take.
    """
    machine = hardware(given.device)
    results = {part: Results.of(part, given.out, machine, tiny=given.tiny) for part in parts}
    shares = {(part, name): share for part in parts for name, share in _shares(part, given).items()}
    usual = LONGEST if given.budget is None and not given.tiny else sum(shares.values())
    end, lock = time.monotonic() + usual, threading.Lock()

    def run(check: tuple[str, str]) -> None:
        part, name = check
        print(f"{part}: {name} ...", file=sys.stderr, flush=True)
        seconds = min(given.parallel * shares[check], end - time.monotonic()) - _MARGIN
        outcome = _run_apart(part, name, given, seconds)
        with lock:
            results[part][name] = outcome
            print(outcome.text(name), flush=True)
            results[part].write()

    with ThreadPoolExecutor(given.parallel) as pool:
        list(pool.map(run, sorted(shares, key=lambda check: -shares[check])))
    for each in results.values():
        print(f"{each.page} and .json", file=sys.stderr)
    return [name for each in results.values() for name in each.new if each[name].state == "failed"]


def _run_apart(part: str, name: str, given: argparse.Namespace, seconds: float) -> Outcome:
    """Run a check in a process of its own: an error of CUDA spoils the process that it happens in."""
    if seconds <= 0:
        return Outcome("not run", f"the part's {_budget(part, given):g} seconds were over", 0.0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        file = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "benchmarks.gpu", "--check", part, name, str(file)]
        command += ["--device", given.device, "--rounds", str(given.rounds), "--budget", str(seconds)]
        command += ["--parallel", str(given.parallel if part not in ALONE else 1), "--out", str(given.out.absolute())]
        command += ["--tiny"] if given.tiny else []
        mark = f"{_MARK}={uuid.uuid4().hex}"
        variables = _variables() | dict([mark.split("=")])
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True, env=variables)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_all(process, mark.encode())
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


def _end_all(process: subprocess.Popen[Any], mark: bytes) -> None:
    """End a check and all that it started, also in sessions of their own, as the ranks of a launcher are."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # On a busy host a process runs for a while after it was killed, and may start another.
    end = time.monotonic() + _END_LIMIT
    while (left := _marked(mark)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _marked(mark: bytes) -> list[int]:
    """The processes that have a variable of the environment."""
    found: list[int] = []
    for variables in Path("/proc").glob("[0-9]*/environ"):
        # Others' processes may not be read, and some end meanwhile.
        with contextlib.suppress(OSError):
            if mark in variables.read_bytes().split(b"\0"):
                found.append(int(variables.parent.name))
    return found


def _run_one(given: argparse.Namespace) -> None:
    """The other side: run a check in this process, and write its outcome."""
    part, name, file = given.check
    options = Options(given.device, given.tiny, given.rounds, given.budget, given.out, given.parallel)
    try:
        report = _checks(part)[name](options)
    except SkipError as error:
        outcome = {"state": "skipped", "why": str(error)}
    else:
        outcome = {"state": "failed" if report.failed else "ran", "why": report.failed, "report": asdict(report)}
    Path(file).write_text(json.dumps(outcome))


if __name__ == "__main__":
    sys.exit(main())
