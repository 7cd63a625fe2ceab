"""Settings of sharded checkpoints: a folder to which each rank writes its shard of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from composer.core.name_placeholders import check_inside, check_template

__all__ = ["CheckpointEngine", "CheckpointFolders"]


class CheckpointEngine(Protocol):
    """An engine, such as DeepSpeed's, that manages weights and optimizers; all ranks call each method.

    >>> sorted(name for name in vars(CheckpointEngine) if not name.startswith("_"))
    ['description', 'load', 'save', 'weights']
    """

    def description(self) -> dict[str, Any]:
        """Return metadata of the checkpoint that :meth:`load` requires."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return the full, unsharded weights by name on rank 0; optional on other ranks."""
        ...

    def save(self, folder: Path) -> None:
        """Write the shard of this rank.

        Args:
            folder: An existing folder.
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
        """Load a saved checkpoint.

        Args:
            folder: The folder with the files of all ranks.
            description: The result of :meth:`description` when it was saved.
            read: Safely reads one of the files, without executing pickled code; takes the path, the ``map_location`` of
                tensors, and as ``known`` the allowed classes in addition to plain values.
            weights_only: Whether to leave the optimizers unchanged.
            strict: Whether the weight names must match exactly.

        Raises:
            ValueError: The checkpoint does not match this run.
        """
        ...


@dataclass(frozen=True)
class CheckpointFolders:
    """Settings of sharded checkpoints: folders to which each rank writes its shard, rather than files of rank 0.

    Attributes:
        name: Name template of a folder, with ``{epoch}``, ``{batch}`` and other placeholders.
        save_planner: A ``SavePlanner`` of :mod:`torch.distributed.checkpoint` that decides what each rank writes, or
            None.
        load_planner: A ``LoadPlanner`` that decides what each rank reads, or None.
        engine: An engine that manages, saves and loads weights and optimizers itself, or None.

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
