"""Tokens and images a second, and MFU, of every loop against the hand-written one of the same round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks import environment
from benchmarks.environment import Worker
from benchmarks.gpu import contenders
from benchmarks.gpu.contenders import CONTENDERS
from benchmarks.gpu.options import Options
from benchmarks.gpu.training import SOURCES
from benchmarks.gpu.workloads import Workload, workload
from benchmarks.report import Goal, Report, doubt_of, spread

MOST_SECONDS = 240.0
RAW, RAW_COMPILED, OURS, OURS_COMPILED = list(CONTENDERS)[:4]
NEEDED = (RAW, RAW_COMPILED, OURS, OURS_COMPILED)
AT_ONCE = {"gpt2": 2, "resnet50": 3}  # contenders that warm up beside each other: they compile most of that time
NOT_COMPILED = "left out: nothing can be compiled here"
LOSS_TOLERANCE = 0.05  # of what training gains, between the raw loop and another
MOVED_TOLERANCE = 0.05  # of the length of the way that the weights went
_MARGIN = 15.0  # seconds left to end the trainings


@dataclass
class Runs:
    """What was measured of a contender.

    Attributes:
        turns: Seconds a step by source, on the wall and on the device, for each round; and the peak of memory.
        facts: What shows that it did the work.
        left_out: Why it has no figures, if so.
    """

    turns: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: str = ""

    def seconds(self, source: str) -> list[float]:
        """Seconds a step of each round."""
        return [turn[source][0] for turn in self.turns]


def measure(work: str, options: Options, names: list[str] | None = None) -> Report:
    """Train a workload in all ways, in turns.

    Args:
        work: "gpt2" or "resnet50".
        options: Device, size, rounds and time.
        names: Which contenders; by default all that are installed.
    """
    end = time.monotonic() + min(options.seconds, MOST_SECONDS) - _MARGIN
    here, missing = contenders.present(work)
    runs = {name: Runs() for name in (names or here)}
    with _workers(list(runs), options) as workers:
        peak = workers[RAW].call("benchmarks.gpu.peak:measure", device=options.device, tiny=options.tiny)
        counts = _counts(work, options)
        if any(CONTENDERS[name].compiled for name in runs):
            _leave_out_the_compiled(workers[RAW], runs, options)
        _start(workers, runs, work, options, counts, end)
        _take_turns(workers, runs, options.rounds, end)
        for name, run in runs.items():
            if not run.left_out:
                _attempt(run, lambda name=name, run=run: run.facts.update(workers[name].call(_at("finish"), name=name)))
    return _report(work, options, runs, counts, peak, missing)


@contextmanager
def _workers(names: list[str], options: Options) -> Iterator[dict[str, Worker]]:
    """A process for each contender; in tiny form one for all that are eager and one for the others."""
    keys = {name: str(CONTENDERS[name].compiled) if options.tiny else name for name in names}
    processes = {key: Worker() for key in set(keys.values())}
    try:
        yield {name: processes[key] for name, key in keys.items()}
    finally:
        with ThreadPoolExecutor(len(processes)) as pool:  # each takes a second or two to let go of its device
            list(pool.map(lambda worker: worker.__exit__(), processes.values()))


def _at(function: str) -> str:
    return f"benchmarks.gpu.training:{function}"


def _counts(work: str, options: Options) -> dict[str, int]:
    if options.tiny:
        return {"warmup": 2, "settle": 2, "steps": 3, "turns": options.rounds}
    return {"warmup": 5, "settle": 3, "steps": 12 if work == "gpt2" else 10, "turns": options.rounds}


def _attempt(run: Runs, call: Callable[[], object]) -> None:
    """A library that fails here is a row that says so."""
    try:
        call()
    except RuntimeError as error:
        run.left_out = f"failed: {str(error).strip()[-1500:]}"


def _leave_out_the_compiled(worker: Worker, runs: dict[str, Runs], options: Options) -> None:
    """Where nothing can be compiled, as without a compiler of C, only the eager ones are compared."""
    backend = "eager" if options.tiny else "inductor"
    try:
        worker.call("benchmarks.gpu.compiler:compile_something", device=options.device, backend=backend)
    except RuntimeError as error:
        for name, run in runs.items():
            if CONTENDERS[name].compiled:
                run.left_out = f"{NOT_COMPILED}: {str(error).strip()[-1500:]}"


def _start(
    workers: dict[str, Worker], runs: dict[str, Runs], work: str, options: Options, counts: dict[str, int], end: float
) -> None:
    """Begin the trainings; the last ones only while half of the time is left."""
    latest = time.monotonic() + (end - time.monotonic()) * 0.5
    arguments = {"work": work, "tiny": options.tiny, "device": options.device, **counts}
    arguments["backend"] = "eager" if options.tiny else "inductor"

    def build(name: str) -> None:
        if not runs[name].left_out:
            _attempt(runs[name], lambda: workers[name].call(_at("build"), name=name, **arguments))

    def warm_up(name: str) -> None:
        run = runs[name]
        if name not in NEEDED and time.monotonic() > latest:
            run.left_out = run.left_out or "left out: no time to start it"
        if not run.left_out:
            _attempt(run, lambda: run.facts.update(workers[name].call(_at("warm_up"), name=name)))

    # In tiny form contenders share processes, which answer one at a time.
    for step, at_once in ((build, len(runs)), (warm_up, AT_ONCE[work])):
        with ThreadPoolExecutor(1 if options.tiny else at_once) as pool:
            list(pool.map(step, runs))


def _take_turns(workers: dict[str, Worker], runs: dict[str, Runs], rounds: int, end: float) -> None:
    """Let each train a turn in each round; if the first shows that time is short, the last ones stay out."""
    for number in range(rounds):
        taken: dict[str, float] = {}
        for name, run in runs.items():
            if run.left_out:
                continue
            begin = time.monotonic()
            _attempt(run, lambda name=name, run=run: run.turns.append(workers[name].call(_at("turn"), name=name)))
            taken[name] = time.monotonic() - begin
        for name in reversed(taken):
            # A turn more for each, since the trainings run out after the last round.
            if name not in NEEDED and time.monotonic() + sum(taken.values()) * (rounds - number) > end:
                del taken[name]
                runs[name].left_out = "left out: no time for all rounds"


def works_alike(facts: dict[str, Any], raw: dict[str, Any]) -> str:
    """Return in what the work of a contender was other than that of the raw loop; "" if in nothing.

    Args:
        facts: What :func:`benchmarks.gpu.training.finish` returned of it.
        raw: The same of the raw loop.
    """
    differs = [
        f"{name} {facts[name]} rather than {raw[name]}"
        for name in ("updates", "logits", "weights", "settings")
        if facts[name] != raw[name]
    ]
    gain = abs(raw["loss before"] - raw["loss after"])
    if not math.isclose(facts["loss before"], raw["loss before"], rel_tol=1e-3):
        differs.append(f"first loss {facts['loss before']:.4f} rather than {raw['loss before']:.4f}")
    if not abs(facts["loss after"] - raw["loss after"]) <= LOSS_TOLERANCE * gain:
        differs.append(f"last loss {facts['loss after']:.4f} rather than {raw['loss after']:.4f}")
    if not math.isclose(facts["moved"], raw["moved"], rel_tol=MOVED_TOLERANCE):
        differs.append(f"weights moved by {facts['moved']:.4f} rather than {raw['moved']:.4f}")
    return "; ".join(differs)


def _differs(name: str, runs: dict[str, Runs]) -> str:
    """In what the work was other than that of the raw loop of the same mode; of that, than that of the eager one."""
    base = RAW_COMPILED if CONTENDERS[name].compiled and name != RAW_COMPILED else RAW
    return works_alike(runs[name].facts, runs[base].facts) if _ran(runs, base) else "there is no raw loop"


def _ran(runs: dict[str, Runs], name: str) -> bool:
    return name in runs and not runs[name].left_out


def mfu(units_a_second: float, flops: float, peak: float | None) -> float:
    """Return the share of a device's peak that a training uses, NaN where that is not known.

    Args:
        units_a_second: Tokens or images a second.
        flops: Floating-point operations of training for each.
        peak: The most that the device can do a second.
    """
    return math.nan if not peak else units_a_second * flops / peak


def ratios(run: Runs, base: Runs, source: str = "device") -> list[float]:
    """Return the speed of a contender over that of another, round by round.

    Args:
        run: The contender.
        base: The other.
        source: Where batches lie.
    """
    return [theirs / ours for ours, theirs in zip(run.seconds(source), base.seconds(source), strict=False)]


def _row(name: str, runs: dict[str, Runs], work: Workload, peak: dict[str, Any], differs: str) -> list[Any]:
    run = runs[name]
    base = RAW_COMPILED if CONTENDERS[name].compiled else RAW
    times = {source: run.seconds(source) for source in SOURCES}
    middle = {source: statistics.median(values) for source, values in times.items()}
    speed = work.units / middle["device"]

    def over(other: str, source: str = "device") -> float:
        found = ratios(run, runs[other], source) if _ran(runs, other) else []
        return statistics.median(found) if found else math.nan

    return [
        CONTENDERS[name].title,
        speed,
        work.units / middle["host"],
        middle["device"] * 1e3,
        spread(times["device"]) * 1e3,
        statistics.median(turn["device"][1] for turn in run.turns) * 1e3,
        mfu(speed, work.flops, peak["sheet"]),
        mfu(speed, work.flops, peak["measured"]),
        over(base),
        over(base, "host"),
        over(RAW),
        max(turn["peak"] for turn in run.turns) / 2**30,
        run.facts["warm-up"],
        "differs" if differs else "the same",
    ]


def _goals(runs: dict[str, Runs], differs: dict[str, str]) -> list[Goal]:
    """The two of composer's compiled loop, as times rather than speeds, since goals are upper limits."""
    goals = []
    for base, least in ((RAW_COMPILED, 0.98), (RAW, 1.1)):
        if not _ran(runs, base) or not _ran(runs, OURS_COMPILED):
            continue
        found = [1 / ratio for ratio in ratios(runs[OURS_COMPILED], runs[base])]
        doubt = doubt_of("the raw loop", runs[base].seconds("device"))
        for name in (base, OURS_COMPILED):
            doubt = f"the work of {CONTENDERS[name].title} differs" if differs.get(name) else doubt
        what = f"composer, compiled: time of a step over that of the {CONTENDERS[base].title} (speed at least {least}x)"
        goals.append(Goal(what, statistics.median(found), 1 / least, doubt=doubt))
    return goals


