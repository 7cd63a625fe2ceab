"""Resume from the newest intact checkpoint in the folders of a run, or in loggers that store files (``autoresume``)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from composer import dist
from composer._secrets.masking import mask_text
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.file_format import DamagedCheckpointError, UnsafeCheckpointError
from composer.checkpoint.folder_conflicts import MANIFEST
from composer.checkpoint.latest_symlink import extract_path_from_symlink
from composer.checkpoint.name_templates import bind, pattern
from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.checkpoint.ordering import Found, newest_first
from composer.checkpoint.save import template_for
from composer.core.name_placeholders import format_name, placeholders
from composer.storage.downloads import LINK_SUFFIX, fetched
from composer.trainer.resume import LoadOptions, apply_checkpoint, read_for_run, savers_of
from composer.trainer.run import Run
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.loggers.remote_uploader_downloader import RemoteUploaderDownloader

__all__ = ["resume_newest"]

Value = TypeVar("Value")

_DAMAGE = (DamagedCheckpointError, FileNotFoundError)


def resume_newest(run: Run) -> bool:
    """Load the newest intact checkpoint of a run; return whether one exists.

    A corrupted or missing checkpoint is skipped with a warning, and the one before it is loaded. If the folders have no
    checkpoint, as on a new host, the loggers that store files are searched. All ranks load the same checkpoint.

    Args:
        run: The run.

    Raises:
        ValueError: No saver saves full checkpoints with a link, or each start would look in a new folder.
        RuntimeError: Only some ranks see a checkpoint.
        DamagedCheckpointError: Checkpoints exist, but none can be read.
        UnsafeCheckpointError: Reading a checkpoint would run code.
    """
    savers = _resumable(run.state)
    skipped: dict[str, str] = {}
    for options in _candidates(run.state, savers):
        path = str(options.path)
        with contextlib.ExitStack() as stack:
            content, reason = _try_read(run, options, stack, is_fallback=bool(skipped))
            if content is None:
                skipped[path] = reason
                continue
            if skipped:
                reasons = _reasons(skipped)
                message = (
                    f"autoresume resumes from {mask_text(path)!r}, since newer checkpoints cannot be read: {reasons}"
                )
                warnings.warn(message, ComposerWarning, stacklevel=3)
            _warn_of_another_run(run.state, path, content)
            apply_checkpoint(run, options, path, content)
            for saver in savers:
                saver.mark_unreadable(list(skipped))
            return True
    if skipped:
        raise DamagedCheckpointError(
            f"autoresume: checkpoints exist, but none can be read: {_reasons(skipped)} Restore one of them, or move "
            f"them away, with the symlink to the newest, to start over."
        )
    return False


def _warn_of_another_run(state: State, path: str, content: dict[str, Any]) -> None:
    name = content.get("state", {}).get("run_name")
    if state.run_name_given and name is not None and name != state.run_name:
        message = (
            f"autoresume: {mask_text(path)!r} is a checkpoint of the run {name!r}, which this run, {state.run_name!r}, "
            f"resumes. Use a separate folder for each run, such as save_folder='{{run_name}}/checkpoints'."
        )
        warnings.warn(message, ComposerWarning, stacklevel=4)


def _reasons(skipped: Mapping[str, str]) -> str:
    """Return a message that names the skipped checkpoints with the reasons."""
    return mask_text("; ".join(f"{path!r}: {reason}" for path, reason in skipped.items()))


def _resumable(state: State) -> list[CheckpointSaver]:
    """Return the savers to resume from; raise if there are none, or if each start would look in a new folder."""
    savers = [saver for saver in savers_of(state) if saver.latest_filename is not None and not saver.weights_only]
    if not savers:
        raise ValueError(
            "autoresume=True requires a CheckpointSaver that saves full checkpoints and a symlink to the newest: set "
            "save_folder, with save_latest_filename and without save_weights_only."
        )
    if not state.run_name_given and all(map(_folder_depends_on_run_name, savers)):
        raise ValueError(
            f"autoresume=True would never find a checkpoint: run_name is not set, so each start generates a new one, "
            f"and the folder {savers[0].folder!r} or the filenames in it depend on it. Set run_name (or the "
            f"environment variable COMPOSER_RUN_NAME), or use a save_folder without {{run_name}}."
        )
    return savers


def _folder_depends_on_run_name(saver: CheckpointSaver) -> bool:
    """Return whether a different run name leads to a different folder, or to different names in it."""
    latest = "" if saver.latest_filename is None else saver.latest_filename.filename
    names = placeholders(saver.filename.filename), placeholders(latest)
    return "run_name" in placeholders(saver.folder) or all("run_name" in found for found in names)


def _candidates(state: State, savers: Sequence[CheckpointSaver]) -> Iterator[LoadOptions]:
    """Yield the checkpoints, newest first, in the same order on all ranks; all ranks must iterate together."""
    found = _merged([saver.candidates(state) for saver in savers])
    per_rank: list[list[str]] = dist.all_gather_object([one.name for one in found])
    absent = [rank for rank, names in enumerate(per_rank) if not names]
    if 0 < len(absent) < len(per_rank):
        raise RuntimeError(
            f"autoresume: ranks {absent} do not see the checkpoint that other ranks see; save_folder must be on a file "
            f"system that all ranks share."
        )
    yield from map(LoadOptions, per_rank[0])
    from composer.loggers.remote_uploader_downloader import RemoteUploaderDownloader

    for keeper in state.callbacks:
        if isinstance(keeper, RemoteUploaderDownloader):
            for saver in savers:
                for name in _uploaded_checkpoints(keeper, saver, state):
                    yield LoadOptions(name, keeper)


def _merged(lists: Sequence[Sequence[Found]]) -> list[Found]:
    """Merge the checkpoints of multiple savers by modification time, keeping the order of each saver."""
    left, merged = [list(one) for one in lists if one], list[Found]()
    while left:
        newest = max(left, key=lambda one: one[0].modified)
        merged.append(newest.pop(0))
        left = [one for one in left if one]
    return merged


def _uploaded_checkpoints(keeper: RemoteUploaderDownloader, saver: CheckpointSaver, state: State) -> list[str]:
    """Return the names of a saver's checkpoints that a logger stores, newest first; rank 0 lists them."""
    if saver.latest_remote_file_name is None or saver.remote_file_name is None:
        return []
    link = (
        f"{format_name(saver.latest_remote_file_name.filename, state.run_name, state.timestamp, rank=0)}{LINK_SUFFIX}"
    )
    template = bind(template_for(state, saver.remote_file_name.filename), state.run_name)
    levels = template.split("/")
    depth = next(depth for depth, level in enumerate([*levels[:-1], "{"]) if "{" in level)
    above = "/".join(levels[:depth])

    def look() -> list[str]:
        if not keeper.has_file(link):
            return []
        names = [f"{above}/{name}".removesuffix(f"/{MANIFEST}") for name in keeper.list_files(above)] if above else []
        found = [Found(name, 0.0) for name in names if pattern(template).fullmatch(name)]
        link_folder = link.rpartition("/")[0]
        target = extract_path_from_symlink(link, keeper)
        ordered = newest_first(found, template, Found(f"{link_folder}/{target}" if link_folder else target, 0.0))
        # The link itself instead of its target, which older versions wrote relative to the bucket.
        return [link, *(one.name for one in ordered[1:])]

    return run_on_rank_zero(look, f"look for checkpoints in {mask_text(keeper.bucket_uri)!r}")


