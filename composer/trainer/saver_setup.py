"""Create the Trainer's ``CheckpointSaver``, check it against those in callbacks, and load the best checkpoint."""

from __future__ import annotations

import itertools
import os
import posixpath
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._text import one_of
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.load import restore
from composer.checkpoint.name_templates import bind, pattern
from composer.checkpoint.retention import BestCheckpoint
from composer.core.file_names import PartialFilePath
from composer.core.metric_names import spellings
from composer.core.name_placeholders import format_name
from composer.core.timestamp import Timestamp
from composer.storage.downloads import fetched
from composer.storage.uris import is_remote, local_path, parse_uri
from composer.trainer.resume import read_for_run, savers_of
from composer.trainer.run import Run
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["check_distinct", "load_best", "make_saver"]


def make_saver(arguments: Mapping[str, Any]) -> CheckpointSaver:
    """Return the ``CheckpointSaver`` of the ``save_*`` arguments.

    Args:
        arguments: The arguments of the trainer.

    >>> import inspect
    >>> from composer import Trainer
    >>> arguments = {name: p.default for name, p in inspect.signature(Trainer.__init__).parameters.items()}
    >>> make_saver({**arguments, "save_folder": "runs"}).filename.filename
    'ep{epoch}-ba{batch}-rank{rank}.pt'
    """
    folder = os.fspath(arguments["save_folder"])
    filename, latest = arguments["save_filename"], arguments["save_latest_filename"]
    # Loggers that store files have separate buckets.
    above = parse_uri(folder)[2] if is_remote(folder) else folder
    if ".." in (parts := above.split("/")):  # allowed in a local path, but not in a remote name
        above = "/".join(part for part in parts if part not in (".", ".."))
    return CheckpointSaver(
        folder,
        filename,
        remote_file_name=posixpath.normpath(posixpath.join(above, filename)),
        latest_filename=latest,
        latest_remote_file_name=None if latest is None else posixpath.normpath(posixpath.join(above, latest)),
        save_interval=arguments["save_interval"],
        overwrite=arguments["save_overwrite"],
        num_checkpoints_to_keep=arguments["save_num_checkpoints_to_keep"],
        weights_only=arguments["save_weights_only"],
        ignore_keys=arguments["save_ignore_keys"],
        save_metrics=arguments["save_metrics"],
        asynchronous=arguments["save_async"],
        on_failure=arguments["save_failure"],
    )


def check_distinct(state: State, *, uploads: bool = False) -> None:
    """Check that savers do not write the same checkpoint or link, and so overwrite each other's files.

    Args:
        state: The state of the run.
        uploads: Whether loggers store files, whose names must differ as well.

    Raises:
        ValueError: Two savers conflict, or the link of one can have the name of a checkpoint.

    >>> from composer import State
    >>> savers = [CheckpointSaver("a"), CheckpointSaver("a", save_interval="10ba")]
    >>> check_distinct(State(torch.nn.Linear(1, 1), callbacks=savers))
    Traceback (most recent call last):
    ...
    ValueError: Two CheckpointSavers would write the same files: ...
    """
    written = [(saver, what, name) for saver in savers_of(state) for what, name in _names(saver, state, uploads)]
    samples = [format_name(name, state.run_name, Timestamp(), rank=0) for _, _, name in written]
    for (one, other), (first, second) in zip(
        itertools.combinations(written, 2), itertools.combinations(samples, 2), strict=True
    ):
        if not (pattern(one[2]).fullmatch(second) or pattern(other[2]).fullmatch(first)):
            continue
        if one[0] is other[0]:
            raise ValueError(
                f"latest_filename={_name(one[0].latest_filename)!r} can also be the name of a checkpoint, by filename="
                f"{one[0].filename.filename!r}: the symlink would replace it. Use another name, or None for no symlink."
            )
        raise ValueError(
            f"Two CheckpointSavers would write the same files: {one[1]} of {_described(one[0])} and {other[1]} of "
            f"{_described(other[0])} can both be {first!r}. Change the folder or the names of one of them: filename=, "
            f"latest_filename=, and, for loggers that store files, remote_file_name=, latest_remote_file_name=."
        )


