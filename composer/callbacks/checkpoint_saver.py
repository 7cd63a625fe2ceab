"""CheckpointSaver: save checkpoints at an interval, keep the newest and best, and find the one to resume from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from composer import dist
from composer._numbers import non_negative, whole_number
from composer._secrets.masking import mask_text
from composer._text import one_of
from composer.callbacks._checkpoint_event import log_saved
from composer.callbacks._checkpoint_names import current_name, in_folder, remote, remote_names, times_from, times_of
from composer.callbacks._duplicate_saves import SavePoint, is_never
from composer.callbacks._monitored_metric import mode_for, read_score
from composer.callbacks._saver_settings import SaverSettings, save_schedule
from composer.checkpoint.async_writer import CheckpointWriter
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.latest_symlink import upload_copy
from composer.checkpoint.local_folder import LocalCheckpoints
from composer.checkpoint.name_templates import bind
from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.checkpoint.ordering import Found
from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.checkpoint.retention import BestCheckpoint, retention_of
from composer.checkpoint.safetensors_files import check_format
from composer.checkpoint.save import collect, folders_for, template_for
from composer.checkpoint.saved_checkpoints import SavedList, folder_key
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.metric_names import check_monitor
from composer.core.name_placeholders import check_template, format_name
from composer.core.time import Time
from composer.core.timestamp import Timestamp
from composer.ledger import Category, timed_as
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["CheckpointSaver"]


class CheckpointSaver(SaverSettings, Callback):
    """Saves checkpoints at an interval, maintains a link to the newest, and removes the ones not to be kept.

    The folder can be any local path or fsspec URI. For a URI, a thread uploads checkpoints from a temporary folder on
    this host; the link is a text file ``<name>.symlink`` there. Settings can be changed later, except for ``folder``,
    ``filename``, ``asynchronous`` and ``on_failure``, which raise an ``AttributeError``.

    A checkpoint is written under a temporary name and renamed when it is complete; the link moves after that, and
    obsolete checkpoints are removed last. So the link points at a complete checkpoint at any moment.

    If ``state.checkpoint_folders`` is set, as with ``parallelism_config={"fsdp": {"state_dict_type": "sharded"}}``,
    each rank writes its shard, and a checkpoint is a folder with the name given there.

    Args:
        folder: Where to save: a path or URI, which may contain placeholders such as ``{run_name}``.
        filename: Name of a checkpoint, with ``{epoch}``, ``{batch}`` and others. A name that ends in ".safetensors"
            selects that format, which requires ``weights_only=True``.
        remote_file_name: Name under which loggers that store files receive it; None does not send it.
        latest_filename: Name of the link; None creates none.
        latest_remote_file_name: Name of the link for loggers that store files, as a text file ``<name>.symlink``.
        save_interval: How often to save: epochs, a time string, a :class:`.Time` or ``(state, event) -> bool``.
        overwrite: Allow a folder that holds later checkpoints of another run, which this run may then replace.
        num_checkpoints_to_keep: How many of the newest to keep; -1 keeps all, or one if ``keep_best`` or
            ``keep_every`` is set. The newest is always kept.
        weights_only: Leave out what only training needs.
        ignore_keys: What else to leave out: path patterns or a function.
        upload_timeout_in_seconds: How long the end of the run waits for pending uploads to a remote folder.
        keep_best: How many of the best to keep in addition to the newest, by ``monitor``.
        monitor: The metric that ranks checkpoints, such as ``"eval/MulticlassAccuracy"``.
        mode: Whether small or large values are better, "min" or "max"; defaults to :func:`.larger_is_better`.
        keep_every: Keep every n-th checkpoint forever; 0 keeps none.
        save_metrics: Include the state of the metrics.
        asynchronous: Write in a background thread. Training then waits only for a copy into host memory, which is as
            large as the checkpoint.
        on_failure: Whether a failed save ends training ("raise") or emits a warning ("warn").

    Attributes:
        saved_checkpoints: Paths of the checkpoints kept, oldest first.
        all_saved_checkpoints_to_timestamp: Timestamps of all checkpoints saved, by path.
        best_checkpoint: Path and value of the best checkpoint kept, by ``monitor``.

    Raises:
        ValueError: A name has an unknown placeholder or leads out of the folder, or arguments conflict.

    >>> CheckpointSaver("{run_name}/checkpoints", save_interval="500ba").overwrite
    False
    """

    def __init__(
        self,
        folder: str | Path = "{run_name}/checkpoints",
        filename: str | Path = "ep{epoch}-ba{batch}-rank{rank}.pt",
        remote_file_name: str | Path | None = "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt",
        latest_filename: str | Path | None = "latest-rank{rank}.pt",
        latest_remote_file_name: str | Path | None = "{run_name}/checkpoints/latest-rank{rank}.pt",
        save_interval: Time | str | int | Callable[[State, Event], bool] = "1ep",
        *,
        overwrite: bool = False,
        num_checkpoints_to_keep: int = -1,
        weights_only: bool = False,
        ignore_keys: IgnoreKeys = None,
        upload_timeout_in_seconds: float = 3600.0,
        keep_best: int = 0,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        keep_every: int = 0,
        save_metrics: bool = False,
        asynchronous: bool = False,
        on_failure: Literal["raise", "warn"] = "raise",
    ) -> None:
        self.folder = check_template("folder", os.fspath(folder))
        self.filename = in_folder("filename", filename, self.folder)
        self.remote_file_name = remote("remote_file_name", remote_file_name)
        self.latest_filename = in_folder("latest_filename", latest_filename, self.folder) if latest_filename else None
        self.latest_remote_file_name = remote("latest_remote_file_name", latest_remote_file_name)
        self.save_interval = save_interval if callable(save_interval) else save_schedule(save_interval)
        self.weights_only, self.ignore_keys, self.save_metrics = weights_only, ignore_keys, save_metrics
        self.overwrite, self.asynchronous = overwrite, asynchronous
        self._upload_timeout = non_negative("upload_timeout_in_seconds", upload_timeout_in_seconds)
        self.monitor, self.mode = monitor if monitor is None else check_monitor(monitor), mode
        check_format("filename", self.filename.filename, weights_only=weights_only)
        self._infers_mode = mode is None and monitor is not None
        self.num_checkpoints_to_keep = whole_number("num_checkpoints_to_keep", num_checkpoints_to_keep, minimum=None)
        retention = retention_of(num_checkpoints_to_keep, keep_best, keep_every, mode or "min", monitor)
        self._list = SavedList(retention, folder_key(self.folder, self.filename.filename))
        self._on_failure: Literal["raise", "warn"] = one_of("on_failure", on_failure, ("raise", "warn"))
        self._writer = CheckpointWriter(background=asynchronous, on_failure=self._on_failure)
        self._store: LocalCheckpoints | RemoteCheckpoints | None = None
        self._last_saved: SavePoint | None = None
        self.all_saved_checkpoints_to_timestamp: dict[str, Timestamp] = {}

    @property
    def saved_checkpoints(self) -> list[str]:
        """Paths of the checkpoints kept, oldest first."""
        return self._list.paths

    @property
    def best_checkpoint(self) -> BestCheckpoint | None:
        """Path and value of the best checkpoint kept, by ``monitor``; None before the first evaluation."""
        return self._list.best

    @property
    def __location__(self) -> str | None:
        """Path of the newest saved checkpoint, if any."""
        return self._list.paths[-1] if self._list.entries else None

    @property
    def __remote_file_name__(self) -> str | None:
        return None if self.remote_file_name is None else self.remote_file_name.filename

    def init(self, state: State, logger: Logger) -> None:
        """Start a new list of checkpoints and create the folder, to fail early if it is not writable."""
        self._last_saved, self._store = None, None
        folders = folders_for(state, self.filename.filename, weights_only=self.weights_only)
        if folders is not None and folders.engine is not None and self.asynchronous:
            raise ValueError("save_async=True is not supported with DeepSpeed, whose engine saves itself. Use False.")
        store = self.store(state)
        # A folder may hold checkpoints of both forms, single files and sharded folders.
        templates = (self.template(state), bind(self.filename.filename, state.run_name))
        self._list.begin(store, templates, state.run_name if state.run_name_given else None)
        if dist.get_global_rank() == 0:
            store.probe()

    def store(self, state: State) -> LocalCheckpoints | RemoteCheckpoints:
        """Return the checkpoint folder of the run, local or remote.

        Args:
            state: The state of the run.
        """
        if self._store is None:
            folder = format_name(self.folder, state.run_name)
            if is_remote(folder):
                self._store = RemoteCheckpoints(folder, self._on_failure, close_timeout=self._upload_timeout)
            else:
                self._store = LocalCheckpoints(local_path(folder))
        return self._store

    def template(self, state: State) -> str:
        """Return the name template of the run's checkpoints, relative to the folder, with its counters in braces.

        Args:
            state: The state of the run.
        """
        return bind(template_for(state, self.filename.filename, weights_only=self.weights_only), state.run_name)

    def path_of(self, state: State, name: str) -> str:
        """Return the path or URI of a file in the folder.

        Args:
            state: The state of the run.
            name: Name of the file, relative to the folder.
        """
        return self.store(state).path_of(name)

    def candidates(self, state: State) -> list[Found]:
        """Return the paths or URIs of the checkpoints to resume from, with their save times, newest first.

        The newest is the target of the link, unless a crash happened after the checkpoint and before its link. Older
        ones are fallbacks if it cannot be read. All ranks must call this: each inspects a folder, only rank 0 a URI.

        Args:
            state: The state of the run.

        Raises:
            OSError: The folder cannot be read.
        """
        store, template, latest = self.store(state), self.template(state), self.latest_name(state)
        if isinstance(store, LocalCheckpoints):
            return store.candidates(template, latest)
        what = f"look for checkpoints in {mask_text(store.folder.uri)!r}"
        return run_on_rank_zero(lambda: store.candidates(template, latest), what)

    def newest(self, state: State) -> str | None:
        """Return the first path of :meth:`candidates`, or None; all ranks must call this.

        Args:
            state: The state of the run.
        """
        return next((one.name for one in self.candidates(state)), None)

    def mark_unreadable(self, paths: Sequence[str]) -> None:
        """Exclude checkpoints that could not be read: they may stay in the folder though they are later than this run.

        Args:
            paths: Their paths or URIs.
        """
        self._list.pass_over(paths)

    def latest_name(self, state: State) -> str | None:
        """Return the name of the link to the newest checkpoint, relative to the folder; None if it is disabled.

        Args:
            state: The state of the run.
        """
        return current_name(self.latest_filename, state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Raise if the folder has later checkpoints of another run, which would be mixed with those of this run."""
        self._score(state)  # raises if the metric does not exist or has no known direction
        # The entries in the folder are the same on all ranks; missing ones were saved to another folder.
        self._list.put_back(run_on_rank_zero(lambda: self._begin(state), f"prepare {mask_text(self.folder)!r}"))

    def _begin(self, state: State) -> Any:
        """Check the folder, finish what a killed process had begun, and return the list of checkpoints present."""
        store, template, latest = self.store(state), self.template(state), self.latest_name(state)
        entries, obsolete, damaged = self._list.snapshot(present_only=True)
        loaded = None if state.load_path is None else store.name_of(state.load_path)
        savers = [callback for callback in state.callbacks if isinstance(callback, CheckpointSaver)]
        if state.load_path is not None and not any(one.store(state).name_of(state.load_path) for one in savers):
            entries, obsolete = [], []  # loaded from elsewhere: nothing that it lists was saved here
        ours = {*(one.name for one in entries), *damaged}
        if not self.overwrite:
            store.raise_if_later(template, state.timestamp, ours)
        store.remove_partial_files(
            template, None if self.latest_filename is None else bind(self.latest_filename.filename, state.run_name)
        )
        # The process that saved the resumed checkpoint may have ended before it moved the link and removed these.
        left = [name for name in obsolete if name not in ours and name != loaded]
        store.finish(template, latest if entries else None, damaged, left)
        return entries, obsolete, damaged

    def batch_start(self, state: State, logger: Logger) -> None:
        """Raise or warn about a checkpoint that failed in the background."""
        self._writer.poll()
        if isinstance(self._store, RemoteCheckpoints):
            self._store.poll()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the interval is due."""
        self._save_if_due(Event.BATCH_CHECKPOINT, state, logger)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the interval is due."""
        self._save_if_due(Event.EPOCH_CHECKPOINT, state, logger)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the interval is due."""
        self._save_if_due(Event.ITERATION_CHECKPOINT, state, logger)

    @timed_as(Category.SAVING, state_at=1)
    def fit_end(self, state: State, logger: Logger) -> None:
        """Save what changed at the end since the last checkpoint, then wait for all writes and uploads."""
        if not self.weights_only and not is_never(self.save_interval):
            self.save(state, logger, at_end=True)
        self._writer.wait()
        if isinstance(self._store, RemoteCheckpoints):
            self._store.wait()

    def close(self, state: State, logger: Logger) -> None:
        """Wait for all writes and uploads."""
        try:
            self._writer.close()
        finally:
            if isinstance(self._store, RemoteCheckpoints):
                self._store.close()

    @timed_as(Category.SAVING, state_at=1)
    def save(self, state: State, logger: Logger, *, at_end: bool = False) -> None:
        """Save now, unless this batch and the end of the run are saved already; all ranks must call this.

        Args:
            state: The state of the run.
            logger: Its destinations that store files receive the checkpoint too.
            at_end: Save only what the last checkpoint lacks: a later evaluation, or that the run ended early.

        Raises:
            OSError: The checkpoint could not be written.
        """
        self._writer.wait()  # a failed write resets what is compared below
        # Only the writing ranks know of a failure, after which the same moment may be saved again.
        dist.broadcast_object_list(is_saved := [SavePoint.of(state).is_saved_by(self._last_saved, at_end=at_end)])
        if not is_saved[0]:
            self._save_checkpoint(state, logger)

    def _save_checkpoint(self, state: State, logger: Logger) -> None:
        """Save now; subclasses written for Composer 0.32 override and call this."""
        self._writer.wait()
        now, store, template = SavePoint.of(state), self.store(state), self.template(state)
        name = format_name(template, state.run_name, state.timestamp, rank=0)
        # Before the state is collected, so that a resumed run knows of this checkpoint too.
        before = self._list.add(name, now.batch, self._score(state))
        self._last_saved, times = now, dict(self.all_saved_checkpoints_to_timestamp)
        self.all_saved_checkpoints_to_timestamp[store.path_of(name)] = state.timestamp

        def otherwise() -> None:
            # What would have been removed in favor of this checkpoint is still there.
            self._list.put_back(before)
            self.all_saved_checkpoints_to_timestamp = times
            self._last_saved = None

        only = self.weights_only
        try:
            content = collect(state, weights_only=only, ignore_keys=self.ignore_keys, metrics=self.save_metrics)
        except TypeError:
            otherwise()
            raise
        path, latest, obsolete = store.local / name, self.latest_name(state), self._list.obsolete
        copies = remote_names(self, state) if logger.has_file_upload_destination() else (None, None)
        folders = folders_for(state, self.filename.filename, weights_only=only)
        is_first, per_rank_folder = dist.get_global_rank() == 0, isinstance(store, RemoteCheckpoints)
        if isinstance(store, RemoteCheckpoints) and folders is not None:
            store.create_group()

        def then() -> None:
            if is_first and latest is not None and isinstance(store, LocalCheckpoints):
                store.set_link(latest, name)
            if is_first or per_rank_folder:  # in a remote folder, each rank uploads its shard
                upload_copy(logger, path, copies[0], copies[1] if is_first else None)
            if isinstance(store, RemoteCheckpoints):
                store.publish(name, latest, obsolete, template)
            elif is_first:
                store.remove(obsolete, template)

        self._writer.write(content, path, then, otherwise, folders=folders, per_rank_folder=per_rank_folder)
        log_saved(logger, str(store.path_of(name)), name, self._list, self.monitor)

    def state_dict(self) -> dict[str, Any]:
        """Return save times, checkpoints kept and checkpoints being removed, by names relative to the folder."""
        times = times_of(self.all_saved_checkpoints_to_timestamp, self._list)
        return {**self._list.state_dict(), "all_saved_checkpoints_to_timestamp": times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the list of what an earlier process of this run saved to this folder, so that retention continues.

        The list of another run, or of checkpoints elsewhere, is ignored.

        Args:
            state: The return value of :meth:`state_dict`.
        """
        if self._list.load_state_dict(state):
            saved = state.get("all_saved_checkpoints_to_timestamp", ())
            self.all_saved_checkpoints_to_timestamp.update(times_from(saved, self._list))

    def __is_own_state__(self, state: dict[str, Any]) -> bool:
        """Return whether a state belongs to a saver with this folder and these names.

        Args:
            state: The return value of :meth:`state_dict` of a saver.
        """
        return state.get("place") == self._list.folder_key

    def _save_if_due(self, event: Event, state: State, logger: Logger) -> None:
        if self.save_interval(state, event):
            self.save(state, logger)

    def _score(self, state: State) -> float | None:
        """Return the value of the monitored metric, or None before the first evaluation."""
        if self.monitor is None:
            return None
        if self._infers_mode:
            self._list.retention = replace(self._list.retention, mode=mode_for(state, self.monitor))
        return read_score(state, self.monitor)
