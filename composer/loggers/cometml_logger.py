"""Log to Comet."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._lazy import import_extra
from composer._text import one_of
from composer.loggers._ranks import with_rank
from composer.loggers._tracker import Outcome, Tracker, drawn_images, within
from composer.loggers._values import as_number, to_json
from composer.nested import convert_nested_dict_to_flat_dict
from composer.storage.upload_staging import Staging

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["CometMLLogger"]

# Arguments of comet_ml.start; all others are for comet_ml.ExperimentConfig.
_START = ("api_key", "experiment_key", "mode", "online", "source")


class CometMLLogger(Tracker):
    """Logs to an experiment of `Comet <https://www.comet.com/docs>`_ (extra ``comet``).

    Metrics that are numbers are logged at the number of batches trained, hyperparameters under flat names joined by
    ``/``, tables as files ``{name}_{step}.csv``, images under ``name/index`` and their masks as images of their own,
    laid over the image, under ``name/index/mask``. What algorithms did goes with the next metrics. A run that goes on
    from a checkpoint goes on with its experiment.

    Args:
        workspace: Name of the workspace; by default the user's own.
        project_name: Name of the project.
        log_code: Whether the tracker keeps the code of the program.
        log_graph: Whether the tracker keeps a description of the model.
        name: Name of the experiment; by default that of the trainer's run.
        rank_zero_only: Whether only the first process has an experiment; otherwise each has one, ``name-rank0``, ...
        exp_kwargs: Further arguments of ``comet_ml.start`` (``online``, ``mode``, ``experiment_key``, ...) and of
            ``comet_ml.ExperimentConfig`` (``offline_directory``, ``tags``, ``log_git_patch``, ...).
        log_artifacts: Whether uploaded files, such as checkpoints, are kept as assets.

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
            # It reads the loss of each step, and logs what is logged here already.
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
        """Log the values that are numbers."""
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
        """Log a table as a file."""
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
        """Log images, each alone and under each of its masks."""
        if not self.is_ours:
            return
        picture = import_extra("PIL.Image", "comet", "CometMLLogger.log_images")
        for title, array in drawn_images(name, images, channels_last, masks):
            self._log_picture(picture.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array), title, step)

    def _log_picture(self, picture: Any, title: str, step: int | None) -> None:
        if self._ready(self._log_picture, picture, title, step):
            self._experiment.log_image(picture, name=title, step=step)

    def can_upload_files(self) -> bool:
        """Tell whether assets are kept."""
        return self.log_artifacts

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Keep a file, or each file of a folder, as an asset."""
        if self.log_artifacts and self.is_ours:
            # The tracker reads it later.
            self._upload(self._staging.add(file_path, remote_file_name), remote_file_name, overwrite)

    def _upload(self, kept: Path, remote_file_name: str, overwrite: bool) -> None:
        if not self._ready(self._upload, kept, remote_file_name, overwrite):
            return
        for path in sorted(kept.rglob("*")) if kept.is_dir() else [kept]:
            if path.is_file():
                name = remote_file_name if path == kept else f"{remote_file_name}/{path.relative_to(kept).as_posix()}"
                self._experiment.log_asset(str(path), file_name=name, overwrite=overwrite)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Fetch an asset of this experiment.

        Args:
            remote_file_name: Name under which it was uploaded.
            destination: Where to put it.
            overwrite: Whether a file there may be replaced.
            progress_bar: Has no effect; the tracker shows none.

        Raises:
            FileExistsError: There is a file already.
            FileNotFoundError: There is no such experiment or asset.
            RuntimeError: There is no experiment yet, and none was given by ``exp_kwargs={"experiment_key": ...}``.
        """
        target = Path(destination)
        if target.exists() and not overwrite:
            raise FileExistsError(f"{destination} exists; give overwrite=True to replace it.")
        key = self._key or self._start_kwargs.get("experiment_key")
        if key is None:
            raise RuntimeError("CometMLLogger has no experiment yet; give exp_kwargs={'experiment_key': ...}.")
        experiment = self._comet.API(api_key=self._start_kwargs.get("api_key")).get_experiment_by_key(key)
        if experiment is None:
            raise FileNotFoundError(f"There is no experiment {key!r}.")
        found = [asset["assetId"] for asset in experiment.get_asset_list() if asset["fileName"] == remote_file_name]
        if not found:
            raise FileNotFoundError(f"The experiment {key} has no asset {remote_file_name!r}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(experiment.get_asset(found[-1], return_type="binary"))

    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        start = dict(self._start_kwargs)
        same_place = all(saved.get(key) == value for key, value in self._place.items())
        if "key" in saved and same_place and not {"experiment_key", "mode"} & set(start):
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
        within(self.close_timeout, "CometMLLogger", end)

    def _identity(self) -> dict[str, Any]:
        return {"key": self._key, **self._place}

    @property
    def _place(self) -> dict[str, str | None]:
        return {"workspace": self.workspace, "project_name": self.project_name}
