"""MLFlowLogger: log metrics, hyperparameters, tables, images, files and models to MLflow."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._lazy import import_extra
from composer._numbers import non_negative, whole_number
from composer.loggers import _mlflow_files
from composer.loggers._mlflow_models import ModelRegistry
from composer.loggers._mlflow_run import clean_name, clean_parameters, find_experiment, find_run, matches, run_url
from composer.loggers._mlflow_sender import Sender
from composer.loggers._ranks import with_rank
from composer.loggers._tracker import Outcome, Tracker, end_with_timeout, rendered_images
from composer.loggers._values import as_number, to_json
from composer.storage.upload_staging import Staging
from composer.trees import ensure_tuple
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["MLFlowLogger"]

_STATUS: dict[Outcome, str] = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class MLFlowLogger(Tracker):
    """Logs to a run of `MLflow <https://mlflow.org/docs/latest>`_ (extra ``mlflow``).

    Numeric metrics are logged at the number of batches trained, hyperparameters as parameters under flat names joined
    by ``/``, of which MLflow keeps the first value. Tables are artifacts ``{name}_{step}.json``. Images are images of
    the run under ``name/index``, and overlaid with each mask under ``name/index/mask``. Traces of algorithms are logged
    with the next metrics.

    A background thread sends everything in batches, collected over some seconds. An earlier run is continued if the
    environment variable ``MLFLOW_RUN_ID`` is set, if the trainer resumes from a checkpoint of a run of the same name,
    or if ``resume`` finds one. A run ends as ``FINISHED``, ``FAILED`` or ``KILLED``.

    Args:
        experiment_name: Name of the experiment; defaults to the environment variables ``MLFLOW_EXPERIMENT_ID`` or
            ``MLFLOW_EXPERIMENT_NAME``, else to ``my-mlflow-experiment``. With Databricks a name that is not a path is
            placed in the user's folder.
        run_name: Name of the run; by default that of the trainer's run.
        tags: Tags of the run; ``run_name`` is added.
        tracking_uri: Where to log; by default MLflow's current setting.
        rank_zero_only: Whether only rank 0 has a run; otherwise each rank has one, ``name-rank0``, ...
        flush_interval: Number of batches between two reads of metrics from the device.
        model_registry_prefix: Prefix of the names of registered models; ``catalog.schema`` for Unity Catalog.
        model_registry_uri: Where to register models; by default where the run is.
        synchronous: Wait until each item is sent, instead of using a background thread.
        log_system_metrics: Let MLflow measure CPU, memory and accelerators in a separate thread.
        rename_metrics: New names of metrics by name.
        ignore_metrics: Metrics to leave out: names, or patterns with ``*`` and ``?``.
        ignore_hyperparameters: Hyperparameters to leave out: names or patterns.
        run_group: Value of the tag ``run_group``.
        resume: Continue the newest run of the experiment that has the same name, if there is one.
        logging_buffer_seconds: How long the thread collects metrics before it sends them.
        log_duplicated_metric_every_n_steps: An unchanged metric is logged again only after this many steps; 0 logs it
            in every step.
        log_artifacts: Whether to store uploaded files, such as checkpoints, as artifacts.

    Raises:
        MissingConditionalImportError: The package mlflow is not installed, or psutil for the system metrics.
        ValueError: A number is out of range, or the prefix is invalid for the registry.

    >>> logger = MLFlowLogger("vision", tracking_uri="sqlite:///runs.db")  # doctest: +SKIP
    >>> trainer = Trainer(model=model, train_dataloader=data, loggers=logger)  # doctest: +SKIP
    """

    def __init__(
        self,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_uri: str | os.PathLike[str] | None = None,
        rank_zero_only: bool = True,
        flush_interval: int = 10,
        model_registry_prefix: str = "",
        model_registry_uri: str | None = None,
        synchronous: bool = False,
        log_system_metrics: bool = True,
        rename_metrics: Mapping[str, str] | None = None,
        ignore_metrics: Sequence[str] | str | None = None,
        ignore_hyperparameters: Sequence[str] | str | None = None,
        run_group: str | None = None,
        resume: bool = False,
        logging_buffer_seconds: float = 10,
        log_duplicated_metric_every_n_steps: int = 100,
        log_artifacts: bool = False,
    ) -> None:
        super().__init__(rank_zero_only)
        mlflow: Any = import_extra("mlflow", "mlflow", "MLFlowLogger")
        if log_system_metrics:
            import_extra("psutil", "mlflow", "MLFlowLogger(log_system_metrics=True)")
        self.experiment_name = experiment_name
        self.run_name = run_name
        self.tags = dict(tags or {})
        self.tracking_uri = str(mlflow.get_tracking_uri() if tracking_uri is None else tracking_uri)
        self.flush_interval = whole_number("flush_interval", flush_interval, minimum=1)
        self.synchronous = synchronous
        self.log_system_metrics = log_system_metrics
        self.rename_metrics = dict(rename_metrics or {})
        self.ignore_metrics: tuple[str, ...] = ensure_tuple(ignore_metrics)
        self.ignore_hyperparameters: tuple[str, ...] = ensure_tuple(ignore_hyperparameters)
        self.run_group = run_group
        self.resume = resume
        self.logging_buffer_seconds = non_negative("logging_buffer_seconds", logging_buffer_seconds)
        self.log_duplicated_metric_every_n_steps = whole_number(
            "log_duplicated_metric_every_n_steps", log_duplicated_metric_every_n_steps
        )
        self.log_artifacts = log_artifacts
        self.model_registry_prefix, self.model_registry_uri = model_registry_prefix, model_registry_uri
        self.run_url: str | None = None
        self._models = ModelRegistry(self.tracking_uri, model_registry_uri, model_registry_prefix)
        self._mlflow_client: Any = mlflow.tracking.MlflowClient(self.tracking_uri, model_registry_uri)
        self._metric: Callable[..., Any] = mlflow.entities.Metric
        self._sender: Sender | None = None
        self._staging = Staging()
        self._run_id: str | None = None
        self._experiment_id: str | None = None
        self._monitor: Any = None
        self._last: dict[str, tuple[float, int]] = {}  # value and step of each metric when last logged
        self._parameters: dict[str, str] = {}  # already logged to the run

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    def run_id(self) -> str | None:
        """The id of the run, which begins now if there is a trainer; None on ranks without a run."""
        self._start_early()
        return self._run_id

    @property
    def experiment_id(self) -> str | None:
        """The id of the experiment; the run begins now if there is a trainer."""
        self._start_early()
        return self._experiment_id

    def rename(self, key: str) -> str:
        """Return the name under which a metric is logged.

        Args:
            key: The original name.
        """
        return self.rename_metrics.get(key, key)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log the numeric values that have changed."""
        if not self._ready(self.log_metrics, metrics, step):
            return
        step = step or 0
        now = round(1000 * time.time())
        changed: list[Any] = []
        for name, value in metrics.items():
            number = as_number(value)
            if number is None or matches(name, self.ignore_metrics):
                continue
            name = clean_name(self.rename(name))
            if self._should_log(name, float(number), step):
                self._last[name] = (float(number), step)
                changed.append(self._metric(name, float(number), now, step))
        self._sending.send_metrics(changed)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Log parameters; existing ones keep their value, with a warning if the new value differs."""
        if not self._ready(self.log_hyperparameters, hyperparameters):
            return
        parameters = clean_parameters(hyperparameters, self.ignore_hyperparameters)
        new = {name: value for name, value in parameters.items() if name not in self._parameters}
        self._parameters.update(new)
        self._sending.send_parameters(new)
        changed = [name for name, value in parameters.items() if self._parameters[name] != value]
        if changed:
            message = f"MLflow keeps the first value of a parameter; these have changed: {', '.join(changed)}."
            warnings.warn(message, ComposerWarning, stacklevel=3)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table as JSON."""
        if self._ready(self.log_table, columns, rows, name, step):
            table = {"columns": list(columns), "data": to_json(rows)}
            run_id = self._run_id
            self._sending.call(lambda: self._mlflow_client.log_dict(run_id, table, f"{name}_{step or 0}.json"))

    def log_images(
        self,
        images: Any,
        name: str = "image",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log images, each alone and overlaid with each of its masks."""
        if not self.is_active:
            return
        import_extra("PIL", "mlflow", "MLFlowLogger.log_images")
        for title, array in rendered_images(name, images, channels_last, masks):
            self._log_image(array, clean_name(title).replace(":", "_"), step)

    def _log_image(self, array: Any, title: str, step: int | None) -> None:
        if self._ready(self._log_image, array, title, step):
            run_id = self._run_id
            self._sending.call(
                lambda: self._mlflow_client.log_image(run_id, array, key=title, step=step, synchronous=True)
            )

    def can_upload_files(self) -> bool:
        """Return whether files are stored as artifacts."""
        return self.log_artifacts

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Store a file or folder as an artifact."""
        if self.log_artifacts and self.is_active:
            # The file may be gone by the time it is sent.
            self._upload(self._staging.add(file_path, remote_file_name), remote_file_name, overwrite)

    def _upload(self, staged: Path, remote_file_name: str, overwrite: bool) -> None:
        if self._ready(self._upload, staged, remote_file_name, overwrite):
            run_id = self._needed_run_id()

            def send() -> None:
                _mlflow_files.upload(self._mlflow_client, run_id, staged, remote_file_name, overwrite)
                self._staging.remove(staged)

            self._sending.call(send)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download an artifact of this run.

        Args:
            remote_file_name: Name under which it was uploaded.
            destination: Local path of the file.
            overwrite: Whether to replace an existing file.
            progress_bar: Whether MLflow may show a progress bar.

        Raises:
            FileExistsError: The file exists.
            FileNotFoundError: The artifact does not exist.
        """
        run_id = self._needed_run_id()
        self.flush()
        _mlflow_files.download(self._mlflow_client, run_id, remote_file_name, destination, overwrite, progress_bar)

    def register_model(
        self, model_uri: str, name: str, await_registration_for: int = 300, tags: dict[str, Any] | None = None
    ) -> Any:
        """Register a model that was logged or saved, and return its version.

        Args:
            model_uri: URI of the model, such as ``runs:/{run_id}/model``.
            name: Name of the registered model, prefixed with ``model_registry_prefix``.
            await_registration_for: Seconds to wait until it is ready.
            tags: Tags of the version.
        """
        return self._models.register(model_uri, name, await_registration_for, tags) if self.is_active else None

    def register_model_with_run_id(
        self, model_uri: str, name: str, await_creation_for: int = 300, tags: dict[str, Any] | None = None
    ) -> Any:
        """Register the files of a model as belonging to this run, and return the version.

        Args:
            model_uri: URI of the model.
            name: Name of the registered model, prefixed with ``model_registry_prefix``.
            await_creation_for: Seconds to wait until it is ready.
            tags: Tags of the version.
        """
        if not self.is_active:
            return None
        run_id = self._needed_run_id()
        return self._models.register_for_run(self._mlflow_client, run_id, model_uri, name, await_creation_for, tags)

    def save_model(self, flavor: str, **kwargs: Any) -> None:
        """Save a model to a local path.

        Args:
            flavor: Name of a module of mlflow that saves models, such as ``transformers`` or ``pytorch``.
            kwargs: Arguments of its ``save_model``.

        Raises:
            ValueError: The flavor does not exist.
        """
        if self.is_active:
            self._models.save(flavor, kwargs)

    def log_model(self, flavor: str, **kwargs: Any) -> Any:
        """Log a model to the run.

        Args:
            flavor: Name of a module of mlflow that saves models, such as ``transformers`` or ``pytorch``.
            kwargs: Arguments of its ``log_model``.

        Raises:
            ValueError: The flavor does not exist.
        """
        if not self.is_active:
            return None
        run_id = self._needed_run_id()
        self.flush()  # MLflow reads the run, and could find a partially written metric
        return self._models.log(flavor, run_id, self._mlflow_client, kwargs)

    def flush(self) -> bool:
        """Wait until everything is sent, for at most ``close_timeout`` seconds; return whether it is."""
        self._catch_up()
        return self._sender is None or self._sender.flush()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Send buffered metrics now."""
        if self._sender is not None:
            self._sender.hurry()

    @property
    def _sending(self) -> Sender:
        assert self._sender is not None, "the run is not open"
        return self._sender

    def _needed_run_id(self) -> str:
        run_id = self.run_id
        if run_id is None:
            raise RuntimeError("MLFlowLogger has no run on this rank; a run begins when a trainer is created with it.")
        return run_id

    def _should_log(self, name: str, value: float, step: int) -> bool:
        """Return whether to log a value; a repeated value is skipped for some steps."""
        if name not in self._last:
            return True
        last, last_step = self._last[name]
        same = value == last or (math.isnan(value) and math.isnan(last))
        return not same or not 0 <= step - last_step < self.log_duplicated_metric_every_n_steps

    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        client, name = self._mlflow_client, with_rank(self.run_name or state.run_name, self.rank_zero_only)
        run_id = os.environ.get("MLFLOW_RUN_ID")
        if run_id is None and saved.get("tracking_uri") == self.tracking_uri:
            run_id = saved["run_id"]
        if run_id is None:
            self._experiment_id = find_experiment(client, self.experiment_name, self.tracking_uri)
            if self.resume:
                run_id = find_run(client, self._experiment_id, name)
        resumes = run_id is not None
        if resumes:
            client.update_run(run_id, status="RUNNING")
            run = client.get_run(run_id)
        else:
            group = {} if self.run_group is None else {"run_group": self.run_group}
            run = client.create_run(self._experiment_id, tags={"run_name": name, **group, **self.tags}, run_name=name)
        self._run_id, self._experiment_id = run.info.run_id, run.info.experiment_id
        self.run_url = run_url(self._experiment_id, self._run_id)
        self._parameters, self._last = dict(run.data.params), {}
        self._sender = Sender(
            client, run.info.run_id, self.synchronous, self.logging_buffer_seconds, self.close_timeout
        )
        if self.log_system_metrics:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            node = str(dist.get_global_rank()) if dist.get_world_size() > 1 else None
            self._monitor = SystemMetricsMonitor(
                run.info.run_id, resume_logging=resumes, node_id=node, tracking_uri=self.tracking_uri
            )
            self._monitor.start()

    def _end(self, outcome: Outcome) -> None:
        sender, self._sender = self._sending, None
        monitor, self._monitor = self._monitor, None
        run_id = self._run_id

        def end() -> None:
            if monitor is not None:
                monitor.finish()
            self._mlflow_client.set_terminated(run_id, _STATUS[outcome])

        deadline = time.monotonic() + self.close_timeout
        try:
            sender.close()
        finally:
            self._staging.clear()
            end_with_timeout(max(deadline - time.monotonic(), 1.0), "MLFlowLogger", end)

    def _identity(self) -> dict[str, Any]:
        return {"run_id": self._run_id, "experiment_id": self._experiment_id, "tracking_uri": self.tracking_uri}