def _names(saver: CheckpointSaver, state: State, uploads: bool) -> Iterator[tuple[str, str]]:
    """Yield the templates of all files that a saver writes; only counters remain as placeholders."""
    folder = format_name(saver.folder, state.run_name)
    root = folder.rstrip("/") if is_remote(folder) else os.path.realpath(local_path(folder))
    root = root.replace("{", "{{").replace("}", "}}")
    yield "the checkpoints", f"{root}/{saver.template(state)}"
    if saver.latest_filename is not None:
        yield "the link", f"{root}/{bind(saver.latest_filename.filename, state.run_name)}"
    if uploads and saver.remote_file_name is not None:
        yield "the uploaded checkpoints", f"loggers:{bind(saver.remote_file_name.filename, state.run_name)}"
        if saver.latest_filename is not None and saver.latest_remote_file_name is not None:
            yield "the uploaded link", f"loggers:{bind(saver.latest_remote_file_name.filename, state.run_name)}"


def _described(saver: CheckpointSaver) -> str:
    scheme, found, rest = saver.folder.partition("://")
    host, slash, path = rest.partition("/")
    # Without username and password.
    folder = f"{scheme}{found}{host.rpartition('@')[2]}{slash}{path}" if found else saver.folder
    latest = _name(saver.latest_filename)
    return f"CheckpointSaver({folder!r}, {saver.filename.filename!r}, latest_filename={latest!r})"


def _name(template: PartialFilePath | None) -> str | None:
    return None if template is None else template.filename


def _monitored(state: State, savers: Mapping[str, CheckpointSaver], monitor: str) -> str:
    """Return the name of a metric as given to a saver, for any of its spellings."""
    pairs = [(label, name) for label, metrics in state.eval_metrics.items() for name in metrics]
    meant = [set(spellings(*pair)) for pair in pairs if monitor in spellings(*pair)]
    found = [name for name in savers if any(name in names for names in meant)]
    return found[0] if monitor not in savers and len(found) == 1 else one_of("monitor", monitor, sorted(savers))


def load_best(run: Run, monitor: str | None = None) -> BestCheckpoint:
    """Load model weights and algorithm state, such as weight averages, of the best checkpoint; all ranks call this.

    Args:
        run: The run.
        monitor: The monitored metric, if savers monitor more than one.

    Raises:
        ValueError: No saver monitors a metric, several do and ``monitor`` is None, or no checkpoint has a score.
    """
    savers = {saver.monitor: saver for saver in savers_of(run.state) if saver.monitor is not None}
    if not savers:
        raise ValueError(
            "load_best requires a saver that monitors a metric: pass the Trainer "
            "callbacks=CheckpointSaver(..., monitor='eval/<metric>', keep_best=1)."
        )
    if monitor is None and len(savers) > 1:
        raise ValueError(f"Several metrics are monitored: {sorted(savers)}; choose one with monitor=.")
    name = next(iter(savers)) if monitor is None else _monitored(run.state, savers, monitor)
    saver = savers[name]
    saver.fit_end(run.state, run.logger)  # waits until it is written and uploaded
    answer = [saver.best_checkpoint]
    dist.broadcast_object_list(answer)
    best = answer[0]
    if best is None:
        raise ValueError(
            f"load_best: no checkpoint has a value of {name!r}: none was saved after an evaluation. Check "
            f"eval_interval and save_interval."
        )
    with fetched(best.path, progress_bar=False) as local:
        saved = read_for_run(run, local).get("state", {})
        kept = {key: saved[key] for key in ("model", "algorithms") if key in saved}
        restore(run.state, run.logger, {"state": kept}, algorithm_passes=run.engine.algorithm_passes)
    left = [type(one).__name__ for one in run.state.algorithms if len(one.state_dict()) > 1]
    if left and "algorithms" not in kept:
        message = f"{best.path!r} contains only weights; the state of {', '.join(left)} was not loaded from it."
        warnings.warn(message, ComposerWarning, stacklevel=3)
    return best
