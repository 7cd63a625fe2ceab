"""What the loops work on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from composer.core.engine import Engine
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.types import Batch
from composer.trainer.options import LoopOptions

__all__ = ["Run"]


@dataclass
class Run:
    """A state, what acts on it, and how the loops are to go.

    Attributes:
        state: The state.
        engine: Fires the events.
        logger: Takes metrics.
        options: How the loops go.
        autocast: Makes the context of a forward pass, or is None where none is needed.
        forward_and_loss: Both as one compiled function ``batch -> (outputs, loss)``, if compiled.
        samples: Number of samples of the batch in work.
        tokens: Number of tokens of the batch in work.
    """

    state: State
    engine: Engine
    logger: Logger
    options: LoopOptions = field(default_factory=LoopOptions)
    autocast: Callable[[], AbstractContextManager[Any]] | None = None
    forward_and_loss: Callable[[Batch], tuple[Any, Any]] | None = None
    samples: int = 0
    tokens: int = 0
