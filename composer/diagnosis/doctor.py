"""Find out why a training program is slow: measure its steps, name the cause, and try remedies."""

from __future__ import annotations

import contextlib
import math
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer._secrets.masking import mask_values
from composer._string_lists import no_string
from composer._text import one_of
from composer.diagnosis.first_steps import Steps, difference
from composer.diagnosis.hot_lines import hot_lines
from composer.diagnosis.remedies import ON_REQUEST, REMEDIES, Remedy, combination, would_save
from composer.diagnosis.remedy_rules import applicable
from composer.diagnosis.report import Report, Tried
from composer.diagnosis.step_split import seconds_of, shares_of
from composer.diagnosis.step_trace import StepTrace, copy_trace, trace_file
from composer.diagnosis.verdict import Verdict, judge
from composer.statistics.paired import Ratio, paired_ratio
from composer.trainer import Trainer
from composer.trials import ForkServer, Record, Study, Target, Trial
from composer.trials.assignments import Assignment, trainer_arguments
from composer.trials.interleave import Contest
from composer.trials.workspace import threads_each, workspace

__all__ = ["doctor"]

_RECORDER = "composer.diagnosis.recorder:StepRecorder"
_BLOCKS = "composer.diagnosis.block_recorder:BlockRecorder"
_TRACER = "composer.diagnosis.step_trace:TraceRecorder"
_MIN_STEPS = 5
# A gain must be larger, whatever its interval.
_MIN_GAIN = 0.03
# A block of one process, and of each further one, which waits for the others. A block of whole epochs may be longer.
_BLOCK_SECONDS, _EPOCH_SECONDS, _MAX_STEPS = 0.3, 1.5, 256
# Rounds until nothing is open any more; fewer for what clearly does not pay.
_FEW_ROUNDS, _MIN_ROUNDS, _MAX_ROUNDS = 3, 5, 60
# Seconds of rounds, and of those for remedies that seem to pay and whose gain is still vague.
_CONTEST_SECONDS, _LONGEST_SECONDS = 15.0, 45.0
# Of a remedy to start, or for a block: times those of the whole measurement of the unchanged run, and at least.
_PATIENCE, _LEAST_LIMIT = 3.0, 30.0
# Width of the interval, relative to its value, that is small enough at once, and after these seconds.
_WIDTH, _VAGUE = 0.08, 0.25


