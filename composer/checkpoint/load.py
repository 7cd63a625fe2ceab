"""Reading a checkpoint, and giving a run what it holds."""

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
from composer.checkpoint.contents import PARTS, Part
from composer.checkpoint.entry_types import check_form
from composer.checkpoint.excluded_weights import RECORD, LeftOut, leave_out
from composer.checkpoint.filters import IgnoreKeys, reaching, within
from composer.checkpoint.legacy_formats import upgrade
from composer.checkpoint.model_weights import check_shapes, load_weights
from composer.checkpoint.named_states import as_named
from composer.checkpoint.recreate_algorithms import recreate_algorithms
from composer.checkpoint.safetensors_files import is_safetensors, read_safetensors
from composer.checkpoint.sharded_reader import fetch, open_folder
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

__all__ = ["Loaded", "load_checkpoint", "open_checkpoint", "read_checkpoint", "restore", "safe_torch_load"]


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint says beside what the state takes over.

    Attributes:
        rng: The states of the random generators, one for each process that there was; None for weights alone.
        max_duration: When the training that was saved was to end.
        metadata: Versions, device and sizes of the run that was saved.
        schedulers: The states of the schedules by class name, for those that come later.
        planned_duration: When it was to end as it began; ``max_duration`` differs where the run itself changed it.
        stop: Who or what has ended it before that, or None.
        metric_values: What metrics had computed, for those of data that comes later.

    >>> Loaded().rng is None
    True
    """

    rng: list[dict[str, Any]] | None = None
    max_duration: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    schedulers: dict[str, Any] = field(default_factory=dict)
    planned_duration: str | None = None
    stop: Stop | None = None
    metric_values: dict[str, Any] = field(default_factory=dict)


def read_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint, weights as safetensors, or a bare state dict, in the form of a checkpoint with whole tensors.

    Args:
        path: The file, or the folder of a checkpoint that several processes have written.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is not what was written.
        UnsafeCheckpointError: Reading it would run code.

    >>> file_format.write({"weight": torch.ones(1)}, tmp_path / "weights.pt")
    >>> read_checkpoint(tmp_path / "weights.pt")
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    return fetch(open_checkpoint(path))


def open_checkpoint(path: Path | str, *, mapped: bool = False, together: bool = False) -> dict[str, Any]:
    """Read a checkpoint as :func:`read_checkpoint` does, but for tensors in a folder, which are left to be read.

    Args:
        path: The file or folder.
        mapped: Whether tensors of a file come from the disk when they are used, rather than all at once; for processes
            that need parts of them.
        together: Whether all processes call this.

    Raises:
        FileNotFoundError: There is none.
        DamagedCheckpointError: It is not what was written.
        UnsafeCheckpointError: Reading it would run code.
        ValueError: The function that ``CHECKPOINT_VALIDATION_FUNCTION`` names found it invalid.

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
        content = open_folder(path, together=together)
    else:
        content = file_format.read(ensure_valid(path), mapped=mapped)
    with file_format.damage_of(repr(str(path)), "its content"):
        if content.keys() <= {"rng", RECORD} and not any(isinstance(value, Tensor) for value in content.values()):
            content["state"] = {}  # as saved with save_ignore_keys=["state"], or ["*"]
        if not isinstance(content.get("state"), dict):
            content = {"state": {"model": content.get("state_dict", content)}}
        check_form(content)
        upgrade(content)
        return content


