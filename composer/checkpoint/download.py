"""Download a checkpoint for all ranks of a run."""

from __future__ import annotations

from pathlib import Path

from composer import dist
from composer._secrets.masking import mask_text
from composer.storage.downloads import get_file

__all__ = ["download_monolithic_checkpoint"]


def download_monolithic_checkpoint(
    source_uri: str, destination_path: Path | str, global_rank_zero_only: bool = True
) -> None:
    """Download a checkpoint to a local path, and wait for it; all ranks must call this.

    Args:
        source_uri: A path or URI; ``<source_uri>.symlink`` is followed.
        destination_path: Local path; an existing file is replaced.
        global_rank_zero_only: Whether only rank 0 downloads it, rather than local rank 0 of each node.

    Raises:
        FileNotFoundError: The checkpoint does not exist.

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
    failures = dist.all_gather_object(None if failure is None else mask_text(f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    if texts := [text for text in failures if text is not None]:
        raise RuntimeError(f"{mask_text(source_uri)!r} could not be downloaded: {texts[0]}")
