"""Compare what names the cause of slow training: `composer doctor`, traceml-ai and torch's profiler, side by side."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.doctor_runs import PROFILED_STEPS, ROWS, TRACED_STEPS, lines_of
from benchmarks.report import Goal, Report

_SCRIPT = Path(__file__).resolve().with_name("doctor_runs.py")
_LIMIT = 300


@dataclass(frozen=True)
class Case:
    """A program, and what is right about it.

    Attributes:
        program: The program as "module:function".
        cause: The planted cause; "none" if nothing is wrong.
        where: A text that the place must have.
        ranks: Number of processes.
    """

    program: str
    cause: str
    where: str = ""
    ranks: int = 1

    @property
    def planted(self) -> bool:
        return self.cause != "none"


@dataclass(frozen=True)
class Answer:
    """What a tool says of a program.

    Attributes:
        right: Whether it names the cause, or nothing if nothing is wrong.
        text: What it says, shortened.
        seconds: Wall time of the command, with the start of its processes.
        details: What it was taken from.
    """

    right: bool
    text: str
    seconds: float
    details: Mapping[str, Any]


def cases(chosen: str = "own", names: Sequence[str] = ()) -> dict[str, Case]:
    """Return the programs.

    Args:
        chosen: "own", or "fresh" or "unusual" for a held-out set.
        names: Only those whose name holds one of these texts.
    """
    from tests.diagnosis.measure import cases as measured

    found = {name: Case(*values) for name, values in measured(chosen).items()}
    return {name: case for name, case in found.items() if not names or any(text in name for text in names)}


def ask_doctor(case: Case) -> Answer:
    """Ask `composer doctor`, which has to name the cause and the place.

    Args:
        case: The program.
    """
    arguments = {"program": case.program, "ranks": case.ranks}
    found, seconds = _timed(lambda: environment.call("benchmarks.doctor_runs:diagnose", arguments))
    right = found["cause"] == case.cause and case.where in found["where"]
    place = f": {found['where']}" if found["where"] else ""
    return Answer(right, f"{found['cause']}{place}", seconds, found)


# What each verdict of traceml-ai may mean, as its own table "What TraceML diagnoses" and its advice say; it names no
# line, so the cause is enough.
_TRACEML: dict[str, set[str]] = {
    "INPUT_BOUND": {"data"},
    "RESIDUAL_HEAVY": {"callback", "method", "logging", "evaluation", "saving", "metrics", "host"},
    "COMPUTE_BOUND": {"compute", "none"},
    "NO_CLEAR_PERFORMANCE_BOTTLENECK": {"none"},
    "LOW_GPU_UTILIZATION_UNEXPLAINED": {"host"},
    "STRAGGLER": {"imbalance", "communication"},
    "INPUT_STRAGGLER": {"data", "imbalance"},
    "COMPUTE_STRAGGLER": {"imbalance"},
}


def ask_traceml(case: Case) -> Answer:
    """Ask traceml-ai for its summary.

    Args:
        case: The program.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--logs-dir", folder, "--run-name", "run", "--nproc-per-node", str(case.ranks)]
        command = ["traceml_ai.launcher.cli", "run", str(_SCRIPT), *options, "--args", "trace", case.program]
        _, seconds = _timed(lambda: _run(command))
        summary = json.loads((Path(folder) / "run" / "final_summary.json").read_text())
    return judge_traceml(case, summary["primary_diagnosis"], summary["step_time"], seconds)


def judge_traceml(case: Case, primary: Mapping[str, Any], timing: Mapping[str, Any], seconds: float) -> Answer:
    """Return whether the primary diagnosis names the cause.

    Args:
        case: The program.
        primary: The primary diagnosis of the summary.
        timing: The section about step time.
        seconds: How long it took.
    """
    kind, phase = primary["kind"], str(timing["diagnosis"].get("phase") or "")
    right = case.cause in _TRACEML.get(kind, set())
    # A dominant phase counts as the cause within it.
    if kind == "COMPUTE_BOUND":
        within = {"optimizer": {"optimizer"}, "forward": {"host"}, "backward": {"host"}}.get(phase, set())
        right = right or (case.cause in within and (case.cause != "host" or bool(case.where)))
    named = phase and kind == "COMPUTE_BOUND"
    text = primary["status"].lower() + (f": {phase}" if named else "")
    return Answer(right, text, seconds, {"primary": dict(primary), "phase": phase})


