"""The categories of a ledger: what each second of a run was spent on."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["MEASURED", "Category"]


class Category(StrEnum):
    """What a second was spent on; its value is the name in ``ledger.jsonl``.

    Attributes:
        TRAINING: Steps, with the algorithms and callbacks that run in them.
        REPEATED: Steps that were trained before, and lost.
        DATA: Waiting for batches: fetching, transforms, and the copy to the device.
        EVALUATION: Evaluation and prediction.
        SAVING: Saving checkpoints, as far as training waits for them.
        COMPILING: ``torch.compile``.
        LOGGING: Delivering what was logged to the loggers.
        START_UP: From the start of the process to the first batch: imports, setup, loading a checkpoint.
        LOST: Work that no checkpoint kept: from the last checkpoint before a crash to the crash.
        NOT_RUNNING: Between the end of a process and the start of the next.
        OTHER: The rest: between the calls of the trainer, and calls that neither train nor evaluate.

    >>> Category.DATA.label, str(Category.DATA)
    ('waiting for data', 'data')
    """

    TRAINING = "training"
    REPEATED = "repeated"
    DATA = "data"
    EVALUATION = "evaluation"
    SAVING = "saving"
    COMPILING = "compiling"
    LOGGING = "logging"
    START_UP = "start_up"
    LOST = "lost"
    NOT_RUNNING = "not_running"
    OTHER = "other"

    @property
    def label(self) -> str:
        """Name for display."""
        return _LABELS.get(self, self.value)


_LABELS = {
    Category.REPEATED: "repeated after a crash",
    Category.DATA: "waiting for data",
    Category.START_UP: "start-up",
    Category.LOST: "lost to a crash",
    Category.NOT_RUNNING: "not running",
}

MEASURED: tuple[Category, ...] = tuple(
    category for category in Category if category not in (Category.LOST, Category.NOT_RUNNING)
)
"""The categories that a process measures; the others follow from several processes."""
