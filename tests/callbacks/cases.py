"""Cases of the callback contract tests, and the run that they are tested with."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from composer import Callback, Trainer, callbacks
from composer.core.logger_destination import LoggerDestination
from composer.core.model import ComposerModel
from composer.loggers import InMemoryLogger
from tests.common import classifier, labeled_data


@dataclass(frozen=True)
class Case:
    """One callback.

    Attributes:
        make: Makes it, with a setting in which it acts within four batches and stops nothing. Gets an empty folder.
        logs: The names that it logs in a run of four batches, as patterns (``throughput/*``): each must be met, and
            nothing else be logged. Names of tables and hyperparameters count too, with ``table:`` and ``hparam:``
            before them.
        model: Makes the same model each time; by default a linear classifier.
        batches: Makes the same four batches each time, which the model takes.
        arguments: Makes further arguments of the trainer, such as ``eval_dataloader``.
        warns: Whether the run may warn, because something that the callback watches is not there.
    """

    make: Callable[[Path], Callback]
    logs: tuple[str, ...] = ()
    model: Callable[[], ComposerModel] = classifier
    batches: Callable[[], list[Any]] = labeled_data
    arguments: Callable[[], dict[str, Any]] = dict
    warns: bool = False

    @property
    def name(self) -> str:
        """The name of the case's file, derived from the class."""
        return type(self.make(Path("unused"))).__name__


def public_classes() -> dict[str, type[Callback]]:
    """Every public callback."""
    found = {name: getattr(callbacks, name) for name in callbacks.__all__}
    return {name: cls for name, cls in found.items() if isinstance(cls, type) and issubclass(cls, Callback)}


def all_cases() -> list[Case]:
    """The cases in the test files of the public callbacks: ``CASE``, or ``CASES`` where a file has several."""
    cases: list[Case] = []
    for module in sorted({cls.__module__.rpartition(".")[2] for cls in public_classes().values()}):
        try:
            test = importlib.import_module(f"tests.callbacks.test_{module}")
        except ModuleNotFoundError:
            continue  # the contract test says which are missing
        cases += getattr(test, "CASES", None) or [test.CASE]
    return cases


@dataclass
class Run:
    """A trainer and what it logged.

    Attributes:
        trainer: The trainer.
        log: What it logged.
    """

    trainer: Trainer
    log: InMemoryLogger

    @property
    def names(self) -> set[str]:
        """All logged names, with the prefixes ``table:`` and ``hparam:`` for tables and hyperparameters."""
        tables, parameters = self.log.tables, self.log.hyperparameters
        return {*self.log.data, *(f"table:{name}" for name in tables), *(f"hparam:{name}" for name in parameters)}

    def steps(self, name: str) -> list[int]:
        """The steps at which a metric was logged."""
        return [timestamp.batch.value for timestamp, _ in self.log.data[name]]

    def values(self, name: str) -> list[Any]:
        """The values of a metric in the order of logging."""
        return [value for _, value in self.log.data[name]]


def run_with(
    *watching: Callback,
    model: ComposerModel | None = None,
    data: Any = None,
    seed: int = 3,
    loggers: LoggerDestination | None = None,
    **arguments: Any,
) -> Run:
    """Return a trainer, not yet started, of a linear classifier with four batches unless given otherwise."""
    torch.manual_seed(seed)
    model = classifier() if model is None else model
    log = InMemoryLogger()
    arguments.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True))
    arguments.setdefault("max_duration", "1ep")
    trainer = Trainer(
        model=model,
        train_dataloader=labeled_data() if data is None else data,
        callbacks=list(watching),
        loggers=log if loggers is None else loggers,
        progress_bar=False,
        seed=seed,
        **arguments,
    )
    return Run(trainer, log)


def run_of(case: Case, *watching: Callback, **arguments: Any) -> Run:
    """Return a trainer for a case, not yet started, with these callbacks instead of the case's."""
    torch.manual_seed(3)
    return run_with(*watching, model=case.model(), data=case.batches(), **(case.arguments() | arguments))


def matching(names: set[str], patterns: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return the names that match no pattern, and the patterns that match no name."""
    unknown = {name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)}
    idle = {pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)}
    return unknown, idle