def doctor(
    program: Callable[[], Trainer] | Target | Sequence[str],
    *,
    steps: int = 20,
    remedies: Sequence[str] | None = None,
    changes: Sequence[str] = (),
    ranks: int = 1,
    folder: str | Path | None = None,
    time_limit: float = 300.0,
    fit: int = 1,
    trace: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure some steps of a training program as it is, say what bounds its speed, and try remedies.

    The remedies that change no number are measured in turn with the unchanged run, a block of steps each, so that what
    else the computer does hits all of them alike. The program writes into a temporary folder, and its data are read as
    they are.

    Args:
        program: A function that returns a trainer which is not fitted yet; or a command line such as
            ``["train.py", "--lr", "0.1"]``.
        steps: Number of steps to measure.
        remedies: Names of the remedies to try, of :data:`.REMEDIES`; an empty sequence tries none, None all that start
            quickly.
        changes: Assignments to diagnose the program with, such as ``"train_dataloader.num_workers=4"``.
        ranks: Number of processes.
        folder: Folder for the trials; None uses a temporary one.
        time_limit: Seconds after which a trial is terminated.
        fit: Which call of ``fit`` of the program is meant, from 1.
        trace: File for the PyTorch profiler's trace of three further steps of the unchanged run, in Chrome's format
            (``.json``, or compressed as ``.json.gz``); of several processes, that of rank 0. None records none.
        progress: Called with a line whenever something has been measured.

    Returns:
        The report; ``report.ok`` says whether there is no bottleneck, ``report.best`` which remedy pays most.

    Raises:
        ValueError: An argument is out of range, or a remedy or an argument to change does not exist.
        FileExistsError: The file of ``trace`` exists, and is not a trace.
        FileNotFoundError: Its folder does not exist.
        RuntimeError: The program does not train; the error has its traceback.

    >>> doctor(["train.py"], steps=1)
    Traceback (most recent call last):
    ValueError: steps must be at least 5; got 1.
    """
    if steps < _MIN_STEPS:
        raise ValueError(f"steps must be at least {_MIN_STEPS}; got {steps}.")
    no_string("remedies", remedies)
    no_string("changes", changes)
    chosen = None if remedies is None else [one_of("remedies", name, list(REMEDIES)) for name in remedies]
    for change in changes:
        name = Assignment.parse(change).path.partition(".")[0]
        one_of("changes", name, trainer_arguments())
    target = Target.of(program, fit)
    trace = None if trace is None else trace_file("trace", trace)
    probes = [_RECORDER, _BLOCKS, *([_TRACER] if trace else [])]
    with workspace(folder, probes, _threads(ranks)) as (where, server):
        return _Diagnosis(target, where, steps, chosen, changes, ranks, time_limit, trace, progress, server).report()


class _Diagnosis:
    """One call of :func:`doctor`; its arguments are those of the function, and the server that forks the trials."""

    def __init__(
        self,
        target: Target,
        folder: Path,
        steps: int,
        chosen: Sequence[str] | None,
        changes: Sequence[str],
        ranks: int,
        time_limit: float,
        trace: Path | None,
        progress: Callable[[str], None] | None,
        server: ForkServer | None,
    ) -> None:
        self._target, self._folder, self._steps, self._chosen = target, folder, steps, chosen
        self._changes, self._ranks, self._time_limit = tuple(changes), ranks, time_limit
        self._trace, self._progress, self._server = trace, progress, server
        self._measured = time_limit  # seconds that it took to measure the unchanged run

    def report(self) -> Report:
        """Measure, judge, and try the remedies."""
        start = time.monotonic()
        record = self._measure("measure", ())
        result, self._measured = record.result, record.seconds
        self._say(f"measured {len(result['steps'])} steps")
        inline = None
        data = result["facts"]["data"]
        if data.get("workers") and shares_of(result).get("data", 0.0) > 0.1:
            with contextlib.suppress(RuntimeError):  # the evidence is poorer without it
                change = ("train_dataloader.num_workers=0",)
                inline = self._measure("inline", change, min(self._time_limit, self._patience)).result
        verdict = judge(result, inline)
        self._say(verdict.text)
        found = list(applicable(result, self._chosen))
        noise, tried, combined = self._try(result, found) if found else (None, [], None)
        verdict = _with_gains(verdict, tried)
        trace = self._traced()
        return Report(
            verdict,
            sum(seconds_of(result).values()),
            shares_of(result),
            noise,
            tried,
            combined,
            would_save(result),
            (result.get("operators") or {}).get("waits", ()),
            result["facts"],
            result.get("ranks", ()),
            time.monotonic() - start,
            steps=result["steps"],
            lines=hot_lines(result),
            command=self._command(),
            trace=trace,
            clock=result.get("clock", 0.0),
            errors=result.get("errors", ()),
        )

    def _command(self) -> str:
        """Return the command that repeats the diagnosis, or the name of the function."""
        if self._target.kind not in ("script", "module"):
            return self._target.command
        options = [f"--steps={self._steps}"]
        options += [f"--set={change}" for change in mask_values(self._changes)]
        options += [] if self._chosen is None else [f"--remedies={','.join(self._chosen) or 'none'}"]
        options += [f"--ranks={self._ranks}"] if self._ranks > 1 else []
        options += [f"--fit={self._target.fit}"] if self._target.fit > 1 else []
        return f"composer doctor {shlex.join(options)} {self._target.command}"

    def _traced(self) -> StepTrace | None:
        """Record the trace, if one is wanted; a report without it is of use too."""
        if self._trace is None:
            return None
        trial = self._trial("trace", _TRACER, Remedy("trace"), {})
        record: Record = Study(self._folder, server=self._server).run([trial])["trace"]
        trace = copy_trace(record, self._trace)
        self._say(str(trace))
        return trace

    def _measure(self, name: str, changes: tuple[str, ...], limit: float | None = None) -> Record:
        trial = self._trial(name, _RECORDER, Remedy(name, changes), {"steps": self._steps}, limit)
        record: Record = Study(self._folder, server=self._server).run([trial])[name]
        if not record.is_completed:
            raise RuntimeError(f"The program does not train: {record.error}\n{record.details}")
        return record

    @property
    def _patience(self) -> float:
        """Seconds after which a change that takes longer than the unchanged run will not end, or not pay."""
        return max(_LEAST_LIMIT, _PATIENCE * self._measured)

    def _limit_of(self, remedy: Remedy) -> float:
        """Return the seconds that a remedy may take to start, or for a block; compilation takes as long as it takes."""
        whole = self._time_limit / 2
        is_slow = any(name.partition("-")[0] in ON_REQUEST for name in remedy.name.split("+"))
        return whole if is_slow else min(whole, self._patience)

    def _trial(
        self, name: str, probe: str, remedy: Remedy, arguments: Mapping[str, Any], limit: float | None = None
    ) -> Trial:
        own = Remedy("", self._changes).changed
        given = {**arguments, "changed": [*own, *remedy.changed], "edits": list(remedy.edits)}
        changes = (*self._changes, *remedy.changes)
        return Trial(
            name,
            self._target,
            probe,
            given,
            changes,
            ranks=self._ranks,
            time_limit=self._time_limit if limit is None else limit,
            threads=_threads(self._ranks),
        )

    def _try(
        self, result: Mapping[str, Any], remedies: Sequence[Remedy]
    ) -> tuple[Ratio | None, list[Tried], Tried | None]:
        """Measure remedies, and the combination of those that pay."""
        size = 2 if result["facts"]["device"] != "cpu" else 6
        tried: list[Tried] = []
        noise: Ratio | None = None
        for begin in range(0, len(remedies), size):
            noise, found = self._contest(result, remedies[begin : begin + size])
            tried += found
        paying = [(one.remedy, one.ratio.gain) for one in tried if one.pays and one.is_exact and one.ratio]
        together = combination(paying)
        if together is None:
            return noise, tried, None
        _, found = self._contest(result, [together])
        return noise, tried, found[0]

    def _contest(self, result: Mapping[str, Any], remedies: Sequence[Remedy]) -> tuple[Ratio | None, list[Tried]]:
        """Measure remedies in turn with the unchanged run, which takes part twice."""
        step = sum(seconds_of(result).values())
        named = {"base": Remedy("base"), "again": Remedy("again")} | {one.name: one for one in remedies}
        # Each may hang once, and the others wait.
        whole = self._time_limit * (len(named) + 1) + _LONGEST_SECONDS * self._ranks
        trials = {name: self._trial(_block_name(name), _BLOCKS, one, {}, whole) for name, one in named.items()}
        batches = result["facts"]["data"].get("batches")
        count = _block_steps(step, batches, self._ranks)
        with Contest(
            self._folder,
            trials,
            self._server,
            steps=count,
            batches=batches,
            warmup=max(4, min(count, 64)),
            limit=self._time_limit / 2,
            limits={one.name: self._limit_of(one) for one in remedies},
            parallel=max(1, result["facts"]["cores"] // self._ranks),
        ) as contest:
            racing = [name for name in trials if name not in contest.failed]
            began = time.monotonic()
            for number in range(1, _MAX_ROUNDS + 1):
                racing = contest.play(racing)
                if "base" not in racing or "again" not in racing:
                    raise RuntimeError(f"The unchanged run failed when it was measured again: {contest.failed}")
                if number < _FEW_ROUNDS:
                    continue
                seconds, elapsed = contest.seconds(), (time.monotonic() - began) / self._ranks
                for name in set(racing) - {"base", "again"}:
                    if _is_decided(_ratio(seconds, name), number, elapsed):
                        racing.remove(name)
                        contest.drop(name)
                if len(racing) == 2 or elapsed > _LONGEST_SECONDS:
                    break
            seconds = contest.seconds()
            noise = paired_ratio(seconds["base"], seconds["again"])
            precision = result["facts"].get("precision", "fp32")
            return noise, [self._tried(contest, seconds, one, noise, precision) for one in remedies]

    def _tried(
        self,
        contest: Contest,
        seconds: Mapping[str, Sequence[float]],
        remedy: Remedy,
        noise: Ratio,
        precision: str,
    ) -> Tried:
        if remedy.name in contest.failed or not contest.blocks[remedy.name]:
            error = contest.failed.get(remedy.name, "it did not start")
            self._say(f"{remedy.name}: does not run: {error}")
            return Tried(remedy, None, error=error)
        ratio = _ratio(seconds, remedy.name)
        pays = ratio.low > 1 + _MIN_GAIN / 2 and ratio.gain > max(_MIN_GAIN, abs(math.log(noise.value)))
        self._say(f"{remedy.name}: {ratio}")
        before, again, after = (Steps.read(self._folder / _block_name(name)) for name in ("base", "again", remedy.name))
        return Tried(
            remedy,
            ratio,
            pays=pays,
            difference=difference(before, again, after, precision),
            break_even=_break_even(contest, seconds, remedy.name) if pays else None,
        )

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text)


def _block_name(name: str) -> str:
    """Return the name of the trial of a variant, which is that of its folder."""
    return f"block-{name.replace('+', '.')}"


def _threads(ranks: int) -> int:
    """Return the number of threads of each rank, as the launcher sets it; 0 for torch's own choice of a single one."""
    return threads_each(ranks) if ranks > 1 else 0


def _ratio(seconds: Mapping[str, Sequence[float]], name: str) -> Ratio:
    """Return how many times as fast a variant is as the unchanged run, which is measured twice in each round."""
    after = seconds[name]
    pairs = zip(seconds["base"], seconds["again"], after, strict=False)
    return paired_ratio([math.sqrt(one * two) for one, two, _ in pairs], after)


def _is_decided(ratio: Ratio, rounds: int, elapsed: float) -> bool:
    """Return whether more rounds are not worth their time: the remedy does not pay, or its gain is known well."""
    if ratio.high < 1 + _MIN_GAIN:
        return True
    if elapsed > _CONTEST_SECONDS:
        return ratio.value < 1 + _MIN_GAIN or ratio.high - ratio.low < _VAGUE * ratio.value
    return rounds >= _MIN_ROUNDS and ratio.high - ratio.low < _WIDTH * ratio.value


def _block_steps(step: float, batches: int | None, ranks: int) -> int:
    """Return the number of steps of a block: whole epochs unless these are long.

    Each epoch may end with an evaluation and begin with a wait for its first batch.

    Args:
        step: Seconds of a step.
        batches: Number of batches of an epoch; None if unknown.
        ranks: Number of processes.
    """
    steps = min(_MAX_STEPS, max(2, math.ceil(_BLOCK_SECONDS * ranks / step)))
    if batches and batches * step <= _EPOCH_SECONDS * ranks:
        return batches * math.ceil(steps / batches)
    return steps


def _break_even(contest: Contest, seconds: Mapping[str, Sequence[float]], name: str) -> int | None:
    """Return the number of steps after which a remedy has made up for its slower first steps, such as compilation."""
    means = {each: statistics.fmean(seconds[each]) for each in ("base", name)}
    lost = {
        each: block.total - means[each] * (len(block.seconds) + len(block.skipped))
        for each, block in contest.warmups.items()
        if each in means
    }
    gained = means["base"] - means[name]
    return math.ceil(max(0.0, lost[name] - lost["base"]) / gained) if gained > 0 else None


def _with_gains(verdict: Verdict, tried: Sequence[Tried]) -> Verdict:
    """Return the verdict after the remedies: only a measurement shows what the search for unused parameters takes."""
    for one in tried:
        if one.remedy.name == "find_unused" and one.pays and one.ratio is not None:
            share = 1 - 1 / one.ratio.value
            text = f"Bound by communication: the search for unused parameters takes {share:.0%} of the step."
            evidence = (f"without find_unused_parameters the run is faster by {one.ratio}",)
            if verdict.cause == "communication":
                text = f"{verdict.text.rstrip('.')}, the search for unused parameters for {share:.0%}."
                share, evidence = verdict.share, (*verdict.evidence, *evidence)
            elif verdict.is_found and share <= verdict.share and verdict.cause != "host":
                continue
            return Verdict("communication", text, share, "find_unused_parameters", evidence)
    return verdict
