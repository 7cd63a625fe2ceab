"""Artifacts of MLflow under names of their own."""

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
    """Keep a file or folder as an artifact.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        path: Where it is; its own name is the last part of ``name``.
        name: Name of the artifact.
        overwrite: Whether one of that name may be replaced.

    Raises:
        FileExistsError: There is one of that name.
    """
    folder = posixpath.dirname(name)
    if not overwrite and any(artifact.path == name for artifact in client.list_artifacts(run_id, folder or None)):
        raise FileExistsError(f"The run {run_id} has an artifact {name!r} already; give overwrite=True to replace it.")
    if path.is_dir():
        client.log_artifacts(run_id, str(path), name)
    else:
        client.log_artifact(run_id, str(path), folder or None)


def download(client: Any, run_id: str, name: str, destination: str, overwrite: bool, progress_bar: bool) -> None:
    """Fetch an artifact.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        name: Name of the artifact.
        destination: Where to put it.
        overwrite: Whether a file there may be replaced.
        progress_bar: Whether to show the progress.

    Raises:
        FileExistsError: There is a file already.
        FileNotFoundError: There is no such artifact.
    """
    target = Path(destination)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{destination} exists; give overwrite=True to replace it.")
    if all(artifact.path != name for artifact in client.list_artifacts(run_id, posixpath.dirname(name) or None)):
        raise FileNotFoundError(f"The run {run_id} has no artifact {name!r}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the destination, so that moving it there is one step.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, _progress_bar(progress_bar):
        Path(client.download_artifacts(run_id, name, folder)).replace(target)


@contextlib.contextmanager
def _progress_bar(show: bool) -> Generator[None]:
    """Tell MLflow whether to show the progress, for which it has nothing but an environment variable."""
    before = os.environ.get(_PROGRESS)
    os.environ[_PROGRESS] = str(show).lower()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PROGRESS]
        else:
            os.environ[_PROGRESS] = before