def _report(
    work: str,
    options: Options,
    runs: dict[str, Runs],
    counts: dict[str, int],
    peak: dict[str, Any],
    missing: list[str],
) -> Report:
    task = workload(work, options.tiny)
    ran = {name: run for name, run in runs.items() if not run.left_out}
    differs = {name: _differs(name, runs) for name in ran}
    rows = [_row(name, runs, task, peak, differs[name]) for name in ran]
    notes = _notes(task, options, counts, peak, AT_ONCE[work])
    notes += [f"{CONTENDERS[name].title}: {run.left_out}" for name, run in runs.items() if run.left_out]
    notes += [f"{CONTENDERS[name].title} differs: {how}" for name, how in differs.items() if how]
    notes += [f"Not installed, and so not compared: {', '.join(missing)}."] if missing else []
    columns = [
        f"{task.unit} a second",
        "on the device",
        "from the host",
        "ms a step",
        "spread",
        "ms by events",
        "MFU of sheet",
        "MFU of product",
        "over raw alike",
        "the same, host",
        "over raw eager",
        "peak GiB",
        "warm-up s",
        "work",
    ]
    failed = [
        f"{CONTENDERS[name].title}: {runs[name].left_out or differs.get(name)}"
        for name in NEEDED
        if name in runs
        and (runs[name].left_out or differs.get(name))
        and not runs[name].left_out.startswith(NOT_COMPILED)  # that fails the check "compiler", for all at once
    ]
    samples = {name: {"turns": run.turns, "facts": run.facts} for name, run in ran.items()} | {"peak": peak}
    title = f"Throughput of training {'GPT-2' if work == 'gpt2' else 'ResNet-50'}"
    machine = environment.describe(options.device)
    return Report(work, title, columns, rows, _goals(runs, differs), notes, samples, machine, "\n".join(failed))


