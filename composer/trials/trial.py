"""Trials: a short run of a training program in a process of its own, with stated changes, and the record of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from composer._version import __version__
from composer.trials.target import Target

__all__ = ["Outcome", "Record", "Trial"]

Outcome = Literal["completed", "failed", "out_of_memory", "timed_out", "killed"]


@dataclass(frozen=True)
class Trial:
    """What to run, with which changes, and what to measure.

    Args:
        name: Names the trial and its folder: letters, digits, "-", "_" and ".".
        target: The training program.
        probe: Import path ``package.module:Class`` of the :class:`.Probe` that measures the run.
        probe_arguments: Arguments of the probe, in JSON types.
        changes: Assignments such as ``"precision=fp32"`` and ``"algorithms+=EMA()"``, see :class:`.Assignment`.
        ranks: Number of processes.
        time_limit: Seconds after which the trial is terminated.
        after: Names of trials that must complete before this one.
        fresh: Whether each process starts a Python of its own, with its own hashes of strings and memory addresses,
            where others may be forked from a process that has imported torch.
        threads: Number of threads of an operation on the CPU; 0 for the number that torch chooses.
        hash_seed: Determines the hashes of strings in the processes of a fresh trial (``PYTHONHASHSEED``); None leaves
            them to Python, which has others in each process.

    Raises:
        ValueError: An argument is out of range.

    >>> trial = Trial(
    ...     "bf16",
    ...     Target("script", "train.py"),
    ...     "composer.trials.probe:Probe",
    ...     changes=("precision=amp_bf16",),
    ... )
    >>> trial == Trial.from_json(json.loads(json.dumps(trial.to_json())))
    True
    """

    name: str
    target: Target
    probe: str
    probe_arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changes: tuple[str, ...] = ()
    ranks: int = 1
    time_limit: float = 600.0
    after: tuple[str, ...] = ()
    fresh: bool = False
    threads: int = 0
    hash_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValueError(f"The name of a trial has letters, digits, '-', '_' and '.' only; got {self.name!r}.")
        if self.ranks < 1:
            raise ValueError(f"ranks must be at least 1; got {self.ranks}.")
        if self.threads < 0:
            raise ValueError(f"threads must be 0, for the number that torch chooses, or more; got {self.threads}.")
        if self.hash_seed is not None and not self.fresh:
            raise ValueError(
                f"hash_seed={self.hash_seed} requires fresh=True: a forked process has the hashes of another."
            )
        if not self.time_limit > 0:
            raise ValueError(f"time_limit must be a positive number of seconds; got {self.time_limit}.")

    @property
    def key(self) -> str:
        """A hash of everything that the outcome depends on: a record with this key need not be measured again."""
        told = [self.to_json(), self.target.fingerprint, __version__, torch.__version__]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]

    def to_json(self) -> dict[str, Any]:
        """Return the trial in JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trial:
        """Return the trial that :meth:`to_json` described.

        Args:
            value: What it returned, possibly written as JSON and read again.
        """
        given: dict[str, Any] = dict(value)
        target: dict[str, Any] = dict(given["target"])
        target["arguments"] = tuple(target["arguments"])
        given["target"] = Target(**target)
        given |= {name: tuple(given[name]) for name in ("changes", "after")}
        return cls(**given)


@dataclass(frozen=True)
class Record:
    """The outcome of a trial.

    Args:
        name: Name of the trial.
        key: Key of the trial.
        outcome: "completed", "failed" (an exception, or no ``fit``), "out_of_memory", "timed_out" or "killed" (by a
            signal).
        seconds: Wall time, with the start of the processes.
        error: Why it did not complete, in one line.
        details: The traceback, or the last lines that the trial printed.
        result: What the probe returned, in JSON types.
        folder: Folder with the files of the trial.
        sources: Hashes of the source files of the program, by path; when one is edited, the record is not used again.

    >>> Record("bf16", "0f", "timed_out", 600.0, error="no step in 600 s").is_completed
    False
    """

    name: str
    key: str
    outcome: Outcome
    seconds: float
    error: str = ""
    details: str = ""
    result: Mapping[str, Any] = field(default_factory=dict[str, Any])
    folder: str = ""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_completed(self) -> bool:
        """Whether the trial measured what it was to measure."""
        return self.outcome == "completed"

    @property
    def path(self) -> Path:
        """Folder with the files of the trial."""
        return Path(self.folder)
