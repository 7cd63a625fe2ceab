"""What a check is asked for, and how it says that it cannot run here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import environment

# What the environment of the checks may lack; each is named by what it cannot do then.
OPTIONAL = ("torchvision", "transformers", "lightning", "accelerate", "pytest", "deepspeed")


class SkipError(Exception):
    """The check cannot run here; the message says what is missing."""


@dataclass(frozen=True)
class Options:
    """What a check is asked for.

    Attributes:
        device: "cuda", or "cpu" for the form of it that shows that the check itself works.
        tiny: Whether models and counts are so small that the check takes seconds on two CPU cores; figures mean
            nothing.
        rounds: How often contenders are measured in turn.
        seconds: The time that the check may take. It is ended after it.
        folder: Where files of a check lie beside the results; None writes none.
        beside: Number of checks that run at a time.
    """

    device: str
    tiny: bool
    rounds: int
    seconds: float
    folder: Path | None = None
    beside: int = 1

    def need(self, *modules: str) -> None:
        """SkipError the check unless these can be imported.

        Raises:
            SkipError: Names the ones that are missing.
        """
        missing = [module for module in modules if not environment.has(module)]
        if missing:
            raise SkipError(f"not installed: {', '.join(missing)}")

    def need_gpu(self) -> None:
        """SkipError the check on a CPU.

        Raises:
            SkipError: There is no GPU, or it was not asked for.
        """
        if self.device == "cpu":
            raise SkipError("needs a GPU")
