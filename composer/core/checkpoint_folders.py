"""How checkpoints are written where each process has a part of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from composer.core.name_placeholders import check_inside, check_template

__all__ = ["CheckpointEngine", "CheckpointFolders"]


class CheckpointEngine(Protocol):
    """What holds the weights and the optimizers of a run in place of the model; all processes call each method.

    >>> sorted(name for name in vars(CheckpointEngine) if not name.startswith("_"))
    ['description', 'load', 'save', 'weights']
    """

    def description(self) -> dict[str, Any]:
        """Return what :meth:`load` has to know of a checkpoint that is saved now."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return the whole weights by name in the first process; others need not."""
        ...

    def save(self, folder: Path) -> None:
        """Write the part of this process.

        Args:
            folder: Where to; it is there.
        """
        ...

    def load(
        self,
        folder: Path,
        description: dict[str, Any],
        *,
        read: Callable[..., dict[str, Any]],
        weights_only: bool,
        strict: bool,
    ) -> None:
        """Take over what was saved.

        Args:
            folder: Has the files of all processes.
            description: What :meth:`description` returned then.
            read: Reads one of the files without running anything that it holds; takes its path, where its tensors go,
                and as ``known`` the classes that it may hold beside plain values.
            weights_only: Whether to leave the optimizers as they are.
            strict: Whether the names of the weights must be the same.

        Raises:
            ValueError: It does not fit this run.
        """
        ...


@dataclass(frozen=True)
class CheckpointFolders:
    """Checkpoints are folders, to which each process writes what it holds, rather than files that the first one writes.

    Attributes:
        name: Of a folder, with ``{epoch}``, ``{batch}`` and the like.
        save_planner: A ``SavePlanner`` of :mod:`torch.distributed.checkpoint` that decides who writes what, or None.
        load_planner: A ``LoadPlanner`` that decides who reads what, or None.
        engine: Holds weights and optimizers and writes and reads them itself, or None where they are the model's own.

    Raises:
        ValueError: The name has an unknown placeholder.

    >>> CheckpointFolders().name
    'ep{epoch}-ba{batch}'
    """

    name: str = "ep{epoch}-ba{batch}"
    save_planner: Any = None
    load_planner: Any = None
    engine: CheckpointEngine | None = None

    def __post_init__(self) -> None:
        check_inside("sharded_ckpt_prefix_dir", check_template("sharded_ckpt_prefix_dir", self.name, timed=True))