def _try_read(
    run: Run, options: LoadOptions, stack: contextlib.ExitStack, *, is_fallback: bool
) -> tuple[dict[str, Any] | None, str]:
    """Return the content of a checkpoint, or None and the reason if it is corrupted on any rank; all ranks agree."""

    def found() -> Path:
        local = stack.enter_context(fetched(str(options.path), options.object_store))
        if not local.exists() and not (run.strategy.rank_zero_reads and dist.get_global_rank() != 0):
            raise FileNotFoundError("it is missing.")
        return local

    def read(local: Path) -> dict[str, Any]:
        # Without the file that is written last, it would be read as weights saved by another program.
        if local.is_dir() and not (local / MANIFEST).is_file():
            raise DamagedCheckpointError(f"the file {MANIFEST!r} is missing.")
        content = read_for_run(run, local)
        name = content.get("state", {}).get("run_name")
        if is_fallback and run.state.run_name_given and name != run.state.run_name:
            raise DamagedCheckpointError(f"it belongs to another run, {name!r}.")
        return content

    local, reason = _on_all_ranks(found, options)
    return (None, reason) if local is None else _on_all_ranks(lambda: read(local), options)


def _on_all_ranks(act: Callable[[], Value], options: LoadOptions) -> tuple[Value | None, str]:
    """Return the result of a function, or None and the reason if the checkpoint is corrupted on any rank."""
    value, failure = None, None
    try:
        value = act()
    except Exception as error:
        failure = error
    mine = None if failure is None else f"{type(failure).__name__}: {failure}"
    per_rank: list[tuple[str | None, bool, bool]] = dist.all_gather_object(
        (mine, isinstance(failure, _DAMAGE), isinstance(failure, UnsafeCheckpointError))
    )
    failed = {rank: text for rank, (text, _, _) in enumerate(per_rank) if text is not None}
    damaged = next((text.partition(": ")[2] for text, is_damage, _ in per_rank if is_damage and text is not None), None)
    if failed and (damaged is None or any(is_unsafe for _, _, is_unsafe in per_rank)):
        if failure is not None:
            raise failure
        rank, text = next(iter(failed.items()))
        raise RuntimeError(f"autoresume: rank {rank} could not read {mask_text(str(options.path))!r}: {text}")
    return (value, "") if damaged is None else (None, damaged)
