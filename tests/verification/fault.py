"""Planted faults: programs with one known mistake each, against which ``composer verify`` is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from composer import Trainer

__all__ = ["CAUSES", "CHECKS", "TABLE", "Fault", "fault"]

CAUSES = frozenset(
    [
        "nondeterministic_operation",
        "unseeded_randomness",
        "data_order",
        "loss_scale",
        "ignored_samples",
        "not_finite_in_microbatch",
        "gradients_modified",
        "ragged_mean",
        "batch_statistics",
        "random_in_model",
        "same_random_numbers_on_ranks",
        "repeated_samples",
        "lost_samples",
        "dataset_modified",
        "unsaved_module_state",
        "unsaved_callback_state",
        "unsaved_algorithm_state",
        "unsaved_generator",
        "unsaved_optimizer_state",
        "unsaved_schedule_state",
        "unsaved_data_state",
        "worker_randomness",
        "evaluation_changes_training",
        "logging_changes_training",
        "callback_changes_training",
        "compile_differs",
        "precision_differs",
        "ranks_diverge",
        "checkpoint_not_stable",
        "saving_changes_training",
        "method_not_neutral",
        "time_dependent",
        "order_by_hash",
        "state_per_microbatch",
        "wrong_split",
        "wrong_sample_count",
        "samples_interact",
    ]
)

# What fails: the same run again; microbatches; the rows of an epoch and the data set afterwards; a resumed run; a
# checkpoint that is loaded and saved again; a run that saves; callbacks, loggers, evaluation or methods left out;
# loader workers; torch.compile; fp32; two ranks.
CHECKS = frozenset(
    [
        "repeat",
        "microbatches",
        "data",
        "resume",
        "checkpoint",
        "saving",
        "callbacks",
        "loggers",
        "evaluation",
        "methods",
        "workers",
        "compile",
        "precision",
        "ranks",
    ]
)


@dataclass(frozen=True)
class Fault:
    """A program with a mistake.

    Attributes:
        name: Name of the function.
        make: Returns a trainer that is not fitted yet.
        description: The mistake in one line.
        causes: The cause that must be named, and others that are as right.
        checks: The check that fails first of all, and others that notice it too. A run that differs from itself fails
            all others as well, so only ``repeat`` is listed then.
        named: What the report must name: a class, a module, a tensor or an attribute; empty if there is none.
        in_process: Whether one process can show it; others need a new process for each run.
    """

    name: str
    make: Callable[[], Trainer]
    description: str
    causes: tuple[str, ...]
    checks: tuple[str, ...]
    named: str
    in_process: bool

    @property
    def cause(self) -> str:
        """The first of the causes."""
        return self.causes[0]

    @property
    def check(self) -> str:
        """The first of the checks."""
        return self.checks[0]


TABLE: dict[str, Fault] = {}


def fault(
    causes: str, checks: str, named: str = "", *, in_process: bool = True
) -> Callable[[Callable[[], Trainer]], Callable[[], Trainer]]:
    """Enter a function into the table; its docstring is the description.

    Args:
        causes: Causes, separated by spaces, the best one first.
        checks: Checks, likewise.
        named: What the report must name.
        in_process: Whether one process can show it.
    """

    def enter(make: Callable[[], Trainer]) -> Callable[[], Trainer]:
        name, text = make.__name__, make.__doc__ or ""
        if name in TABLE:
            raise ValueError(f"There are two faults named {name!r}.")
        TABLE[name] = Fault(name, make, text, tuple(causes.split()), tuple(checks.split()), named, in_process)
        return make

    return enter
