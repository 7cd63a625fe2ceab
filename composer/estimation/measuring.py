"""Measure configurations of a program by trials, each once, and find the largest microbatch that fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from composer.estimation.configuration import Configuration
from composer.estimation.memory import Memory, size_text
from composer.trials import ForkServer, Record, Study, Target, Trial, TrialDisplay

__all__ = ["PROBE", "Measurements", "first_guess", "largest_microbatch"]

PROBE = "composer.estimation.recorder:MemoryRecorder"

# How torch says that a program needs a GPU.
_NEEDS_CUDA = ("not compiled with CUDA", "No CUDA GPUs are available", "Found no NVIDIA driver")
_WITHOUT_CUDA = (
    ". The estimate runs the program on the CPU whatever the device: leave it to the Trainer to move the model and the "
    "batches, rather than to .cuda() or device='cuda'."
)
# Trials of the search: two are needed if memory grows linearly, and one confirms.
_SEARCH_TRIALS = 8
# Trials in a row that leave more than half of the sizes, after which the one in the middle is tried.
_SLOW = 2


class Measurements:
    """Measures configurations of a program, each in a trial of its own.

    Args:
        target: The program.
        folder: Folder of the records.
        default_precision: The precision of a program that gives none.
        cuda: Whether the device is an accelerator, whose host has memory of its own.
        parallel: Number of trials that run at the same time.
        time_limit: Seconds after which a trial is terminated.
        progress: Whether to show the progress on stderr.
        server: Forks the processes of trials; None starts a Python for each.

    >>> from composer.trials import Target
    >>> measured = Measurements(Target("script", "train.py"), Path("study"))
    >>> measured([Configuration()])[Configuration()].peak  # doctest: +SKIP
    181458848
    """

    def __init__(
        self,
        target: Target,
        folder: Path,
        default_precision: str | None = None,
        parallel: int = 1,
        time_limit: float = 600.0,
        *,
        cuda: bool = False,
        progress: bool = False,
        server: ForkServer | None = None,
    ) -> None:
        self._target, self._folder, self._precision = target, folder, default_precision
        self._parallel, self._time_limit, self._progress, self._server = parallel, time_limit, progress, server
        self._cuda = cuda
        self._known: dict[Configuration, Memory | Record] = {}

    def __call__(self, configurations: Sequence[Configuration]) -> Mapping[Configuration, Memory | Record]:
        """Return the memory of each configuration, or the record of a trial that failed.

        Args:
            configurations: What to measure; what was measured before is not measured again.
        """
        missing = list(dict.fromkeys(each for each in configurations if each not in self._known))
        trials = [self._trial(each) for each in missing]
        if trials:
            records = self._run(trials)
            for each, trial in zip(missing, trials, strict=True):
                record = records[trial.name]
                self._known[each] = Memory.from_result(record.result) if record.is_completed else record
        return self._known

    def measure(self, configuration: Configuration) -> Memory:
        """Return the memory of a configuration.

        Args:
            configuration: The configuration.

        Raises:
            RuntimeError: The program does not train with it.
        """
        found = self([configuration])[configuration]
        if isinstance(found, Record):
            advice = _WITHOUT_CUDA if any(each in found.error for each in _NEEDS_CUDA) else ""
            raise RuntimeError(f"The program does not train: {found.error}{advice}\n{found.details}".rstrip())
        return found

    def microbatches(self, configuration: Configuration) -> dict[int, Memory | None]:
        """Return the memory of a configuration by microbatch size as far as it was measured, None for failed trials.

        Args:
            configuration: The configuration.
        """
        found: dict[int, Memory | None] = {}
        for each, memory in self._known.items():
            if dataclasses.replace(each, microbatch=configuration.microbatch) == configuration:
                if isinstance(memory, Memory):
                    found[memory.facts["microbatch"]] = memory
                elif each.microbatch:
                    found[each.microbatch] = None
        return found

    def _trial(self, configuration: Configuration) -> Trial:
        arguments = {
            "precision": self._precision,
            "optimizer": configuration.optimizer or None,
            "eval_microbatch": configuration.eval_microbatch or None,
            "cuda": self._cuda or None,
            "tensor_parallel": configuration.strategy == "tp" or None,
            "shards": configuration.strategy in ("fsdp", "hsdp") or None,
        }
        if configuration.processes > 1:
            arguments |= {"processes": configuration.processes, "local_processes": configuration.node}
        given = {name: value for name, value in arguments.items() if value is not None}
        # The device of the estimate need not be there.
        changes = ("device=cpu", "compile_config=None", *configuration.assignments())
        return Trial(configuration.name, self._target, PROBE, given, changes, time_limit=self._time_limit)

    def _run(self, trials: Sequence[Trial]) -> dict[str, Record]:
        if not self._progress:
            return Study(self._folder, parallel=self._parallel, server=self._server).run(trials)
        with TrialDisplay(len(trials), describe=_described) as display:
            return Study(self._folder, parallel=self._parallel, display=display, server=self._server).run(trials)


def _described(record: Record) -> str:
    return size_text(record.result["peak"]) if record.is_completed else f"failed: {record.error}"


def largest_microbatch(
    measure: Callable[[int], Memory | None], batch_size: int, measured: Mapping[int, Memory | None], limit: int
) -> tuple[int, Memory] | None:
    """Return the largest microbatch that fits and its memory; None if that of one sample does not fit.

    Memory is nearly linear in the microbatch, so the line through two trials gives the size to try next. The answer is
    always the size of a trial that fits.

    Args:
        measure: Returns the memory of a microbatch size, or None if the trial fails, which counts as not fitting.
        batch_size: The largest size.
        measured: Memory by microbatch size of at least one size, None for one whose trial failed.
        limit: Bytes that the device has.

    >>> line = lambda size: Memory(100 + 10 * size, roles={"activations": 10 * size})
    >>> largest_microbatch(line, 64, {64: line(64)}, 300)[0]
    20
    >>> largest_microbatch(line, 64, {64: line(64)}, 50)
    """
    known = dict(measured)
    slow = width = 0
    for _ in range(_SEARCH_TRIALS):
        below = max((each for each, found in known.items() if found and found.needed <= limit), default=0)
        above = min(
            (each for each, found in known.items() if not found or found.needed > limit), default=batch_size + 1
        )
        if above - below <= 1:
            break
        slow = slow + 1 if 2 * (above - below) > width > 0 else 0
        width = above - below
        guess = min(max(_guess(known, batch_size, limit), below), above)
        # The neighbor of a size that the line is right about settles it.
        tried = below + 1 if guess <= below else above - 1 if guess >= above else guess
        if slow == _SLOW:  # memory is far from a line, as that of an evaluation
            tried, slow = (below + above) // 2, 0
        known[tried] = measure(tried)
    fitting = [each for each, found in known.items() if found and found.needed <= limit]
    if not fitting:
        return None
    found = known[max(fitting)]
    assert found is not None
    return max(fitting), found


def first_guess(batch_size: int, size: int, memory: Memory, limit: int) -> int:
    """Return the microbatch size that the search tries first.

    Args:
        batch_size: The largest size.
        size: A size that was measured.
        memory: Its memory.
        limit: Bytes that the device has.

    >>> first_guess(64, 64, Memory(740, roles={"activations": 640}), 300)
    20
    """
    guess = _guess({size: memory}, batch_size, limit)
    return max(1, min(guess, size - 1 if memory.needed > limit else batch_size))


def _guess(known: Mapping[int, Memory | None], batch_size: int, limit: int) -> int:
    """Return the size whose memory reaches the limit, on a line through known sizes."""
    found = {size: each for size, each in known.items() if each is not None}
    if not found:
        return min(known) // 2
    # A full batch is another case: with microbatches, gradients are there in the forward pass.
    split = sorted((size for size in found if size < batch_size), key=lambda size: abs(found[size].needed - limit))
    if len(split) >= 2:
        first, second = split[:2]
        slope = (found[second].needed - found[first].needed) / (second - first)
        start = found[first].needed - slope * first
    else:
        size = split[0] if split else next(iter(found))
        slope = found[size].per_microbatch / size
        gradients = 0 if split else _missing_gradients(found[size])
        start = found[size].needed - found[size].per_microbatch + gradients
    return int((limit - start) // slope) if slope > 0 else batch_size


def _missing_gradients(memory: Memory) -> int:
    return max(0, memory.roles.get("parameters", 0) - memory.roles.get("gradients", 0))
