"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.trainer.replay.record import Microbatch, ReplayedStep
from composer.trainer.replay.replay import Replay

__all__ = [
    "Microbatch",
    "Replay",
    "ReplayedStep",
]
