"""Load a checkpoint: read it from a file, folder or URI, and restore the state of a run (resume) from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from composer import dist
from composer._secrets.masking import mask_text
from composer.checkpoint import file_format
from composer.checkpoint.contents import STATE_ENTRIES, StateEntry
from composer.checkpoint.entry_types import check_entry_types
from composer.checkpoint.excluded_weights import EXCLUDED_KEY, exclude
from composer.checkpoint.filters import IgnoreKeys, patterns_inside, patterns_reaching
from composer.checkpoint.legacy_formats import upgrade
from composer.checkpoint.model_weights import check_shapes, load_weights
from composer.checkpoint.named_states import as_named
from composer.checkpoint.recreate_algorithms import recreate_algorithms
from composer.checkpoint.safetensors_files import is_safetensors, read_safetensors
from composer.checkpoint.sharded_reader import load_tensors, open_sharded
from composer.checkpoint.sharded_tensors import Layout
from composer.checkpoint.user_validation import ensure_valid, validation_function
from composer.core.algorithm_order import AlgorithmPass
from composer.core.name_placeholders import format_name
from composer.core.stop_reason import Stop
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.checkpoint_folders import CheckpointEngine
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ResumeInfo", "load_checkpoint", "open_checkpoint", "read_checkpoint", "restore", "safe_torch_load"]


@dataclass(frozen=True)
class ResumeInfo:
    """What a resumed run needs from a checkpoint in addition to the restored state.

    Attributes:
        rng: Random states, one per rank of the saved run; None if only weights were loaded.
        max_duration: The maximum duration of the saved run.
        metadata: Versions, device and sizes of the saved run.
        schedulers: States of the schedulers by class name, for schedulers that are created later.
        planned_duration: The duration planned at the start; ``max_duration`` differs if the run changed it.
        stop: What stopped the run early, or None.
        metric_values: Last computed values of metrics, for data that is set later.
        fit_calls: The calls of ``fit`` of the saved run; empty in older checkpoints.
        unevaluated: Labels of the evaluators that had not evaluated the final weights of a run that had ended.

    >>> ResumeInfo().rng is None
    True
    """

    rng: list[dict[str, Any]] | None = None
    max_duration: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    schedulers: dict[str, Any] = field(default_factory=dict)
    planned_duration: str | None = None
    stop: Stop | None = None
    metric_values: dict[str, Any] = field(default_factory=dict)
    fit_calls: list[dict[str, Any]] = field(default_factory=list)
    unevaluated: Sequence[str] = ()


def read_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint, safetensors weights, or a bare state dict, as a checkpoint with full tensors.

    Args:
        path: The file, or the folder of a sharded checkpoint.

    Raises:
        FileNotFoundError: There is no checkpoint.
        DamagedCheckpointError: It is corrupted.
        UnsafeCheckpointError: Reading it would run code.

    >>> file_format.write({"weight": torch.ones(1)}, tmp_path / "weights.pt")
    >>> read_checkpoint(tmp_path / "weights.pt")
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    return load_tensors(open_checkpoint(path))


def open_checkpoint(path: Path | str, *, mapped: bool = False, all_ranks: bool = False) -> dict[str, Any]:
    """Read a checkpoint as :func:`read_checkpoint` does, but do not load the tensors of a sharded folder yet.

    Args:
        path: The file or folder.
        mapped: Whether to memory-map the tensors of a file, for ranks that need only shards of them.
        all_ranks: Whether all ranks call this.

    Raises:
        FileNotFoundError: There is no checkpoint.
        DamagedCheckpointError: It is corrupted.
        UnsafeCheckpointError: Reading it would run code.
        ValueError: The function in ``CHECKPOINT_VALIDATION_FUNCTION`` rejected it.

    >>> file_format.write({"state": {"model": {"weight": torch.ones(1)}}}, tmp_path / "ep1.pt")
    >>> open_checkpoint(tmp_path / "ep1.pt", mapped=True)
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    path = Path(path)
    if is_safetensors(path):
        return {"state": {"model": read_safetensors(path)}}
    if path.is_dir():
        for file in sorted(path.iterdir()) if validation_function() is not None else ():
            ensure_valid(file)
        content = open_sharded(path, all_ranks=all_ranks)
    else:
        content = file_format.read(ensure_valid(path), mapped=mapped)
    with file_format.damage_of(repr(str(path)), "its content"):
        if content.keys() <= {"rng", EXCLUDED_KEY} and not any(isinstance(value, Tensor) for value in content.values()):
            content["state"] = {}  # as saved with save_ignore_keys=["state"], or ["*"]
        if not isinstance(content.get("state"), dict):
            content = {"state": {"model": content.get("state_dict", content)}}
        check_entry_types(content)
        upgrade(content)
        return content


