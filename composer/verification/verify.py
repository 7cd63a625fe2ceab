"""Verify that a training program computes the same whatever the number of processes, microbatches and restarts."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from composer._cpus import cpus_of_node
from composer._string_lists import no_string
from composer._text import one_of, plural
from composer.trials import ForkServer, Record, Study, Target, Trial, TrialDisplay
from composer.trials.workspace import threads_each, workspace
from composer.verification._judge_compiled import located
from composer.verification._judge_exact import HASHES_MAY_CAUSE, judge_hashes
from composer.verification._judge_exchange import is_of_comparing_loss, judge_exchanged
from composer.verification._judges import explain, judge, reference_findings
from composer.verification._recorder import FACTS_FILE
from composer.verification.code_facts import samples
from composer.verification.compare import Runs, steps_of
from composer.verification.findings import Finding, Report

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["CHECKS", "verify"]

_MIN_STEPS = 3
_PROBE = "composer.verification._recorder:Recorder"

# With full batches, whatever the program does.
_SAME_BATCHES = ("device_train_microbatch_size=None", "grad_accum=None")

CHECKS: dict[str, str] = {
    "same": "the same run again is equal bit for bit",
    "data": "an epoch has every sample once, batches split correctly, and training does not modify the data",
    "resume": "a run that is killed and resumed is equal bit for bit to one that is not",
    "reload": "a checkpoint that is loaded and saved again is equal bit for bit",
    "resume_ranks": "a run that is resumed on 2 ranks computes the same",
    "microbatch": "microbatches of a half, a quarter and one sample give the same gradients",
    "ddp": "2 ranks with DDP compute the same",
    "fsdp": "2 ranks with FSDP compute the same",
    "tp": "2 ranks with tensor parallelism compute the same, if the run has a plan",
    "random": "2 ranks sample different random numbers",
    "evaluation": "evaluation does not change the training",
    "logging": "loggers, the progress bar and monitors do not change the training",
    "callbacks": "the callbacks of the run do not change the training",
    "workers": "the number of data workers does not change the training",
    "compile": "the compiled model computes the same",
    "methods": "each method at its neutral setting changes nothing",
    "precision": "the precision of the run gives the losses of fp32 within 5 %, and the gradients within 30 %",
}
"""The checks of :func:`verify` by name, in the order of the report, with what must hold."""


def verify(
    program: Callable[[], Trainer] | Target | Sequence[str],
    *,
    steps: int = 6,
    checks: Sequence[str] | None = None,
    folder: str | Path | None = None,
    parallel: int | None = None,
    time_limit: float = 300.0,
    fit: int = 1,
    progress: bool = True,
) -> Report:
    """Train a few steps in many ways that must not matter, compare them, and name the cause of what differs.

    Each way is a run in a process of its own. Where equality must be exact, it is demanded bit for bit; runs that split
    the batch in another way are compared in float64, without what depends on the split (dropout, batch statistics,
    methods that sample), within a relative 1e-6.

    Args:
        program: A function that returns a trainer which is not fitted yet; or a command line such as
            ``["train.py", "--lr", "0.1"]``.
        steps: Number of steps to train.
        checks: Names of the checks to run, of :data:`CHECKS`; None runs all that apply.
        folder: Folder for the records of the runs, with which an interrupted call goes on; None uses a temporary one.
        parallel: Number of runs at the same time; None for one for each 2 CPU cores and at least 2, or 1 with an
            accelerator. They share the cores, unless ``OMP_NUM_THREADS`` is set.
        time_limit: Seconds after which a run is terminated.
        fit: Which call of ``fit`` of the program is meant, from 1.
        progress: Whether to show the progress on stderr.

    Returns:
        The report; ``report.ok`` says whether no check failed or is undecided.

    Raises:
        ValueError: An argument is out of range, or a check does not exist.
        RuntimeError: The program does not train; the error has its traceback.

    >>> verify(["train.py"], steps=2)
    Traceback (most recent call last):
    ValueError: steps must be at least 3, to resume in the middle; got 2.
    """
    if steps < _MIN_STEPS:
        raise ValueError(f"steps must be at least {_MIN_STEPS}, to resume in the middle; got {steps}.")
    no_string("checks", checks)
    chosen = list(CHECKS) if checks is None else [one_of("checks", check, list(CHECKS)) for check in checks]
    target = Target.of(program, fit)
    if parallel is None:
        cores = cpus_of_node()
        parallel = 1 if torch.accelerator.is_available() else max(min(cores, 2), cores // 2)
    with workspace(folder, [_PROBE], threads_each(parallel)) as (where, server):
        return _Verification(target, where, steps, chosen, parallel, time_limit, progress, server).report()


class _Verification:
    """One call of :func:`verify`; its arguments are those of the function, and the server that forks the trials.

    Attributes:
        all_forked: Whether to fork also the trials that should have a Python of their own, to save seconds.
    """

    all_forked = False

    def __init__(
        self,
        target: Target,
        folder: Path,
        steps: int,
        checks: Sequence[str],
        parallel: int,
        time_limit: float,
        progress: bool,
        server: ForkServer | None,
    ) -> None:
        self._target, self._folder, self._checks = target, folder, checks
        self._parallel, self._time_limit, self._progress, self._server = parallel, time_limit, progress, server
        self._shown: set[str] = set()  # keys of the trials whose lines were printed
        self._steps, self._epoch_batches = steps, max(2, steps // 3)

    def report(self) -> Report:
        """Run all trials, and judge them."""
        start = time.monotonic()
        record = self._reference()
        self._save_at = self._choose_save(steps_of(record)["steps"])
        facts = _facts(record) | _facts(self._run([self._data_trial()])["data"])
        plan = [(check, trial) for check in self._checks for trial in self._trials(check, facts)]
        trials = [trial for _, trial in plan if isinstance(trial, Trial)]
        needed: set[str] = {name for trial in trials for name in trial.after}
        others = [self._exact(name) for name in ("exact", "exact-cpu") if name in needed]
        others += [self._same()] if "same" in needed else []
        without = [self._without(name) for name in sorted(needed) if name.startswith("without-")]
        records = {"reference": record}
        if trials:
            first = [self._reference_trial(), *others, *without]
            records |= self._run(list({trial.name: trial for trial in [*first, *trials]}.values()))
        noted = records["same"] if "same" in records and records["same"].is_completed else record
        facts["changes"] = {**steps_of(record)["changes"], **steps_of(noted)["changes"]}
        own = reference_findings(facts, steps_of(record), split=bool(others))
        findings = explain([*own, *self._judged(plan, records, facts)])
        findings = [self._located(f, facts) if f.cause == "compile_differs" else f for f in findings]
        findings = [self._with_hashes(f) if f.check == "same" and f.cause in HASHES_MAY_CAUSE else f for f in findings]
        if any(map(is_of_comparing_loss, findings)):
            findings = self._exchanged(findings, facts)
        return Report(findings, facts, time.monotonic() - start)

    def _located(self, finding: Finding, facts: Mapping[str, Any]) -> Finding:
        """Return a finding about the compiled model with the module that differs when it is compiled alone."""
        trial = self._trial("compile-modules", _SAME_BATCHES, ["reference"], exact=True, hooks=False, locate=True)
        return located(finding, self._run([self._reference_trial(), trial])["compile-modules"], facts["classes"])

    def _with_hashes(self, finding: Finding) -> Finding:
        """Return a finding about two equal runs, after two more with the same hashes of strings."""
        if self.all_forked:
            return finding  # all runs had the same hashes
        names = ("same-hashes-1", "same-hashes-2")
        trials = [dataclasses.replace(self._trial(name), fresh=True, hash_seed=0) for name in names]
        return judge_hashes(finding, *self._run(trials).values())

    def _exchanged(self, findings: Sequence[Finding], facts: Mapping[str, Any]) -> list[Finding]:
        """Return findings that take the loss to compare samples with the result of an exchange between microbatches."""
        half = self._microbatch(max((facts["exact_batch_size"] or facts["batch_size"]) // 2, 1))
        others = [
            self._trial(name, half.changes, half.after, exact=True, exchange=True, whole=name == "exchange-whole")
            for name in ("exchange", "exchange-whole")
        ]
        found = self._run([self._reference_trial(), self._exact("exact"), half, *others])
        records = [found[name] for name in ("exact", half.name, "exchange", "exchange-whole")]
        return [judge_exchanged(each, *records) if is_of_comparing_loss(each) else each for each in findings]

    def _reference(self) -> Record:
        """Run the program as it is; if it trains for fewer steps than asked, verify as many as there are.

        Epochs are a third of the steps, to save in the second of three, or longer if the program has fewer epochs.
        """
        record, steps = self._reference_steps()
        if len(steps) < self._steps:
            epochs = sum(step["batch in epoch"] == 0 for step in steps)
            longer = -(-self._steps // max(epochs, 1))
            if longer > self._epoch_batches:
                self._epoch_batches = longer
                record, steps = self._reference_steps()
        if len(steps) < _MIN_STEPS:
            raise RuntimeError(
                f"The program trains for {plural(len(steps), 'step')} only; verify needs at least {_MIN_STEPS}."
            )
        if len(steps) < self._steps:
            self._steps = len(steps)
            record, _ = self._reference_steps()
        return record

    def _reference_steps(self) -> tuple[Record, list[dict[str, Any]]]:
        """Run the program as it is; return the record, and the steps."""
        record = self._run([self._reference_trial()])["reference"]
        _facts(record)
        return record, steps_of(record)["steps"]

    def _choose_save(self, steps: Sequence[Mapping[str, Any]]) -> int:
        """Return after how many steps to save: at random, in the middle of an epoch after the first if there is one.

        The same program saves at the same step each time. What is lost at the end of an epoch shows only later. After
        an odd number of steps that is no power of 2, a counter that is lost differs from the one that goes on also in
        what it is modulo 2, 4 or 8. Two steps are left at least, if possible.

        Args:
            steps: The steps of the reference.
        """
        every = [step["step"] for step in steps[1:]]
        inner = [step["step"] for step in steps[1:] if step["batch in epoch"] > 0]
        second = next((step["step"] for step in steps[1:] if step["batch in epoch"] == 0), 0)
        later = [step for step in inner if step > second]
        odd = [step for step in later or inner or every if step % 2 and step & (step - 1)]
        early = [step for step in odd if step < every[-1]]
        return random.Random(self._target.fingerprint).choice(early or odd or later or inner or every)

    def _reference_trial(self) -> Trial:
        return self._trial("reference", inspect=True)

    def _judged(
        self, plan: Sequence[tuple[str, Trial | str]], records: Mapping[str, Record], facts: Mapping[str, Any]
    ) -> Iterator[Finding]:
        """Yield a finding for each check."""
        runs = Runs(records)
        for check, trial in plan:
            if isinstance(trial, str):
                yield Finding(check, "skipped", trial)
            else:
                yield judge(check, trial, runs, facts)

    def _run(self, trials: Sequence[Trial]) -> dict[str, Record]:
        if not self._progress:
            return Study(self._folder, parallel=self._parallel, server=self._server).run(trials)
        with TrialDisplay(len(trials), shown=self._shown) as display:
            return Study(self._folder, parallel=self._parallel, display=display, server=self._server).run(trials)

    def _trial(
        self, name: str, changes: Sequence[str] = (), after: Sequence[str] = (), ranks: int = 1, **arguments: Any
    ) -> Trial:
        given = {"steps": self._steps, "epoch_batches": self._epoch_batches, **arguments}
        return Trial(
            name,
            self._target,
            _PROBE,
            given,
            tuple(changes),
            ranks=ranks,
            time_limit=self._time_limit,
            after=tuple(after),
            threads=threads_each(self._parallel),
        )

    def _data_trial(self) -> Trial:
        """Return the trial that inspects the data, which may change them, so that it is compared with no other."""
        return self._trial("data", data=True)

    def _same(self) -> Trial:
        """Return the same run again, which saves a checkpoint as it goes, and is killed at its end."""
        return self._fresh(self._trial("same", attribute=True, kill=True, save_at=self._save_at))

    def _without(self, name: str) -> Trial:
        """Return the reference without a method."""
        return self._trial(name, [f"algorithms-={name.removeprefix('without-')}"], ["reference"])

    def _fresh(self, trial: Trial) -> Trial:
        """Return a trial that does not share hashes and memory addresses with the reference."""
        return trial if self.all_forked else dataclasses.replace(trial, fresh=True)

    def _exact(self, name: str) -> Trial:
        """Return the reference in exact mode, on the device of the run or on the CPU."""
        changes = [*_SAME_BATCHES, *(["device=cpu"] if name == "exact-cpu" else [])]
        return self._trial(name, changes, ["reference"], exact=True, save_at=self._save_at)

    def _trials(self, check: str, facts: Mapping[str, Any]) -> Iterator[Trial | str]:
        """Yield the trials of a check, or why there are none."""
        make = {"microbatch": self._microbatches, "workers": self._workers, "methods": self._methods}.get(check)
        if make is not None:
            yield from make(facts)
        elif check in ("ddp", "fsdp", "tp", "resume_ranks"):
            yield from self._ranks(check, facts)
        elif check == "same":
            yield self._same()
        elif check == "random":
            if not facts["random_modules"] and not _may_sample(facts["suspects"]):
                yield "no module of the run samples random numbers"
            else:
                cpu = torch.accelerator.is_available() and torch.accelerator.device_count() < 2
                yield self._trial("random", ["device=cpu"] if cpu else [], ["reference"], 2, share=True)
        elif check in ("resume", "reload"):
            yield self._trial("resume", after=["reference", "same"], resume="same", save_at=self._save_at)
        elif check == "evaluation":
            if not facts["evaluators"]:
                yield "the run does not evaluate"
            elif facts["metric_schedules"]:
                yield f"{', '.join(facts['metric_schedules'])} follows the evaluation"
            else:
                yield self._trial("evaluation", evaluate=True)
        elif check == "logging":
            yield self._trial("logging", log=True)
        elif check == "callbacks":
            if facts["callbacks"]:  # the check same notes what each of them changes
                yield self._trial("callbacks", after=["reference", "same"], callbacks=False)
            else:
                yield "the run has no callbacks"
        elif check == "compile":
            yield self._trial(
                "compile", _SAME_BATCHES, ["reference", "exact"], exact=True, hooks=False, compile=True
            )  # fmt: skip
        elif check == "data":
            yield self._data_trial()
        elif check == "precision":
            if facts["precision"] == "fp32":
                yield "the run trains in fp32"
            else:
                yield self._trial("precision", ["precision=fp32"], ["reference"])

    def _microbatches(self, facts: Mapping[str, Any]) -> Iterator[Trial | str]:
        size = facts["exact_batch_size"] or facts["batch_size"]
        if size < 2:
            yield "the batches have one sample"
        for each in sorted({max(size // 2, 1), max(size // 4, 1), 1}, reverse=True):
            yield self._microbatch(each)

    def _microbatch(self, size: int) -> Trial:
        changes, after = [f"device_train_microbatch_size={size}"], ["reference", "exact"]
        return self._trial(f"microbatch-{size}", changes, after, exact=True, attribute=True)

    def _ranks(self, check: str, facts: Mapping[str, Any]) -> Iterator[Trial | str]:
        reference = "exact"
        changes = list(_SAME_BATCHES)
        if torch.accelerator.is_available() and torch.accelerator.device_count() < 2:
            reference, changes = "exact-cpu", [*changes, "device=cpu"]
        if check == "tp" and facts["plan"] is None:
            yield "the run has no tensor parallel plan"
        elif check in ("fsdp", "tp") and facts["unsharded"]:
            name, reason = next(iter(facts["unsharded"].items()))
            yield f"{name} requires unsharded parameters: {reason}"
        elif check == "resume_ranks" and facts["made_by_sampler"]:
            yield "the sampler yields batches, which the position in the data counts; on 2 ranks they have another size"
        elif check == "resume_ranks":
            yield self._trial("resume_ranks", changes, ["reference", reference], 2, exact=True, load=reference)
        else:
            config = {"ddp": [], "fsdp": ["parallelism_config={'fsdp': {}}"], "tp": []}[check]
            trial = self._trial(check, [*changes, *config], ["reference", reference], 2, exact=True, attribute=True)
            # With the launcher, as a run: its ranks have different hashes, so that an order by hash differs.
            yield self._fresh(trial) if check == "ddp" else trial

    def _methods(self, facts: Mapping[str, Any]) -> Iterator[Trial | str]:
        if not facts["neutral"]:
            yield "the run has no methods"
        for name, setting in facts["neutral"].items():
            if isinstance(setting, str):
                yield f"{name} has no neutral setting: {setting}"
            elif setting:
                yield self._trial(f"neutral-{name}", after=["reference", f"without-{name}"], neutral=name)
            else:  # it does not change the training as it is
                yield self._without(f"without-{name}")

    def _workers(self, facts: Mapping[str, Any]) -> Iterator[Trial | str]:
        if facts["workers"] is None:
            yield "the data is not a DataLoader, which can have workers"
        else:
            number = 0 if facts["workers"] else 2
            yield self._trial("workers", [f"train_dataloader.num_workers={number}"])


def _may_sample(suspects: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the code of a module, the model, an algorithm or a callback has generators of its own."""
    return any(samples(used) for name, used in suspects.items() if not name.startswith("data "))


def _facts(record: Record) -> dict[str, Any]:
    """Return what a trial found out."""
    if not record.is_completed:
        raise RuntimeError(f"The program does not train: {record.error}\n{record.details}".rstrip())
    return json.loads((record.path / FACTS_FILE).read_text(encoding="utf-8"))