def _notes(task: Workload, options: Options, counts: dict[str, int], peak: dict[str, Any], at_once: int) -> list[str]:
    sheet = f"{peak['sheet'] / 1e12:.0f} TFLOP/s" if peak["sheet"] else "not known for this device"
    return [
        f"{task.title}, bfloat16 autocast with weights in float32, device {options.device}.",
        f"Each contender has a process of its own and one training, which stands still between its turns; {at_once} "
        f"of them warm up at once. {options.rounds} rounds; in each, every contender in turn trains {counts['settle']} "
        f"steps and then {counts['steps']} that are timed, with batches on the device, and the same with batches in "
        "pinned host memory, which are copied in each step. The clock stops when the device is done; by events: the "
        "same between two events on the device. Figures are medians of the rounds; spread is half the interquartile "
        "range.",
        "over raw alike: speed over the hand-written loop of the same mode, eager or compiled, median of the ratios "
        "round by round; over raw eager likewise.",
        f"MFU: {task.unit} a second x {task.flops / 1e9:.4g} GFLOP / peak; GPT-2: 6 x weights in matrix products + 12 "
        "x layers x sequence x width for each token; ResNet-50: counted by torch for a forward and a backward pass. "
        f"Peak by the data sheet (dense bfloat16): {sheet}; by a product of matrices, measured here: "
        f"{peak['measured'] / 1e12:.4g} TFLOP/s.",
        f"warm-up s: from the call of the library to the end of step {counts['warmup']}, compilation from cold caches "
        "included, beside those of other contenders.",
        "All start from the same weights and see the same batches, by the same optimizer. work: the same if the loss "
        "on a batch that is not trained on was the same before, and after the last step within "
        f"{LOSS_TOLERANCE:.0%} of what the raw loop gained; if the weights moved as far within {MOVED_TOLERANCE:.0%}; "
        "and if the number of updates, the dtypes of logits and weights, and the settings of TF32, cuDNN and "
        "determinism at the end are those of the raw loop. That is the one of the same mode; the compiled one is "
        "itself compared with the eager one.",
        "No loop clips, logs, checkpoints or shows a bar. Transformers computes the norm of the gradients in each step "
        "all the same; its check of the loss for NaN, which waits for the device, is off.",
    ]