def safe_torch_load(
    composer_states_filepath: Path | str, map_location: str = "cpu", load_monolith_rank0_only: bool = False
) -> dict[str, Any]:
    """Read a checkpoint file without running code from it.

    Args:
        composer_states_filepath: The file.
        map_location: Device of the tensors.
        load_monolith_rank0_only: Whether only rank 0 reads it; other ranks get an empty dict.

    >>> file_format.write({"weight": torch.ones(1)}, tmp_path / "weights.pt")
    >>> safe_torch_load(tmp_path / "weights.pt")
    {'weight': tensor([1.])}
    """
    if load_monolith_rank0_only and dist.get_global_rank() != 0:
        return {}
    return file_format.read(ensure_valid(Path(composer_states_filepath)), map_location)


def load_checkpoint(
    path: Path | str,
    state: State,
    logger: Logger,
    object_store: Any = None,
    load_weights_only: bool = False,
    strict_model_weights: bool = True,
    progress_bar: bool = True,
    ignore_keys: IgnoreKeys = None,
    exclude_algorithms: list[str] | None = None,
    algorithm_passes: Sequence[AlgorithmPass] | None = None,
) -> list[dict[str, Any]] | None:
    """Load a checkpoint into a run.

    Args:
        path: The file or folder, or a URI; may contain ``{rank}``.
        state: The state of the run.
        logger: Passed to recreated algorithms.
        object_store: The object store that the path is in; None for a local path or a URI.
        load_weights_only: Whether to load only the weights.
        strict_model_weights: Whether the names of the weights must match exactly.
        progress_bar: Whether to show the progress of a download.
        ignore_keys: What to leave out, see :func:`.drop`.
        exclude_algorithms: Names of algorithms that are not recreated although the checkpoint was saved with them.
        algorithm_passes: Reorder the algorithms.

    Returns:
        The random states, for :func:`.load_rng_state`; None with ``load_weights_only``.

    >>> from composer import Logger, State
    >>> from composer.checkpoint import save_checkpoint
    >>> one, other = [State(model=torch.nn.Linear(1, 1)) for _ in range(2)]
    >>> path = save_checkpoint(one, str(tmp_path / "one.pt"))
    >>> rng = load_checkpoint(path, other, Logger(other))
    >>> bool(other.model.weight == one.model.weight)
    True
    """
    from composer.storage.downloads import fetched

    path = format_name(path, state.run_name, state.timestamp, rank=0)
    with fetched(path, object_store, progress_bar=progress_bar) as local:
        loaded = restore(
            state,
            logger,
            open_checkpoint(local, mapped=not Layout(state.model).is_unsharded, all_ranks=True),
            weights_only=load_weights_only,
            strict=strict_model_weights,
            ignore_keys=ignore_keys,
            exclude_algorithms=exclude_algorithms,
            algorithm_passes=algorithm_passes,
            source=repr(mask_text(path)),
        )
    if not load_weights_only:
        state.load_path = path  # savers compare it to decide whether its list of checkpoints is theirs
    return loaded.rng


