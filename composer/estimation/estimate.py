"""Estimate the memory that a training program needs on a device, and find what makes it fit."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from composer._numbers import whole_number
from composer._string_lists import no_string
from composer._text import did_you_mean, member_of
from composer.estimation.configuration import Configuration
from composer.estimation.devices import Device, find_device, present_device
from composer.estimation.measuring import PROBE, Measurements, first_guess, largest_microbatch
from composer.estimation.memory import Memory
from composer.estimation.remedies import Remedy, candidates, chosen, strongest, together
from composer.estimation.report import Report
from composer.precision import Precision
from composer.trials import Assignment, Target
from composer.trials.assignments import trainer_arguments
from composer.trials.workspace import workspace

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["as_configuration", "as_device", "estimate", "find_largest", "measurements"]


def estimate(
    program: Callable[[], Trainer] | Target | Sequence[str],
    *,
    device: str | Device | None = None,
    processes: int = 1,
    local_processes: int | None = None,
    strategy: str | None = None,
    microbatch: int | None = None,
    precision: str | None = None,
    changes: Sequence[str] = (),
    remedies: bool = True,
    modules: int = 10,
    folder: str | Path | None = None,
    parallel: int | None = None,
    time_limit: float = 600.0,
    fit: int = 1,
    progress: bool = True,
) -> Report:
    """Estimate the peak of memory of a training program, without the device and the processes.

    A trial runs some steps of the program, the last one at the end of the run, and an evaluation batch, without
    computing: every tensor has its shape and no values. Every allocation is noted with what it holds. If the peak does
    not fit, further trials measure single changes that lower it.

    On accelerators, "fits" leaves 15 % of the memory free for the error of the estimate, which was up to 13 % too low
    on an H200; what leaves less "may not fit". On the CPU 2 % are left.

    Args:
        program: A function that returns a trainer which is not fitted yet; or a command line such as
            ``["train.py", "--lr", "0.1"]``.
        device: Name of the device, such as "H100-80GB", or the size of its memory, such as "80GB"; None for the
            accelerator that is present, else the CPU with the memory of this machine.
        processes: Number of processes.
        local_processes: Number of processes on each node; None for at most 8.
        strategy: "single", "ddp", "fsdp", "hsdp" or "tp"; None for that of the program.
        microbatch: Number of samples in a microbatch; None for that of the program.
        precision: Precision to train in, such as "amp_bf16"; None for that of the program.
        changes: Assignments to arguments of the trainer, such as ``"optimizers.fused=True"``.
        remedies: Whether to find the largest microbatch, and what makes the program fit if it does not.
        modules: How many modules of activations the report lists.
        folder: Folder for the records of the trials, with which an interrupted call goes on; None uses a temporary one.
        parallel: Number of trials that run at the same time; None for one for each CPU core, at most 4.
        time_limit: Seconds after which a trial is terminated.
        fit: Which call of ``fit`` of the program is meant, from 1.
        progress: Whether to show the progress on stderr.

    Returns:
        The report; ``report.ok`` says whether the program surely fits, ``report.outcome`` whether it may.

    Raises:
        ValueError: An argument is out of range, or does not exist.
        RuntimeError: The program does not train; the error has its traceback.

    >>> estimate(["train.py"], device="H100-80GB", strategy="fsdb", processes=8)
    Traceback (most recent call last):
    ValueError: strategy must be one of 'single', 'ddp', 'fsdp', 'hsdp', 'tp', but got 'fsdb'. Did you mean 'fsdp'?
    """
    start = time.monotonic()
    modules = whole_number("modules", modules, minimum=1)
    on = as_device(device)
    base = as_configuration(processes, strategy, microbatch, precision, changes, local_processes)
    with measurements(program, on, folder, parallel, time_limit, fit, progress) as measured:
        memory = measured.measure(base)
        report = Report(on, base, memory, modules=modules)
        if remedies and report.ok:
            report = dataclasses.replace(report, largest=find_largest(measured, base, on))
        elif remedies:
            report = _with_remedies(report, measured)
    return dataclasses.replace(report, seconds=time.monotonic() - start)


def as_device(device: str | Device | None) -> Device:
    """Return the device of an argument.

    Args:
        device: A name or size, a device, or None for that of this machine.

    Raises:
        ValueError: There is no device with this name.

    >>> as_device("16GiB").memory
    17179869184
    """
    return present_device() if device is None else find_device(device) if isinstance(device, str) else device


def as_configuration(
    processes: int,
    strategy: str | None,
    microbatch: int | None,
    precision: str | None,
    changes: Sequence[str],
    local_processes: int | None = None,
) -> Configuration:
    """Return the configuration of the arguments of :func:`estimate`.

    Args:
        processes: As for :func:`estimate`, like the others.
        strategy: The strategy.
        microbatch: The microbatch size.
        precision: The precision.
        changes: The assignments.
        local_processes: The processes on each node.

    Raises:
        ValueError: An argument is out of range, or does not exist.

    >>> as_configuration(1, None, None, None, ["optimizer.lr=0.1"])
    Traceback (most recent call last):
    ValueError: optimizer.lr=0.1: Trainer has no argument 'optimizer'. Did you mean 'optimizers'?
    """
    if microbatch is not None:
        microbatch = whole_number("microbatch", microbatch, minimum=1)
    if precision is not None:
        precision = member_of(Precision, "precision", precision).value
    names = trainer_arguments()
    no_string("changes", changes)
    for text in changes:
        name = Assignment.parse(text).path.partition(".")[0]
        if name not in names:
            raise ValueError(f"{text}: Trainer has no argument {name!r}.{did_you_mean(name, names)}")
    if local_processes is not None:
        local_processes = whole_number("local_processes", local_processes, minimum=1)
    return Configuration(
        whole_number("processes", processes, minimum=1),
        strategy or "",
        microbatch or 0,
        precision=precision or "",
        changes=tuple(changes),
        local_processes=local_processes or 0,
    )


@contextlib.contextmanager
def measurements(
    program: Callable[[], Trainer] | Target | Sequence[str],
    device: Device,
    folder: str | Path | None,
    parallel: int | None,
    time_limit: float,
    fit: int,
    progress: bool,
) -> Generator[Measurements]:
    """Yield what measures configurations of a program; the arguments are those of :func:`estimate`.

    Args:
        program: The program.
        device: The device.
        folder: Folder of the records.
        parallel: Number of trials at the same time.
        time_limit: Seconds of a trial.
        fit: The call of ``fit``.
        progress: Whether to show the progress.

    >>> with measurements(
    ...     ["train.py"], as_device("16GB"), None, None, 60.0, 1, True
    ... ) as measured:  # doctest: +SKIP
    ...     measured.measure(Configuration(microbatch=8)).peak
    181458848
    """
    target = Target.of(program, fit)
    at_once = min(os.cpu_count() or 1, 4) if parallel is None else parallel
    # What a program that gives no precision trains in.
    precision = "amp_bf16" if device.is_accelerator else None
    on = device.is_accelerator
    with workspace(folder, [PROBE]) as (where, server):
        yield Measurements(target, where, precision, at_once, time_limit, cuda=on, progress=progress, server=server)


def find_largest(measured: Measurements, base: Configuration, device: Device) -> tuple[int, Memory] | None:
    """Return the largest microbatch that surely fits and its memory; None if not even one sample does.

    Args:
        measured: Measures configurations.
        base: The configuration, which was measured.
        device: The device.

    >>> find_largest(measured, Configuration(), as_device("16GB"))[0]  # doctest: +SKIP
    48
    """

    def measure(size: int) -> Memory | None:
        changed = dataclasses.replace(base, microbatch=size)
        found = measured([changed])[changed]
        if isinstance(found, Memory) and found.needed > device.available and found.stage == "evaluation":
            changed = dataclasses.replace(changed, eval_microbatch=size)
            found = measured([changed])[changed]
        return found if isinstance(found, Memory) else None

    memory = measured.measure(base)
    # Sizes at which the evaluation does not fit are tried with microbatches there too.
    known = {
        size: found
        for size, found in measured.microbatches(base).items()
        if found is None or found.needed <= device.available or found.stage != "evaluation"
    }
    known = known or {memory.facts["microbatch"]: measure(memory.facts["microbatch"])}
    return largest_microbatch(measure, memory.facts["batch_size"], known, device.available)


def _with_remedies(report: Report, measured: Measurements) -> Report:
    """Return a report with the largest microbatch, and the changes that lower the memory, each measured."""
    base, facts, device = report.configuration, report.memory.facts, report.device
    tried = list(candidates(base, report.memory, on_accelerator=device.is_accelerator))
    first = strongest(tried)
    size = first_guess(facts["batch_size"], facts["microbatch"], report.memory, device.available)
    measured([dataclasses.replace(base, microbatch=size), *(each.configuration for each in first)])  # at the same time
    largest = find_largest(measured, base, device)
    found = [_measured(each, measured, device) for each in first]
    fitting = {each.kind for each in found if each.fits}
    first += [each for each in tried if each not in first and each.kind in fitting]
    tried = [each for each in tried if each in first]
    measured([each.configuration for each in tried])
    if largest is not None:
        count = -(-facts["batch_size"] // largest[0])
        evaluation = largest[1].facts["eval_microbatch"]
        evaluation = 0 if evaluation == facts["eval_microbatch"] else evaluation
        changed = dataclasses.replace(base, microbatch=largest[0], eval_microbatch=evaluation)
        first_place = int(bool(tried) and tried[0].kind == "evaluation")  # which costs the training nothing
        tried.insert(first_place, Remedy("microbatch", f"{count} smaller passes for each step", changed, base=base))
    found = chosen([_measured(each, measured, device) for each in tried], report.memory)
    both = None
    if not any(each.fits for each in found):
        both = _measured(together(base, facts), measured, device)
    return dataclasses.replace(report, largest=largest, remedies=found, together=both)


def _measured(remedy: Remedy, measured: Measurements, device: Device) -> Remedy:
    """Return a remedy with the memory that it gives."""
    found = measured([remedy.configuration])[remedy.configuration]
    if isinstance(found, Memory):
        return dataclasses.replace(remedy, memory=found, outcome=device.outcome(found.needed))
    return dataclasses.replace(remedy, error=found.error)
