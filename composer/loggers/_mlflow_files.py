"""Upload and download MLflow artifacts under custom names."""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

__all__ = ["download", "upload"]

_PROGRESS = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"


def upload(client: Any, run_id: str, path: Path, name: str, overwrite: bool) -> None:
    """Log a file or folder as an artifact.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        path: Local path; its last component must be that of ``name``.
        name: Name of the artifact.
        overwrite: Whether to replace an existing artifact.

    Raises:
        FileExistsError: The artifact exists.
    """
    folder = posixpath.dirname(name)
    if not overwrite and any(artifact.path == name for artifact in client.list_artifacts(run_id, folder or None)):
        raise FileExistsError(f"The run {run_id} has an artifact {name!r} already; pass overwrite=True to replace it.")
    if path.is_dir():
        client.log_artifacts(run_id, str(path), name)
    else:
        client.log_artifact(run_id, str(path), folder or None)


def download(client: Any, run_id: str, name: str, destination: str, overwrite: bool, progress_bar: bool) -> None:
    """Download an artifact.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        name: Name of the artifact.
        destination: Local path of the file.
        overwrite: Whether to replace an existing file.
        progress_bar: Whether to show a progress bar.

    Raises:
        FileExistsError: The file exists.
        FileNotFoundError: The artifact does not exist.
    """
    target = Path(destination)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{destination} exists; pass overwrite=True to replace it.")
    if all(artifact.path != name for artifact in client.list_artifacts(run_id, posixpath.dirname(name) or None)):
        raise FileNotFoundError(f"The run {run_id} has no artifact {name!r}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the folder of the destination, so that moving the file there is atomic.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, _progress_bar(progress_bar):
        Path(client.download_artifacts(run_id, name, folder)).replace(target)


@contextlib.contextmanager
def _progress_bar(show: bool) -> Generator[None]:
    """Show or hide MLflow's progress bar, which is controlled by an environment variable only."""
    before = os.environ.get(_PROGRESS)
    os.environ[_PROGRESS] = str(show).lower()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PROGRESS]
        else:
            os.environ[_PROGRESS] = before