def restore(
    state: State,
    logger: Logger,
    content: dict[str, Any],
    *,
    weights_only: bool = False,
    strict: bool = True,
    ignore_keys: IgnoreKeys = None,
    exclude_algorithms: Sequence[str] | None = None,
    algorithm_passes: Sequence[AlgorithmPass] | None = None,
    prepare: Callable[[State], None] | None = None,
    source: str = "The checkpoint",
) -> ResumeInfo:
    """Restore a run from the content of a checkpoint.

    Algorithms that change the layers of the model, and that the checkpoint was saved with, are recreated first if the
    run lacks them.

    Args:
        state: The state of the run.
        logger: Passed to recreated algorithms.
        content: As :func:`open_checkpoint` or :func:`read_checkpoint` returns it; edited.
        weights_only: Whether to load only the weights.
        strict: Whether the names of the weights must match exactly.
        ignore_keys: What to leave out, see :func:`.drop`.
        exclude_algorithms: Names of algorithms that are not recreated.
        algorithm_passes: Reorder the algorithms.
        prepare: Called when the model has all its layers, before its weights are loaded.
        source: The location of the checkpoint, for error messages.

    Raises:
        DamagedCheckpointError: An entry is incomplete.
        RuntimeError: The weights do not match the model. Those excluded by ``ignore_keys`` may be missing.
        ValueError: The checkpoint does not match the optimizers or the data, or ``ignore_keys`` excludes something
            that the rest needs.

    >>> from composer import Logger, State
    >>> state = State(model=torch.nn.Linear(1, 1, bias=False))
    >>> _ = restore(state, Logger(state), {"state": {"model": {"weight": torch.ones(1, 1)}}})
    >>> state.model.weight.item()
    1.0
    """
    _check_content(content, ignore_keys, source)
    excluded = exclude(content, ignore_keys)
    absent = excluded.names
    saved: dict[str, Any] = content.get("state", {})
    recreate_algorithms(state, logger, saved.get("algorithms", []), exclude_algorithms or (), algorithm_passes or ())
    engine = None if state.checkpoint_folders is None else state.checkpoint_folders.engine
    _check_engine(engine, content.get("engine"), weights_only=weights_only, is_made=prepare is None)
    if engine is not None and "model" in saved:
        # Before the engine copies them.
        weights = load_tensors(saved.pop("model"))
        check_shapes(state.model, weights)
        load_weights(state.model, weights, strict=strict, excluded=absent)
    if prepare is not None:
        prepare(state)
    if engine is not None and "engine" in content:
        folder, description = Path(content["folder"]), content["engine"]
        engine.load(folder, description, read=file_format.read, weights_only=weights_only, strict=strict)
    # Load one entry at a time, so that a device never holds the weights twice plus the optimizer state.
    layout = Layout(state.model)
    planner = None if state.checkpoint_folders is None else state.checkpoint_folders.load_planner

    def load(name: str) -> Any:
        value = load_tensors({"state": {name: saved[name]}}, layout, planner)["state"][name]
        # Optimizer state is sharded when it is set, since it may have indices instead of parameter names.
        return value if name == "optimizers" else layout.shard(value, (name,))

    if "model" in saved:
        if saved.get("_is_model_ddp_wrapped"):
            saved["model"] = {name.removeprefix("module."): value for name, value in saved["model"].items()}
            absent = {name.removeprefix("module.") for name in absent}
        check_shapes(state.model, saved["model"])
        load_weights(state.model, load("model"), strict=strict, excluded=absent)
    if weights_only:
        return ResumeInfo(metadata=saved.get("metadata", {}))
    if "replicas" in saved:
        _exclude_replicas(saved, ignore_keys, is_unsharded=layout.is_unsharded)
    options = {
        "optimizers": {"excluded": excluded.without_state(state.model)},
        "replicas": {"algorithms": saved.get("algorithms", [])},
    }
    for entry in STATE_ENTRIES:
        if entry.set is not None and entry.name in saved:
            _load_entry(entry, state, load(entry.name), source, options.get(entry.name, {}), ignore_keys)
    later = {name: load(name) for name in ("schedulers", "metric_values") if name in saved}
    return _loaded(content.get("rng"), saved, later)


