"""Fetching checkpoints for the processes of a run."""

from __future__ import annotations

from pathlib import Path

from composer import dist
from composer._secrets.masking import mask_text
from composer.storage.downloads import get_file

__all__ = ["download_monolithic_checkpoint"]


def download_monolithic_checkpoint(
    source_uri: str, destination_path: Path | str, global_rank_zero_only: bool = True
) -> None:
    """Put a checkpoint to a path of this machine, and wait until it is there; all processes must call this.

    Args:
        source_uri: A path or URI; ``<source_uri>.symlink`` is followed.
        destination_path: Where to; a file that is there is replaced.
        global_rank_zero_only: Whether the first process of all fetches it, rather than the first of each node.

    Raises:
        FileNotFoundError: There is no such checkpoint.

    >>> import fsspec
    >>> with fsspec.open("memory://night/ep1.pt", "wb") as file:
    ...     _ = file.write(b"weights")
    >>> download_monolithic_checkpoint("memory://night/ep1.pt", tmp_path / "ep1.pt")
    >>> (tmp_path / "ep1.pt").read_bytes()
    b'weights'
    """
    failure: Exception | None = None
    if (dist.get_global_rank() if global_rank_zero_only else dist.get_local_rank()) == 0:
        try:
            get_file(source_uri, destination_path, overwrite=True, progress_bar=False)
        except Exception as error:
            failure = error
    told = dist.all_gather_object(None if failure is None else mask_text(f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    if texts := [text for text in told if text is not None]:
        raise RuntimeError(f"{mask_text(source_uri)!r} could not be fetched: {texts[0]}")
