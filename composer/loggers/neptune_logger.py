"""NeptuneLogger: log metrics, hyperparameters, tables, images and files to Neptune."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from composer._lazy import import_extra
from composer.loggers._ranks import with_rank
from composer.loggers._tracker import Outcome, Tracker, end_with_timeout, rendered_images
from composer.loggers._values import as_number, to_json
from composer.nested import convert_nested_dict_to_flat_dict
from composer.storage.upload_staging import Staging

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["NeptuneLogger"]


class NeptuneLogger(Tracker):
    """Logs to a run of `Neptune 2 <https://docs-legacy.neptune.ai>`_, through the package ``neptune`` 1.x.

    The hosted service has ended; use this with a self-hosted server, or with ``mode="offline"`` or ``"debug"``.

    Under ``base_namespace`` it writes ``metrics``, ``hyperparameters``, ``traces``, ``tables``, ``images`` (also
    overlaid with each mask, under ``index/mask``) and ``checkpoints``. The step of a metric is the number of batches
    trained; steps of a Neptune series must increase, so a value whose step is not later than the last is dropped. A run
    that resumes from a checkpoint continues its Neptune run.

    Args:
        project: Name of the project as ``workspace/project``; defaults to the environment variable
            ``NEPTUNE_PROJECT``.
        api_token: The API token; defaults to the environment variable ``NEPTUNE_API_TOKEN``.
        rank_zero_only: Whether only rank 0 has a run; otherwise each rank has one, ``name-rank0``, ...
        upload_checkpoints: Whether to store uploaded files, such as checkpoints.
        base_namespace: Namespace in the run under which everything is logged.
        mode: Connection mode: ``"async"``, ``"sync"``, ``"offline"`` or ``"debug"``; defaults to the environment
            variable ``NEPTUNE_MODE``.
        neptune_kwargs: Further arguments of ``neptune.init_run``.

    Raises:
        MissingConditionalImportError: The package neptune is not installed.

    >>> logger = NeptuneLogger(project="team/vision", mode="offline")  # doctest: +SKIP
    >>> trainer = Trainer(model=model, train_dataloader=data, loggers=logger)  # doctest: +SKIP
    """

    metric_namespace: ClassVar[str] = "metrics"
    hyperparam_namespace: ClassVar[str] = "hyperparameters"
    trace_namespace: ClassVar[str] = "traces"

    def __init__(
        self,
        *,
        project: str | None = None,
        api_token: str | None = None,
        rank_zero_only: bool = True,
        upload_checkpoints: bool = False,
        base_namespace: str = "training",
        mode: str | None = None,
        **neptune_kwargs: Any,
    ) -> None:
        super().__init__(rank_zero_only)
        self._neptune: Any = import_extra("neptune", "neptune", "NeptuneLogger", install="neptune>=1.10,<2")
        self._file: Any = import_extra("neptune.types", "neptune", "NeptuneLogger").File
        self.upload_checkpoints = upload_checkpoints
        self.base_namespace = base_namespace
        given = {"project": project, "api_token": api_token, "mode": mode}
        self._arguments: dict[str, Any] = {
            **neptune_kwargs,
            **{key: value for key, value in given.items() if value is not None},
        }
        self._staging = Staging()
        self._run: Any = None
        self._id: str | None = None
        self._steps: dict[str, int] = {}  # the last step of each series

    @property
    def neptune_run(self) -> Any:
        """The run as ``neptune.init_run`` returned it; None before it begins and after it ends."""
        return self._run

    @property
    def base_handler(self) -> Any:
        """The handler of ``base_namespace`` in the run; None before the run begins and after it ends."""
        return None if self._run is None else self._run[self.base_namespace]

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log the numeric values."""
        if self._ready(self.log_metrics, metrics, step):
            numbers = {name: as_number(value) for name, value in metrics.items()}
            self._append(
                self.metric_namespace, {name: number for name, number in numbers.items() if number is not None}, step
            )

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Log algorithm traces as series."""
        if self._ready(self.log_traces, traces):
            for name, value in to_json(traces).items():
                self.base_handler[f"{self.trace_namespace}/{name}"].append(value)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Log hyperparameters: numbers, booleans and strings as they are, anything else as JSON text."""
        if self._ready(self.log_hyperparameters, hyperparameters):
            for name, value in convert_nested_dict_to_flat_dict(to_json(hyperparameters)).items():
                plain = isinstance(value, (bool, int, float, str))
                self.base_handler[f"{self.hyperparam_namespace}/{name}"] = value if plain else json.dumps(value)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table as JSON."""
        if self._ready(self.log_table, columns, rows, name, step):
            text = json.dumps({"columns": list(columns), "data": to_json(rows)}, ensure_ascii=False)
            file = self._file.from_content(text, extension="json")
            self.base_handler[f"tables/{name}_{step or 0}"].upload(file)

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
        """Log images, each alone and overlaid with each of its masks."""
        if not self.is_active:
            return
        picture = import_extra("PIL.Image", "vision", "NeptuneLogger.log_images")
        rendered = rendered_images(name, images, channels_last, masks)
        self._log_pictures(
            {
                title: picture.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
                for title, array in rendered
            },
            step,
        )

    def _log_pictures(self, pictures: dict[str, Any], step: int | None) -> None:
        if self._ready(self._log_pictures, pictures, step):
            as_image = self._file.as_image
            self._append("images", {title: as_image(picture) for title, picture in pictures.items()}, step)

    def _append(self, namespace: str, values: Mapping[str, Any], step: int | None) -> None:
        """Append values to their series, if the step is later than the last."""
        for name, value in values.items():
            series = f"{namespace}/{name}"
            if step is not None:
                if step <= self._steps.get(series, -1):
                    continue
                self._steps[series] = step
            self.base_handler[series].append(value, step=step)

    def can_upload_files(self) -> bool:
        """Return whether files are stored."""
        return self.upload_checkpoints

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool = False) -> None:
        """Store a file, or each file of a folder, under ``checkpoints``, replacing one of the same name."""
        if self.upload_checkpoints and self.is_active:
            # Neptune reads the file later.
            self._upload(self._staging.add(file_path, remote_file_name), remote_file_name)

    def _upload(self, staged: Path, remote_file_name: str) -> None:
        if not self._ready(self._upload, staged, remote_file_name):
            return
        for path in sorted(staged.rglob("*")) if staged.is_dir() else [staged]:
            if path.is_file():
                below = path.relative_to(staged).as_posix()
                name = remote_file_name if path == staged else f"{remote_file_name}/{below}"
                self.base_handler[f"checkpoints/{name}"].upload(str(path))

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download a file of this run.

        Args:
            remote_file_name: Name under which it was uploaded.
            destination: Local path of the file.
            overwrite: Whether to replace an existing file.
            progress_bar: Whether Neptune may show a progress bar.

        Raises:
            FileExistsError: The file exists.
            FileNotFoundError: The run has no such file.
            RuntimeError: The run has not begun.
        """
        target = Path(destination)
        if target.exists() and not overwrite:
            raise FileExistsError(f"{destination} exists; pass overwrite=True to replace it.")
        if self._run is None:
            raise RuntimeError(f"{remote_file_name!r} cannot be downloaded: NeptuneLogger has no run.")
        name = f"{self.base_namespace}/checkpoints/{remote_file_name}"
        self._run.sync()
        if not self._run.exists(name):
            raise FileNotFoundError(f"The run has no file {name!r}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._run[name].download(str(target), progress_bar=progress_bar)

    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        arguments = {"name": with_rank(state.run_name, self.rank_zero_only), **self._arguments}
        same_run = saved.get("id") is not None and saved["project"] == self._arguments.get("project")
        if "with_id" not in arguments:
            # Neptune continues the run with the same id, if it exists.
            arguments.setdefault("custom_run_id", saved["id"] if same_run else uuid.uuid4().hex)
        self._id = arguments.get("custom_run_id")
        self._steps = dict(saved["steps"]) if same_run and self._id == saved["id"] else {}
        self._run = self._neptune.init_run(**arguments)

    def _end(self, outcome: Outcome) -> None:
        run, self._run = self._run, None
        if outcome != "finished":
            run["sys/failed"] = True

        def end() -> None:
            try:
                run.stop(seconds=self.close_timeout)
            finally:
                self._staging.clear()

        end_with_timeout(self.close_timeout + 1, "NeptuneLogger", end)

    def _identity(self) -> dict[str, Any]:
        return {"id": self._id, "project": self._arguments.get("project"), "steps": dict(self._steps)}
