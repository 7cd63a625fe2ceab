"""Log a saved checkpoint as an event of the run, with the value of the monitored metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer._secrets.masking import mask_text

if TYPE_CHECKING:
    from composer.checkpoint.saved_checkpoints import SavedList
    from composer.core.logger import Logger

__all__ = ["log_saved"]


def log_saved(logger: Logger, path: str, name: str, saved: SavedList, monitor: str | None) -> None:
    """Log that a checkpoint was saved, or that its upload or its writing in the background began.

    Args:
        logger: The logger.
        path: Its path or URI.
        name: Its name in the list.
        saved: The checkpoints in the folder.
        monitor: The metric that ranks checkpoints; None for none.
    """
    entry = next((one for one in saved.entries if one.name == name), None)
    if entry is None:  # writing it failed
        return
    details: dict[str, Any] = {"path": mask_text(path)}
    text = f"saved {path}"
    if monitor is not None and entry.score is not None:
        details |= {"monitor": monitor, "mode": saved.retention.mode, "score": entry.score}
        text += f" with {monitor} {entry.score:.6g}"
    logger.log_event("checkpoint", text, details)
