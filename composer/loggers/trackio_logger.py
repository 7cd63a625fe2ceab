"""TrackioLogger: log metrics, hyperparameters, tables, images and files to Trackio."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._lazy import import_extra
from composer.core.time import TimeUnit
from composer.loggers._images import image_arrays
from composer.loggers._ranks import with_rank
from composer.loggers._tracker import Outcome, Tracker, artifact_name, rendered_images
from composer.loggers._values import as_number, to_json
from composer.storage.upload_staging import Staging, move_into_place
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["TrackioLogger"]

_log = logging.getLogger(__name__)


class TrackioLogger(Tracker):
    """Logs to a run of `Trackio <https://huggingface.co/docs/trackio>`_ (extra ``trackio``).

    Trackio needs neither an account nor a server: values go to a database in the folder ``TRACKIO_DIR``, which
    ``trackio show`` displays. Numeric metrics are logged at the number of batches trained, hyperparameters as the
    configuration, tables as tables, and images as a table of images, with masks overlaid. Traces of algorithms are
    logged with the next metrics. A run that resumes from a checkpoint continues its Trackio run. What Trackio prints is
    redirected to Python's ``logging``.

    Args:
        project: Name of the project.
        name: Name of the run; by default that of the trainer's run.
        group: Name of the group of runs.
        space_id: A Hugging Face Space that stores the values, instead of this host.
        log_artifacts: Whether to store uploaded files, such as checkpoints, each as an artifact.
        rank_zero_only: Whether only rank 0 has a run; otherwise each rank has one, ``name-rank0``, ...
        init_kwargs: Further arguments of ``trackio.init``. The arguments above take precedence.

    Raises:
        MissingConditionalImportError: The package trackio is not installed.

    >>> logger = TrackioLogger(project="vision")  # doctest: +SKIP
    >>> trainer = Trainer(model=model, train_dataloader=data, loggers=logger)  # doctest: +SKIP
    """

    def __init__(
        self,
        project: str = "composer",
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        log_artifacts: bool = False,
        rank_zero_only: bool = True,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(rank_zero_only)
        self._trackio: Any = import_extra("trackio", "trackio", "TrackioLogger")
        self.project = project
        self.log_artifacts = log_artifacts
        given = {"name": name, "group": group, "space_id": space_id}
        self._init_kwargs: dict[str, Any] = dict(init_kwargs or {})
        self._init_kwargs.update({key: value for key, value in given.items() if value is not None})
        self._config: dict[str, Any] = dict(self._init_kwargs.pop("config", None) or {})
        self._hyperparameters: dict[str, Any] = {}
        self._has_values = False
        self._staging = Staging()
        self._run: Any = None

    @property
    def run(self) -> Any:
        """The run as ``trackio.init`` returned it; None before it begins and after it ends."""
        return self._run

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log the numeric values."""
        if self._ready(self.log_metrics, metrics, step):
            numbers = {name: as_number(value) for name, value in metrics.items()}
            self._log_values({name: number for name, number in numbers.items() if number is not None}, step)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Add to the configuration, which Trackio freezes when the first values are logged."""
        if not self.is_active:
            return
        if self._has_values:
            message = (
                f"Trackio freezes the configuration of a run with the first logged values; not logged: "
                f"{', '.join(hyperparameters)}."
            )
            warnings.warn(message, ComposerWarning, stacklevel=3)
        elif self._open:
            self._run.config.update(to_json(hyperparameters))
        else:
            self._hyperparameters.update(to_json(hyperparameters))

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table."""
        if self._ready(self.log_table, columns, rows, name, step):
            self._log_values({name: self._trackio.Table(columns=list(columns), data=to_json(rows))}, step)

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log images: a table with a column for each mask, or each under ``name/index`` and ``name/index/mask``."""
        if not self.is_active:
            return
        rendered = rendered_images(name, images, channels_last, masks)
        if use_table:
            num_images = len(image_arrays(images, channels_last))
            columns = ["image", *(masks or {})]
            width = len(columns)
            rows = [[array for _, array in rendered[width * i : width * (i + 1)]] for i in range(num_images)]
            self._log_image_table(columns, rows, name, step)
        else:
            self._log_pictures(dict(rendered), step)

    def _log_image_table(self, columns: list[str], rows: list[list[Any]], name: str, step: int | None) -> None:
        if self._ready(self._log_image_table, columns, rows, name, step):
            pictures = [[self._picture(array) for array in row] for row in rows]
            self._log_values({name: self._trackio.Table(columns=columns, data=pictures)}, step)

    def _log_pictures(self, arrays: dict[str, Any], step: int | None) -> None:
        if self._ready(self._log_pictures, arrays, step):
            self._log_values({name: self._picture(array) for name, array in arrays.items()}, step)

    def _picture(self, array: Any) -> Any:
        return self._trackio.Image(array.repeat(3, axis=-1) if array.shape[-1] == 1 else array)

    def _log_values(self, values: dict[str, Any], step: int | None) -> None:
        if values:
            self._has_values = True
            self._run.log(values, step=step)

    def can_upload_files(self) -> bool:
        """Return whether files are stored as artifacts."""
        return self.log_artifacts

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Store a file or folder as a new version of its artifact; with ``overwrite`` it replaces the older ones.

        The name keeps letters, digits, ``-``, ``_`` and ``.``; other characters become dots. The metadata contains the
        training time; checkpoints have the type ``model``.
        """
        if self.log_artifacts and self.is_active:
            now = state.timestamp
            metadata = {"epoch": now.count(TimeUnit.EPOCH), "batch": now.count(TimeUnit.BATCH)}
            # The run may begin later.
            self._upload(self._staging.add(file_path, remote_file_name), remote_file_name, metadata, overwrite)

    def _upload(self, staged: Path, remote_file_name: str, metadata: dict[str, Any], overwrite: bool) -> None:
        if not self._ready(self._upload, staged, remote_file_name, metadata, overwrite):
            return
        artifact_type = "model" if staged.suffix == ".pt" else "file"
        artifact = self._trackio.Artifact(name=artifact_name(remote_file_name), type=artifact_type, metadata=metadata)
        if staged.is_dir():
            artifact.add_dir(staged)
        else:
            artifact.add_file(staged)
        with _quiet():
            self._run.log_artifact(artifact, overwrite=overwrite)
        self._staging.remove(staged)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download the file of an artifact of this project.

        Args:
            remote_file_name: Name under which it was uploaded, with ``:v0``, ``:v1``, ... for a version other than the
                latest.
            destination: Local path of the file.
            overwrite: Whether to replace an existing file.
            progress_bar: Has no effect.

        Raises:
            FileExistsError: The file exists.
            FileNotFoundError: The artifact does not exist.
            RuntimeError: The run has not begun.
        """
        target = Path(destination)
        if target.exists() and not overwrite:
            raise FileExistsError(f"{destination} exists; pass overwrite=True to replace it.")
        if self._run is None:
            raise RuntimeError(f"{remote_file_name!r} cannot be downloaded: the run of TrackioLogger has not begun.")
        name, colon, version = remote_file_name.partition(":")
        with _quiet():
            try:
                artifact = self._run.use_artifact(f"{artifact_name(name)}{colon}{version}")
            except (KeyError, ValueError, LookupError) as error:
                raise FileNotFoundError(f"The artifact {remote_file_name!r} does not exist: {error}") from error
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                move_into_place(Path(artifact.download(root=folder)), target)

    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        arguments = dict(self._init_kwargs)
        arguments["name"] = with_rank(arguments.get("name") or state.run_name, self.rank_zero_only)
        if saved.get("project") == self.project and "resume" not in arguments:
            arguments.update(name=saved["name"], resume="allow")
        with _quiet():
            self._run = self._trackio.init(
                project=self.project, config={**self._config, **self._hyperparameters}, **arguments
            )
        self._hyperparameters, self._has_values = {}, False

    def _end(self, outcome: Outcome) -> None:
        run, self._run, self._has_values = self._run, None, False
        current = self._trackio.context_vars.current_run
        self._staging.clear()
        with _quiet():
            run.finish()  # waits for at most half a minute
        if current.get() is run:
            current.set(None)

    def _identity(self) -> dict[str, Any]:
        return {"project": self.project, "name": self._run.name}


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Redirect what is printed to logging: standard output belongs to the program."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            _log.info("%s", line)
