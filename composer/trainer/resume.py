"""Going on where another process stopped."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from composer import dist, rng
from composer._masking import mask_text
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.load import open_checkpoint, read_checkpoint, restore
from composer.checkpoint.parts import entries_of
from composer.checkpoint.save import save_checkpoint
from composer.checkpoint.sharing import share
from composer.core._names import format_name, with_braces
from composer.core.algorithm import Algorithm, find_algorithm
from composer.core.time import Time, TimeUnit, ensure_time
from composer.optim.decoupled_sgd import DecoupledSGDW
from composer.storage.transfer import LINK_SUFFIX, fetched, modified
from composer.trainer.default_optimizer import make_default_optimizer
from composer.trainer.loaders import begin_pass, go_between
from composer.trainer.run import Run
from composer.trainer.schedules import bind
from composer.trainer.signals import Interrupted, Interruption
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from pathlib import Path

    from composer.core.state import State

__all__ = [
    "LoadOptions",
    "Stopping",
    "find_latest",
    "is_complete",
    "load",
    "method_named",
    "rest_of",
    "savers_of",
    "take_up",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadOptions:
    """What is loaded when a trainer is made, and how.

    Attributes:
        path: The checkpoint, which may have placeholders, or None.
        object_store: Where the path is, if it is no path of this machine.
        weights_only: Whether to leave all but the weights as they are.
        strict: Whether the names of the weights must be the same.
        progress_bar: Whether to show the progress of a download.
        ignore_keys: What to leave out.
        exclude_algorithms: Methods that are not made again.

    >>> LoadOptions().path is None
    True
    """

    path: str | None = None
    object_store: Any = None
    weights_only: bool = False
    strict: bool = True
    progress_bar: bool = True
    ignore_keys: IgnoreKeys = None
    exclude_algorithms: Sequence[str] = field(default=())


def method_named(name: str) -> type[Algorithm] | None:
    """Return the class of a method, of ours or of the user's, by its name; None if there is none.

    Args:
        name: The name of the class.

    >>> method_named("BlurPool").__name__, method_named("Nothing")
    ('BlurPool', None)
    """
    from composer import algorithms

    found = getattr(algorithms, name, None) if name in algorithms.__all__ else None
    return found if isinstance(found, type) and issubclass(found, Algorithm) else find_algorithm(name)


def savers_of(state: State) -> list[CheckpointSaver]:
    """Return what saves checkpoints in a run.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> savers_of(State(model=torch.nn.Linear(1, 1)))
    []
    """
    return [callback for callback in state.callbacks if isinstance(callback, CheckpointSaver)]


def find_latest(state: State) -> LoadOptions | None:
    """Return the newest checkpoint that a run of this name has saved, among those of all savers; None if there is none.

    Where the folders have none, as on another machine, the loggers that keep files are asked.

    Args:
        state: The state of the run.

    Raises:
        ValueError: No saver keeps what resumption needs.
        RuntimeError: Some processes find a checkpoint and others do not.
    """
    savers = [saver for saver in savers_of(state) if saver.latest_filename is not None and not saver.weights_only]
    if not savers:
        raise ValueError(
            "autoresume=True needs a CheckpointSaver that keeps whole checkpoints and a link to the newest: give "
            "save_folder, with save_latest_filename and without save_weights_only."
        )
    found = [path for saver in savers if (path := saver.newest(state)) is not None]
    newest = found[0] if len(found) == 1 else max(found, key=modified, default=None)
    answers = dist.all_gather_object(newest)
    if len({answer is None for answer in answers}) > 1:
        absent = [rank for rank, answer in enumerate(answers) if answer is None]
        raise RuntimeError(
            f"autoresume: the ranks {absent} do not see the checkpoint that others see; save_folder must be a folder "
            f"that all of them share."
        )
    return _kept_by_logger(state, savers) if answers[0] is None else LoadOptions(with_braces(answers[0]))


def _kept_by_logger(state: State, savers: Sequence[CheckpointSaver]) -> LoadOptions | None:
    """The newest checkpoint of the first saver of which a logger has one; the first process looks."""
    from composer.loggers.remote_uploader_downloader import RemoteUploaderDownloader

    for keeper in state.callbacks:
        if not isinstance(keeper, RemoteUploaderDownloader):
            continue
        for saver in savers:
            if saver.latest_remote_file_name is None:
                continue
            name = format_name(saver.latest_remote_file_name, state.run_name, state.timestamp, rank=0)
            found = [dist.get_global_rank() == 0 and keeper.has_file(f"{name}{LINK_SUFFIX}")]
            dist.broadcast_object_list(found)
            if found[0]:
                return LoadOptions(with_braces(f"{name}{LINK_SUFFIX}"), keeper)
    return None


def load(run: Run, options: LoadOptions) -> None:
    """Make the model ready for training by its strategy, and give the run what a checkpoint holds, if there is one.

    What is to happen when training begins is kept in the run.

    Args:
        run: The run.
        options: The path and how to load.
    """
    state = run.state
    if run.strategy.steps_itself and not state.optimizers:
        make_default_optimizer(state)
        bind(run)
    if options.path is None:
        run.strategy.prepare(state)
        return
    name = state.run_name
    path = format_name(options.path, name, state.timestamp, rank=0)
    with fetched(path, options.object_store, progress_bar=options.progress_bar) as local:
        content = _opened(run, local)
        if not state.optimizers and not options.weights_only:
            _prepare_optimizers(run, content.get("state", {}))
        run.loaded = restore(
            state,
            run.logger,
            content,
            weights_only=options.weights_only,
            strict=options.strict,
            ignore_keys=options.ignore_keys,
            exclude_algorithms=options.exclude_algorithms,
            algorithm_passes=run.engine.passes,
            prepare=run.strategy.prepare,
        )
    state.load_path = str(path)
    _log.info(
        "Loaded %s, saved at epoch %s, batch %s.",
        mask_text(path),
        int(state.timestamp.epoch),
        int(state.timestamp.batch),
    )


def _opened(run: Run, path: Path) -> dict[str, Any]:
    """The checkpoint, read no further than all processes have to."""
    if run.strategy.first_reads:
        is_folder = [path.is_dir()]
        dist.broadcast_object_list(is_folder)
        if not is_folder[0]:
            return share(lambda: read_checkpoint(path))
    return open_checkpoint(path, mapped=run.strategy.divides_weights, together=True)


def _prepare_optimizers(run: Run, saved: dict[str, Any]) -> None:
    """Make the default optimizer for its saved state; where nothing is to be trained, leave such states out."""
    if run.state.train_phase.loader is None:
        for name in ("optimizers", "schedulers"):
            saved.pop(name, None)
    elif [name for name, _ in entries_of(saved.get("optimizers", []))] == [DecoupledSGDW.__name__]:
        make_default_optimizer(run.state)
        bind(run)


def take_up(run: Run) -> None:
    """Bring the data and the random generators to where they were when the checkpoint was saved; once for each.

    Args:
        run: The run, after ``FIT_START``; ``spin_dataloaders`` in its options is whether the training data is taken up
            in the middle of a pass, or begun anew.
    """
    phase = run.state.train_phase
    if phase.resume is not None:
        if not run.options.spin_dataloaders:
            phase.resume = None
        if phase.timestamp.batch_in_epoch.value == 0:
            go_between(run)
        else:
            phase.iterator = begin_pass(run)
    loaded, run.loaded = run.loaded, None
    if loaded is not None and loaded.rng is not None:
        # After the data, which a pass that is begun again may have drawn random numbers for.
        if dist.get_global_rank() >= len(loaded.rng):
            rng.seed_all(run.state.seed)  # there was no such process when it was saved
        rng.load_rng_state(loaded.rng)


def is_complete(run: Run, duration: object) -> bool:
    """Tell, with a word to the user, whether the training that was to be resumed has ended.

    Args:
        run: The run, with what was loaded.
        duration: How much further to train, if that is given.
    """
    state = run.state
    end = state.max_duration if duration is None or run.loaded is None else run.loaded.max_duration
    if run.loaded is None or end is None or state.train_phase.stage is not None:
        return False
    end = ensure_time(end, TimeUnit.EPOCH, "max_duration")
    if not state.timestamp.has_reached(end):
        return False
    message = f"autoresume: this training is complete, having come to {state.timestamp.get(end.unit)}; nothing is done."
    warnings.warn(message, ComposerWarning, stacklevel=3)
    return True


def rest_of(run: Run, duration: int | str | Time | None) -> int | str | Time | None:
    """Return how much of a duration is left of the training that is resumed.

    Args:
        run: The run, with what was loaded.
        duration: How much further to train, as it was given when that training began.
    """
    if duration is None or run.loaded is None or run.loaded.max_duration is None:
        return duration
    end = ensure_time(run.loaded.max_duration, TimeUnit.EPOCH, "max_duration")
    return Time(end.value - run.state.timestamp.count(end.unit), end.unit)


@dataclass(frozen=True)
class Stopping:
    """What happens when training is stopped from outside, or by an exception.

    Attributes:
        signals: Those that are noted while training, where checkpoints are saved.
        save_on_exception: Whether an exception saves a checkpoint of its own.

    >>> Stopping().save_on_exception
    False
    """

    signals: Sequence[int] = ()
    save_on_exception: bool = False

    @contextlib.contextmanager
    def around(self, run: Run) -> Generator[None]:
        """Save what a signal or an exception would lose.

        Args:
            run: The run; the block trains it.

        Raises:
            KeyboardInterrupt: Ctrl-C was noted.
            SystemExit: Another signal was.
        """
        savers = savers_of(run.state)
        if not savers:
            yield
            return
        try:
            with Interruption(self.signals) as run.interruption:
                yield
        except Interrupted as interrupted:
            for saver in savers:
                saver.save(run.state, run.logger)
                saver.fit_end(run.state, run.logger)
            run.state.train_phase.stage = None
            interrupted.leave()
        except Exception:
            if self.save_on_exception:
                _save_apart(run.state, savers[0])
            raise
        finally:
            run.interruption = None


def _save_apart(state: State, saver: CheckpointSaver) -> None:
    """Save a checkpoint that resumption does not find, and let nothing hide the exception that is under way."""
    if dist.get_world_size() > 1:
        # The others may be anywhere: to save with them would be to wait for them.
        _log.warning("The state at the exception is not saved, as that takes all processes; see the last checkpoint.")
        return
    # As one file, whose name resumption does not look for.
    folders, state.checkpoint_folders = state.checkpoint_folders, None
    try:
        path = save_checkpoint(state, saver.place(state, f"exception-{saver.filename}"))
    except Exception:
        _log.exception("The checkpoint of the state at the exception could not be saved.")
    else:
        _log.warning("The state at the exception is in %s.", mask_text(path))
    finally:
        state.checkpoint_folders = folders