def _loaded(rng: list[dict[str, Any]] | None, saved: dict[str, Any], later: dict[str, Any]) -> ResumeInfo:
    """Collect what the run needs when training begins."""
    ending = saved.get("ending", {})  # missing in older checkpoints and in those of MosaicML Composer
    return ResumeInfo(
        rng,
        saved.get("max_duration"),
        saved.get("metadata", {}),
        as_named(later.get("schedulers", {})),
        ending.get("planned_duration"),
        Stop(ending["stopped_by"], ending["reason"]) if "stopped_by" in ending else None,
        later.get("metric_values", {}),
        ending.get("fit_calls", []),
        [label for label, is_done in ending.get("evaluated", {}).items() if not is_done],
    )


def _load_entry(
    entry: StateEntry, state: State, value: Any, source: str, options: dict[str, Any], ignore: IgnoreKeys
) -> None:
    """Restore one entry; a missing key or a wrong type is reported as a corrupted checkpoint.

    Errors of algorithms and callbacks that load their states are raised unchanged.
    """
    set_value = cast("Callable[..., None]", entry.set)
    try:
        set_value(state, value, **options)
    except (LookupError, TypeError, AttributeError) as error:
        if entry.name in ("algorithms", "callbacks"):
            raise
        if inside := patterns_inside(ignore, entry.name):
            raise ValueError(
                f"load_ignore_keys: {inside} excludes a value of 'state/{entry.name}' that the rest needs "
                f"({error!r}). Use 'state/{entry.name}*' to exclude the entire entry."
            ) from error
        raise file_format.DamagedCheckpointError(f"{source} is damaged in 'state/{entry.name}': {error!r}.") from error


def _check_content(content: dict[str, Any], ignore: IgnoreKeys, source: str) -> None:
    """Reject ignore keys for values that an engine reads, and warn about a checkpoint without weights."""
    if "engine" in content:
        _check_ignored(ignore, content["engine"]["name"])
    elif "model" not in content.get("state", {}) and EXCLUDED_KEY not in content:
        message = f"{source} has no weights: the model keeps its current ones."
        warnings.warn(message, ComposerWarning, stacklevel=4)


def _check_ignored(ignore: IgnoreKeys, engine: str) -> None:
    """Reject ignore keys for weights and optimizers, which an engine reads as one unit."""
    found = [pattern for entry in ("state/model", "state/optimizers") for pattern in patterns_reaching(ignore, entry)]
    if found:
        raise ValueError(
            f"load_ignore_keys: {found[0]!r} matches weights or optimizers, but a {engine} checkpoint stores these in "
            f"files that its engine can only read as one unit. Use load_weights_only=True to skip the optimizers; to "
            f"skip weights, save with save_weights_only=True and load that checkpoint."
        )


def _exclude_replicas(saved: dict[str, Any], ignore: IgnoreKeys, *, is_unsharded: bool) -> None:
    """Exclude the states of replicas that train apart if they cannot be loaded, or what they hold is excluded."""
    held = ("state/model", "state/optimizers", "state/scaler", "state/algorithms")
    if callable(ignore) or any(patterns_reaching(ignore, entry) for entry in held):
        why = "load_ignore_keys excludes some of them"
    elif not is_unsharded:
        why = "the weights are sharded"
    else:
        return
    del saved["replicas"]
    message = (
        f"The states of single replicas are not loaded, since {why}: all start from the last synchronized weights and "
        f"the optimizer states of the first."
    )
    warnings.warn(message, ComposerWarning, stacklevel=4)


def _check_engine(
    engine: CheckpointEngine | None, written_by: dict[str, Any] | None, *, weights_only: bool, is_made: bool
) -> None:
    """Reject checkpoints that an engine cannot load, or that only an engine can load."""
    if engine is None and written_by is not None:
        raise ValueError(
            f"The checkpoint was written by {written_by['name']} and only loads with it: pass deepspeed_config to the "
            f"Trainer. If ZeRO was used, the script zero_to_fp32.py in the folder converts the weights to a file."
        )
    if engine is not None and is_made:
        raise ValueError(
            "DeepSpeed's engine exists already, so no checkpoint can be loaded; pass load_path to the Trainer."
        )
    if engine is not None and written_by is None and not weights_only:
        raise ValueError(
            "DeepSpeed's engine can only resume from a DeepSpeed checkpoint, and this is not one; use "
            "load_weights_only=True to start from its weights."
        )