def safe_torch_load(
    composer_states_filepath: Path | str, map_location: str = "cpu", load_monolith_rank0_only: bool = False
) -> dict[str, Any]:
    """Read a checkpoint without running anything that it holds.

    Args:
        composer_states_filepath: The file.
        map_location: Where its tensors go.
        load_monolith_rank0_only: Whether only the first process reads it; the others get an empty dict.

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
    """Give a run what a checkpoint holds.

    Args:
        path: The file or folder; may have ``{rank}`` in it.
        state: The state of the run.
        logger: Handed to methods that are made again.
        object_store: Where the path is, if it is no path of this machine.
        load_weights_only: Whether to leave all but the weights as they are.
        strict_model_weights: Whether the names of the weights must be the same.
        progress_bar: Whether to show the progress of a download.
        ignore_keys: What to leave out, see :func:`.drop`.
        exclude_algorithms: Names of methods that are not made again though the weights were saved with them.
        algorithm_passes: Reorder the methods.

    Returns:
        The states of the random generators, for :func:`.load_rng_state`; None with ``load_weights_only``.

    >>> from composer import Logger, State
    >>> from composer.checkpoint import save_checkpoint
    >>> one, other = [State(model=torch.nn.Linear(1, 1)) for _ in range(2)]
    >>> path = save_checkpoint(one, str(tmp_path / "one.pt"))
    >>> numbers = load_checkpoint(path, other, Logger(other))
    >>> bool(other.model.weight == one.model.weight)
    True
    """
    from composer.storage.downloads import fetched

    path = format_name(path, state.run_name, state.timestamp, rank=0)
    with fetched(path, object_store, progress_bar=progress_bar) as local:
        loaded = restore(
            state,
            logger,
            open_checkpoint(local, mapped=not Layout(state.model).is_unsharded, together=True),
            weights_only=load_weights_only,
            strict=strict_model_weights,
            ignore_keys=ignore_keys,
            exclude_algorithms=exclude_algorithms,
            algorithm_passes=algorithm_passes,
            source=repr(mask_text(path)),
        )
    if not load_weights_only:
        state.load_path = path  # by which savers know whether what it lists is theirs
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
) -> Loaded:
    """Give a run the content of a checkpoint.

    Methods that change the model's layers, with which the weights were saved, are made again first where the run lacks
    them.

    Args:
        state: The state of the run.
        logger: Handed to methods that are made again.
        content: As :func:`open_checkpoint` or :func:`read_checkpoint` returns it; edited.
        weights_only: Whether to leave all but the weights as they are.
        strict: Whether the names of the weights must be the same.
        ignore_keys: What to leave out, see :func:`.drop`.
        exclude_algorithms: Names of methods that are not made again.
        algorithm_passes: Reorder the methods.
        prepare: Called when the model has all its layers, before it is given the weights.
        source: Where the checkpoint is, for errors.

    Raises:
        DamagedCheckpointError: A part of it lacks something.
        RuntimeError: The weights do not fit the model. Those that ``ignore_keys`` leaves out may be missing.
        ValueError: The checkpoint does not fit the optimizers or the data, or ``ignore_keys`` leaves out something
            without which the rest cannot be loaded.

    >>> from composer import Logger, State
    >>> state = State(model=torch.nn.Linear(1, 1, bias=False))
    >>> _ = restore(state, Logger(state), {"state": {"model": {"weight": torch.ones(1, 1)}}})
    >>> state.model.weight.item()
    1.0
    """
    _check_content(content, ignore_keys, source)
    left_out = leave_out(content, ignore_keys)
    absent = left_out.names
    saved: dict[str, Any] = content.get("state", {})
    recreate_algorithms(state, logger, saved.get("algorithms", []), exclude_algorithms or (), algorithm_passes or ())
    engine = None if state.checkpoint_folders is None else state.checkpoint_folders.engine
    _check_engine(engine, content.get("engine"), weights_only=weights_only, is_made=prepare is None)
    if engine is not None and "model" in saved:
        # Before it makes its own copies of them.
        weights = fetch(saved.pop("model"))
        check_shapes(state.model, weights)
        load_weights(state.model, weights, strict=strict, left_out=absent)
    if prepare is not None:
        prepare(state)
    if engine is not None and "engine" in content:
        folder, description = Path(content["folder"]), content["engine"]
        engine.load(folder, description, read=file_format.read, weights_only=weights_only, strict=strict)
    # Each part is read when it is its turn, lest a device has the weights twice and the optimizers' states as well.
    layout = Layout(state.model)
    planner = None if state.checkpoint_folders is None else state.checkpoint_folders.load_planner

    def given(name: str) -> Any:
        value = fetch({"state": {name: saved[name]}}, layout, planner)["state"][name]
        # Optimizers see to theirs, which may have numbers in place of names.
        return value if name == "optimizers" else layout.placed(value, (name,))

    if "model" in saved:
        if saved.get("_is_model_ddp_wrapped"):
            saved["model"] = {name.removeprefix("module."): value for name, value in saved["model"].items()}
            absent = {name.removeprefix("module.") for name in absent}
        check_shapes(state.model, saved["model"])
        load_weights(state.model, given("model"), strict=strict, left_out=absent)
    if weights_only:
        return Loaded(metadata=saved.get("metadata", {}))
    for part in PARTS:
        if part.give is not None and part.name in saved:
            _give(part, state, given(part.name), source, left_out, ignore_keys)
    later = {name: given(name) for name in ("schedulers", "metric_values") if name in saved}
    return _loaded(content.get("rng"), saved, later)


def _loaded(numbers: list[dict[str, Any]] | None, saved: dict[str, Any], later: dict[str, Any]) -> Loaded:
    """Collect what the run needs when training begins."""
    ending = saved.get("ending", {})  # which checkpoints of before this was saved lack, and the predecessor's
    return Loaded(
        numbers,
        saved.get("max_duration"),
        saved.get("metadata", {}),
        as_named(later.get("schedulers", {})),
        ending.get("planned_duration"),
        Stop(ending["stopped_by"], ending["reason"]) if "stopped_by" in ending else None,
        later.get("metric_values", {}),
    )


def _give(part: Part, state: State, value: Any, source: str, left_out: LeftOut, ignore: IgnoreKeys) -> None:
    """Give the run a part; what lacks something, or has it in another type, is damaged.

    What methods and callbacks make of their own states is theirs, and their errors stay what they are.
    """
    give = cast("Callable[..., None]", part.give)
    options = {"left_out": left_out.without_state(state.model)} if part.name == "optimizers" else {}
    try:
        give(state, value, **options)
    except (LookupError, TypeError, AttributeError) as error:
        if part.name in ("algorithms", "callbacks"):
            raise
        if inside := within(ignore, part.name):
            raise ValueError(
                f"load_ignore_keys: {inside} leaves out a part of 'state/{part.name}' that loading the rest needs "
                f"({error!r}). Give 'state/{part.name}*' to leave out the whole."
            ) from error
        raise file_format.DamagedCheckpointError(f"{source} is damaged in 'state/{part.name}': {error!r}.") from error


def _check_content(content: dict[str, Any], ignore: IgnoreKeys, source: str) -> None:
    """Refuse to leave out what an engine reads, and warn of a checkpoint without weights."""
    if "engine" in content:
        _check_ignored(ignore, content["engine"]["name"])
    elif "model" not in content.get("state", {}) and RECORD not in content:
        message = f"{source} holds no weights: the model keeps those that it has."
        warnings.warn(message, ComposerWarning, stacklevel=4)


def _check_ignored(ignore: IgnoreKeys, engine: str) -> None:
    """Refuse to leave out a part of what an engine reads for itself."""
    found = [pattern for part in ("state/model", "state/optimizers") for pattern in reaching(ignore, part)]
    if found:
        raise ValueError(
            f"load_ignore_keys: {found[0]!r} is about weights or optimizers, but in a checkpoint of {engine} these are "
            f"in files that its engine reads as a whole. Give load_weights_only=True to leave the optimizers out; to "
            f"leave weights out, save with save_weights_only=True, and load that."
        )


def _check_engine(
    engine: CheckpointEngine | None, written_by: dict[str, Any] | None, *, weights_only: bool, is_made: bool
) -> None:
    """Refuse what an engine cannot take over, and what only it can."""
    if engine is None and written_by is not None:
        raise ValueError(
            f"The checkpoint is of {written_by['name']}, which has to load it: give deepspeed_config to the Trainer. "
            f"Where ZeRO was in use, the script zero_to_fp32.py in the folder makes a file of the weights."
        )
    if engine is not None and is_made:
        raise ValueError("A checkpoint cannot be loaded once DeepSpeed's engine is made; give the Trainer load_path.")
    if engine is not None and written_by is None and not weights_only:
        raise ValueError(
            "The checkpoint is not DeepSpeed's, whose engine could go on with its training; give "
            "load_weights_only=True to begin with its weights."
        )