# What the top rows of the profiler's table, or the frames of their stacks, show of each cause. A place in the program
# is matched by its lines.
_PROFILER = {
    "data": r"enumerate\(DataLoader\)|torch/utils/data/|composer/datasets/",
    "callback": r"composer/callbacks/",
    "method": r"composer/algorithms/",
    "logging": r"composer/loggers/|composer/core/logger",
    "evaluation": r"composer/trainer/evaluat",
    "saving": r"composer/checkpoint/|composer/callbacks/checkpoint|torch/serialization|PyTorchFileWriter",
    "metrics": r"torchmetrics/|composer/metrics/",
    "optimizer": r"Optimizer\.step#|torch/optim/|aten::_(fused|foreach)_|aten::(addcdiv|addcmul|lerp|sqrt)_?$",
    "communication": r"gloo|c10d|nccl|DistributedDataParallel|torch/nn/parallel/distributed",
    "imbalance": r"gloo|nccl",
    "compute": r"^(aten|mkldnn)::",
}
# Time outside operators: rows of Python functions, and of a step as a whole.
_HOST_ROW = r"\.py\(\d+\): |^ProfilerStep|^<built-in"
_PLACES = {"detect_anomaly": r"anomaly|traceback\.py|linecache\.py"}


def ask_profiler(case: Case) -> Answer:
    """Ask torch's profiler.

    Args:
        case: The program.
    """
    if case.ranks == 1:
        arguments = {"program": case.program}
        found, seconds = _timed(lambda: environment.call("benchmarks.doctor_runs:profile", arguments))
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "profile.json"
            launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}", str(_SCRIPT)]
            _, seconds = _timed(lambda: _run([*launcher, "profile", case.program, str(file)]))
            found = json.loads(file.read_text())
    return judge_profile(case, found, seconds)


def judge_profile(case: Case, found: Mapping[str, Any], seconds: float) -> Answer:
    """Return whether the top rows or their stacks name the cause or the planted lines.

    Args:
        case: The program.
        found: The rows and the frames of their stacks.
        seconds: How long it took.
    """
    rows = found["rows"]
    if case.planted:
        right = _shows(case, rows, found["frames"])
    else:  # a table is no verdict; it must only not begin with something else than the model
        others = (pattern for cause, pattern in _PROFILER.items() if cause not in ("compute", "optimizer"))
        right = not any(re.search(pattern, rows[0]) for pattern in others)
    short = [re.sub(r" of .*|<built-in (function|method) |>", "", row).rpartition("/")[2][:32] for row in rows]
    return Answer(right, ", ".join(short), seconds, found)


def _shows(case: Case, rows: Sequence[str], frames: Sequence[str]) -> bool:
    pattern = _PLACES.get(case.where) or _PROFILER.get(case.cause)
    if pattern and any(re.search(pattern, text) for text in (*rows, *frames)):
        return True
    lines = lines_of(case.program.partition(":")[0], case.where) if case.where else None
    if lines is None:
        return case.cause == "host" and any(re.search(_HOST_ROW, row) for row in rows)
    file, numbers = lines
    places = (re.search(r"([\w./-]+\.py)\((\d+)\)", text) for text in (*rows, *frames))
    return any(place and place[1].endswith(file) and int(place[2]) in numbers for place in places)


TOOLS: dict[str, Callable[[Case], Answer]] = {
    "composer doctor": ask_doctor,
    "traceml-ai": ask_traceml,
    "torch.profiler": ask_profiler,
}


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    return function(), time.perf_counter() - begin


