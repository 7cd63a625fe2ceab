"""WandBLogger: log metrics, hyperparameters, tables, images and files to Weights & Biases."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._lazy import import_extra
from composer.core.time import TimeUnit
from composer.loggers._images import class_maps, image_arrays
from composer.loggers._ranks import with_rank
from composer.loggers._tracker import Outcome, Tracker, artifact_name, end_with_timeout
from composer.loggers._values import to_json, without_tensor
from composer.storage.upload_staging import move_into_place

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["WandBLogger"]


class WandBLogger(Tracker):
    """Logs to a run of `Weights & Biases <https://docs.wandb.ai>`_ (extra ``wandb``).

    The step of metrics, tables and images is the number of batches trained. Hyperparameters become the configuration.
    Traces of algorithms are logged with the next metrics. A run that resumes from a checkpoint continues its W&B run;
    W&B ignores steps that the run already has.

    Args:
        project: Name of the project; by default that of the W&B settings.
        group: Name of the group of runs; with a run per rank, by default the name of the run.
        name: Name of the run; by default that of the trainer's run.
        entity: User or team that owns the run.
        tags: Tags of the run.
        log_artifacts: Whether to store uploaded files, such as checkpoints, each as an artifact.
        rank_zero_only: Whether only rank 0 has a run; otherwise each rank has one, ``name-rank0``, ...
        init_kwargs: Further arguments of ``wandb.init``. The arguments above take precedence.

    Attributes:
        project: Name of the run's project; before the run begins, and on ranks without a run, the argument.
        entity: User or team of the run; before the run begins, and on ranks without a run, the argument.
        run_url: URL of the run; None before it begins, and if it is offline.
        run_dir: Folder of the run's files; None before it begins.

    Raises:
        MissingConditionalImportError: The package wandb is not installed.

    >>> logger = WandBLogger(project="vision", init_kwargs={"mode": "offline"})  # doctest: +SKIP
    >>> trainer = Trainer(model=model, train_dataloader=data, loggers=logger)  # doctest: +SKIP
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        name: str | None = None,
        entity: str | None = None,
        tags: Sequence[str] | str | None = None,
        log_artifacts: bool = False,
        rank_zero_only: bool = True,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(rank_zero_only)
        self._wandb: Any = import_extra("wandb", "wandb", "WandBLogger")
        self.log_artifacts = log_artifacts
        given = {
            "project": project,
            "group": group,
            "name": name,
            "entity": entity,
            "tags": [tags] if isinstance(tags, str) else tags,
        }
        self._init_kwargs: dict[str, Any] = dict(init_kwargs or {})
        self._init_kwargs.update({key: value for key, value in given.items() if value is not None})
        self.project: str | None = self._init_kwargs.get("project")
        self.entity: str | None = self._init_kwargs.get("entity")
        self.run_url: str | None = None
        self.run_dir: str | None = None
        self._run: Any = None

    @property
    def run(self) -> Any:
        """The run as ``wandb.init`` returned it; None before it begins and after it ends."""
        return self._run

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log values at a step."""
        if self._ready(self.log_metrics, metrics, step):
            self._run.log({name: without_tensor(value) for name, value in metrics.items()}, step=step)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Add to the configuration, replacing existing values."""
        if self._ready(self.log_hyperparameters, hyperparameters):
            self._run.config.update(to_json(hyperparameters), allow_val_change=True)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table."""
        if self._ready(self.log_table, columns, rows, name, step):
            self._catch_up()
            table = self._wandb.Table(columns=columns, data=to_json(rows), allow_mixed_types=True)
            self._run.log({name: table}, step=step)

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = False,
    ) -> None:
        """Log images, with masks as layers that can be shown and hidden."""
        if not self.is_active:
            return
        import_extra("PIL", "wandb", "WandBLogger.log_images")
        # Convert now, because the run may begin later, when the images may have changed.
        arrays = image_arrays(images, channels_last)
        maps = class_maps(masks or {}, len(arrays), channels_last)
        self._log_arrays(arrays, maps, mask_class_labels, name, step, use_table)

    def _log_arrays(
        self,
        arrays: list[Any],
        maps: dict[str, list[Any]],
        labels: dict[int, str] | None,
        name: str,
        step: int | None,
        use_table: bool,
    ) -> None:
        if not self._ready(self._log_arrays, arrays, maps, labels, name, step, use_table):
            return
        self._catch_up()
        pictures: list[Any] = []
        for index, array in enumerate(arrays):
            layers = {mask: {"mask_data": maps[mask][index], "class_labels": labels or {}} for mask in maps}
            pictures.append(self._wandb.Image(array, masks=layers or None))
        if use_table:
            table = self._wandb.Table(columns=[name], data=[[picture] for picture in pictures])
            self._run.log({name: table}, step=step)
        else:
            self._run.log({name: pictures}, step=step)

    def can_upload_files(self) -> bool:
        """Return whether files are logged as artifacts."""
        return self.log_artifacts

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Log a file or folder as a new version of its artifact, which never replaces an older one.

        The name keeps letters, digits, ``-``, ``_`` and ``.``; other characters become dots. Aliases are ``latest`` and
        ``ep{epoch}-ba{batch}``, the metadata contains the training time, and checkpoints have the type ``model``.
        """
        if not self.log_artifacts or not self.is_active:
            return
        now = state.timestamp
        artifact = self._wandb.Artifact(
            name=artifact_name(remote_file_name),
            type="model" if file_path.suffix == ".pt" else file_path.suffix.lstrip(".") or "file",
            metadata={f"timestamp/{key}": value for key, value in to_json(now.state_dict()).items()},
        )
        # The artifact copies the file, so the original may be removed before it is uploaded.
        if file_path.is_dir():
            artifact.add_dir(str(file_path))
        else:
            artifact.add_file(str(file_path))
        alias = f"ep{now.count(TimeUnit.EPOCH)}-ba{now.count(TimeUnit.BATCH)}"
        self._log_artifact(artifact, ["latest", alias])

    def _log_artifact(self, artifact: Any, aliases: list[str]) -> None:
        if self._ready(self._log_artifact, artifact, aliases):
            self._run.log_artifact(artifact, aliases=aliases)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download the file of an artifact.

        Args:
            remote_file_name: Name under which it was uploaded to this project, with ``:alias`` for a version other than
                the latest.
            destination: Local path of the file.
            overwrite: Whether to replace an existing file.
            progress_bar: Has no effect; wandb shows the progress of large downloads.

        Raises:
            FileExistsError: The file exists.
            FileNotFoundError: The artifact does not exist.
        """
        target = Path(destination)
        if target.exists() and not overwrite:
            raise FileExistsError(f"{destination} exists; pass overwrite=True to replace it.")
        name = self._full_name(remote_file_name)
        try:
            artifact = self._wandb.Api().artifact(name)
        except self._wandb.errors.CommError as error:
            raise FileNotFoundError(f"The artifact {name!r} does not exist: {error}") from error
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the folder of the destination, so that moving the file there is atomic.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            artifact.download(root=folder)
            move_into_place(Path(folder), target)

    def _full_name(self, remote_file_name: str) -> str:
        """Return the name of an artifact with entity, project and version."""
        name, _, alias = remote_file_name.partition(":")
        return "/".join(filter(None, [self.entity, self.project, f"{artifact_name(name)}:{alias or 'latest'}"]))

    def _begin(self, state: State, saved: dict[str, Any]) -> None:
        arguments = dict(self._init_kwargs)
        name = arguments.get("name") or state.run_name
        arguments["name"] = with_rank(name, self.rank_zero_only)
        if not self.rank_zero_only:
            arguments.setdefault("group", name)
        given = {key: arguments[key] for key in ("project", "entity") if key in arguments}
        if "id" in saved and not {"id", "resume", "resume_from", "fork_from"} & set(arguments):
            previous = {key: saved[key] for key in ("project", "entity") if saved[key]}
            if given.items() <= previous.items():
                arguments.update(id=saved["id"], resume="allow", **previous)
        self._run = run = self._wandb.init(**arguments)
        self.project, self.entity, self.run_url, self.run_dir = run.project, run.entity, run.url, run.dir

    def _end(self, outcome: Outcome) -> None:
        run, self._run = self._run, None
        end_with_timeout(self.close_timeout, "WandBLogger", lambda: run.finish(exit_code=int(outcome != "finished")))

    def _identity(self) -> dict[str, Any]:
        run = self._run
        return {"id": run.id, "project": run.project, "entity": run.entity, "group": run.group}
