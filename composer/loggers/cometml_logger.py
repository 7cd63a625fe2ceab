"""CometMLLogger: log metrics, hyperparameters, tables, images and files to Comet."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._lazy import import_extra
from composer._text import one_of
from composer.loggers._ranks import with_rank
from composer.loggers._tracker import Outcome, Tracker, end_with_timeout, rendered_images
from composer.loggers._values import as_number, to_json
from composer.nested import convert_nested_dict_to_flat_dict
from composer.storage.upload_staging import Staging

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["CometMLLogger"]

# Arguments of comet_ml.start; all others belong to comet_ml.ExperimentConfig.
_START = ("api_key", "experiment_key", "mode", "online", "source")


class CometMLLogger(Tracker):
    """Logs to an experiment of `Comet <https://www.comet.com/docs>`_ (extra ``comet``).

    Numeric metrics are logged at the number of batches trained, hyperparameters under flat names joined by ``/``,
    tables as files ``{name}_{step}.csv``, images under ``name/index``, and masks as separate images, overlaid on the
    image, under ``name/index/mask``. Traces of algorithms are logged with the next metrics. A run that resumes from a
    checkpoint continues its experiment.

    Args:
        workspace: Name of the workspace; by default the user's.
        project_name: Name of the project.
        log_code: Whether Comet stores the source code of the program.
        log_graph: Whether Comet stores a description of the model.
        name: Name of the experiment; by default that of the trainer's run.
        rank_zero_only: Whether only rank 0 has an experiment; otherwise each rank has one, ``name-rank0``, ...
        exp_kwargs: Further arguments of ``comet_ml.start`` (``online``, ``mode``, ``experiment_key``, ...) and of
            ``comet_ml.ExperimentConfig`` (``offline_directory``, ``tags``, ``log_git_patch``, ...).
        log_artifacts: Whether to store uploaded files, such as checkpoints, as assets.

    Raises:
        MissingConditionalImportError: The package comet_ml is not installed.
        ValueError: ``exp_kwargs`` has an unknown argument.

    >>> logger = CometMLLogger(project_name="vision", exp_kwargs={"online": False})  # doctest: +SKIP
    >>> trainer = Trainer(model=model, train_dataloader=data, loggers=logger)  # doctest: +SKIP
    """

    def __init__(
        self,
        workspace: str | None = None,
        project_name: str | None = None,
        log_code: bool = False,
        log_graph: bool = False,
        name: str | None = None,
        rank_zero_only: bool = True,
        exp_kwargs: Mapping[str, Any] | None = None,
        log_artifacts: bool = False,
    ) -> None:
        super().__init__(rank_zero_only)
        self._comet: Any = import_extra("comet_ml", "comet", "CometMLLogger")
        self.workspace = workspace
        self.project_name = project_name
        self.name = name
        self.log_artifacts = log_artifacts
        known = [*_START, *inspect.signature(self._comet.ExperimentConfig).parameters]
        given = {one_of("exp_kwargs", key, known): value for key, value in (exp_kwargs or {}).items()}
        self._start_kwargs: dict[str, Any] = {key: value for key, value in given.items() if key in _START}
        self._config = {
            "log_code": log_code,
            "log_graph": log_graph,
            # It logs the loss of each step, and metrics that are logged here already.
            "auto_metric_logging": False,
            **{key: value for key, value in given.items() if key not in _START},
        }
        self._staging = Staging()
        self._experiment: Any = None
        self._key: str | None = None

    @property
    def experiment(self) -> Any:
        """The experiment as ``comet_ml.start`` returned it; None before it begins and after it ends."""
        return self._experiment

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log the numeric values."""
        if self._ready(self.log_metrics, metrics, step):
            numbers = {name: as_number(value) for name, value in metrics.items()}
            self._experiment.log_metrics({k: v for k, v in numbers.items() if v is not None}, step=step)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Log hyperparameters."""
        if self._ready(self.log_hyperparameters, hyperparameters):
            flat = convert_nested_dict_to_flat_dict(to_json(hyperparameters))
            self._experiment.log_parameters(flat, nested_support=False)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table as a CSV file."""
        if self._ready(self.log_table, columns, rows, name, step):
            self._experiment.log_table(f"{name}_{step or 0}.csv", to_json(rows), headers=list(columns))

    def log_images(
        self,
        images: Any,
        name: str = "Image",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log images, each alone and overlaid with each of its masks."""
        if not self.is_active:
            return
        picture = import_extra("PIL.Image", "comet", "CometMLLogger.log_images")
        for title, array in rendered_images(name, images, channels_last, masks):
            self._log_picture(picture.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array), title, step)

    def _log_picture(self, picture: Any, title: str, step: int | None) -> None:
        if self._ready(self._log_picture, picture, title, step):
            self._experiment.log_image(picture, name=title, step=step)

    def can_upload_files(self) -> bool:
        """Return whether files are stored as assets."""
        return self.log_artifacts

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Store a file, or each file of a folder, as an asset."""
        if self.log_artifacts and self.is_active:
            # Comet reads the file later.
            self._upload(self._staging.add(file_path, remote_file_name), remote_file_name, overwrite)

    def _upload(self, staged: Path, remote_file_name: str, overwrite: bool) -> None:
        if not self._ready(self._upload, staged, remote_file_name, overwrite):
            return
        for path in sorted(staged.rglob("*")) if staged.is_dir() else [staged]:
            if path.is_file():
                below = path.relative_to(staged).as_posix()
                name = remote_file_name if path == staged else f"{remote_file_name}/{below}"
                self._experiment.log_asset(str(path), file_name=name, overwrite=overwrite)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download an asset of this experiment.

        Args:
            remote_file_name: Name under which it was uploaded.
            destination: Local path of the file.
            overwrite: Whether to replace an existing file.
            progress_bar: Has no effect.

        Raises:
            FileExistsError: The file exists.
            FileNotFoundError: The experiment or asset does not exist.
            RuntimeError: The experiment has not begun, and ``exp_kwargs={"experiment_key": ...}`` was not given.
        """
        target = Path(destination)
        if target.exists() and not overwrite:
            raise FileExistsError(f"{destination} exists; pass overwrite=True to replace it.")
        key = self._key or self._start_kwargs.get("experiment_key")
        if key is None:
            raise RuntimeError("CometMLLogger has no experiment yet; pass exp_kwargs={'experiment_key': ...}.")
        experiment = self._comet.API(api_key=self._start_kwargs.get("api_key")).get_experiment_by_key(key)
        if experiment is None:
            raise FileNotFoundError(f"The experiment {key!r} does not exist.")
        found = [asset["assetId"] for asset in experiment.get_asset_list() if asset["fileName"] == remote_file_name]
        if not found:
            raise FileNotFoundError(f"The experiment {key} has no asset {remote_file_name!r}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(experiment.get_asset(found[-1], return_type="binary"))

    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        start = dict(self._start_kwargs)
        same_project = all(saved.get(key) == value for key, value in self._project_ids.items())
        if "key" in saved and same_project and not {"experiment_key", "mode"} & set(start):
            start.update(experiment_key=saved["key"], mode="get")
        start.setdefault("mode", "get_or_create" if "experiment_key" in start else "create")
        config = self._comet.ExperimentConfig(**self._config)
        experiment = self._comet.start(
            workspace=self.workspace, project_name=self.project_name, experiment_config=config, **start
        )
        experiment.set_name(with_rank(self.name or state.run_name, self.rank_zero_only))
        self._experiment, self._key = experiment, experiment.get_key()

    def _end(self, outcome: Outcome) -> None:
        experiment, self._experiment = self._experiment, None

        def end() -> None:
            try:
                experiment.end()
            finally:
                self._staging.clear()

        if outcome != "finished":
            experiment.add_tag(outcome)
        end_with_timeout(self.close_timeout, "CometMLLogger", end)

    def _identity(self) -> dict[str, Any]:
        return {"key": self._key, **self._project_ids}

    @property
    def _project_ids(self) -> dict[str, str | None]:
        return {"workspace": self.workspace, "project_name": self.project_name}