def _run(command: Sequence[str]) -> None:
    """Run a module in a folder of its own, with one thread a process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-P", "-m", *command],
            env=environment.variables(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
    if done.returncode:
        raise RuntimeError(f"{command} ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def measure(
    programs: Mapping[str, Case] | None = None, tools: Sequence[str] | None = None, *, verbose: bool = False
) -> Report:
    """Ask each tool about each program.

    Args:
        programs: Which; None stands for all with and without planted bottlenecks.
        tools: Names of the tools; None stands for those that are installed.
        verbose: Whether to print each answer when it is there.
    """
    programs = cases() if programs is None else programs
    tools = installed() if tools is None else tools
    answers: dict[str, dict[str, Answer]] = {}
    for name, case in sorted(programs.items(), key=lambda each: not each[1].planted):
        answers[name] = {tool: _ask(tool, case) for tool in tools}
        if verbose:
            told = [f"{_cell(answer)} ({answer.seconds:.1f} s)" for answer in answers[name].values()]
            print(f"{name} [{case.cause} {case.where}]\n    " + "\n    ".join(told), flush=True)
    rows = [[name, _planted(programs[name]), *map(_cell, found.values())] for name, found in answers.items()]
    goals: list[Goal] = []
    for label, planted in (("planted bottlenecks named", True), ("nothing named where nothing is wrong", False)):
        names = [name for name in answers if programs[name].planted is planted]
        right = [sum(answers[name][tool].right for name in names) for tool in tools]
        rows.append([label, "", *(f"{count} of {len(names)}" for count in right)])
        if names and "composer doctor" in tools:
            wrong = 100 * (1 - right[list(tools).index("composer doctor")] / len(names))
            what = "planted bottlenecks that the doctor does not name" if planted else "healthy programs with a verdict"
            goals.append(Goal(what, wrong, 5.0 if planted else 0.0, "%"))
    seconds = [[found[tool].seconds for found in answers.values()] for tool in tools]
    rows.append(["seconds a program, median", "", *(f"{statistics.median(each):.1f}" for each in seconds)])
    samples = {
        name: {tool: {"right": a.right, "text": a.text, "seconds": a.seconds, **a.details} for tool, a in found.items()}
        for name, found in answers.items()
    }
    columns = ["program", "planted", *tools]
    title = "Who names the bottleneck: composer doctor, traceml-ai and torch's profiler"
    return Report("doctor_tools", title, columns, rows, goals, _NOTES, samples, environment.describe())


def _ask(tool: str, case: Case) -> Answer:
    begin = time.perf_counter()
    try:
        return TOOLS[tool](case)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Answer(False, f"fails: {type(error).__name__}", time.perf_counter() - begin, {"error": str(error)})


def _planted(case: Case) -> str:
    return f"{case.cause}: {case.where}" if case.where else case.cause if case.planted else "nothing"


def _cell(answer: Answer) -> str:
    return f"{'right' if answer.right else 'WRONG'}: {answer.text}"


_NOTES = [
    "Each tool gets each program in new processes with one thread; the seconds include their start.",
    "`composer doctor` measures 20 steps and tries no remedy, except `find_unused` with two ranks, which is part "
    "of the verdict. It is right if it names the cause and the class, function or setting, or says that nothing "
    "is wrong where nothing is.",
    f"`traceml-ai` traces {TRACED_STEPS} batches in its summary mode, in a step from the loaded batch to the "
    "request for the next one, as its guide for a custom loop says. Its primary diagnosis names no place, so the "
    "cause is enough: input-bound stands for data; residual-heavy for callback, method, logging, evaluation, "
    "saving, metrics and host; a straggler for communication and imbalance, "
    "that of its input for data too; compute-bound for compute, for the optimizer if "
    "that is its largest phase, for code in the forward or backward pass if that is, and for nothing wrong, since "
    "it is marked as information.",
    f"`torch.profiler` records {PROFILED_STEPS} steps with stacks. It is right if one of the {ROWS} rows with the most "
    "self CPU time in the thread that trains, or a frame of the stack in which such a row takes most of it, is in the "
    "planted code or in the part of the library at fault; for the host without a place, if one of the rows is a Python "
    "function; for compute, if one is an operator. It gives no verdict, so where nothing is wrong it is right if the "
    "first row is not data, a callback, logging, and so on.",
    "The programs are in `tests/diagnosis/bottlenecks.py` and `healthy.py`. They were written with the doctor; "
    "`python -m tests.diagnosis.measure --set fresh` runs it on programs that were not.",
]


def installed() -> list[str]:
    """Return the names of the tools that can be asked here."""
    return [name for name in TOOLS if name != "traceml-ai" or environment.has("traceml_ai")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs whose name holds one of these texts; all by default")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=installed(), help="default: those installed")
    parser.add_argument("--set", default="own", choices=["own", "fresh", "unusual"], help="others are held out")
    given = parser.parse_args()
    report = measure(cases(given.set, given.names), given.tools, verbose=True)
    print(report.text())
    if not given.names and len(given.tools) == len(TOOLS) and given.set == "own":
        report.write()


if __name__ == "__main__":
    main()
