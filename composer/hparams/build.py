"""Build a Trainer from a configuration: check it, create the objects, and record the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch.optim import Optimizer

from composer import rng
from composer._secrets.masking import mask_error, secrets_in
from composer.core import Algorithm, Callback
from composer.core.logger import LoggerDestination
from composer.core.model import ComposerModel
from composer.hparams.config_calls import Call
from composer.hparams.config_tree import ConfigError, Tree, check_not_masked, expanded, read
from composer.hparams.saved_config import record
from composer.profiler import Profiler
from composer.trainer import Trainer
from composer.trainer.unknown_names import raise_if_unknown
from composer.trees import ensure_tuple

__all__ = ["check", "make_trainer", "trainer_from_config"]

# Arguments that are filled in after the model, or the optimizer, is created.
_WAITING: Final = {"optimizers": frozenset({"model", "params"}), "schedulers": frozenset({"optimizer"})}
_LATER: Final = frozenset(_WAITING)
# Required classes of objects; objects that functions return are checked by the trainer.
_CLASSES: Final[dict[str, tuple[type, ...]]] = {
    "algorithms": (Algorithm,),
    "callbacks": (Callback, LoggerDestination),
    "loggers": (LoggerDestination,),
    "model": (ComposerModel,),
    "optimizers": (Optimizer,),
    "profiler": (Profiler,),
}


def trainer_from_config(config: Mapping[str, Any] | str | Path, **given: Any) -> Trainer:
    """Return the trainer of a configuration.

    A configuration has the arguments of :class:`.Trainer`. An object is written as ``{class_path: ..., init_args:
    {...}}``, also inside ``init_args``; see the guide for short names. Inside ``optimizers``, required arguments
    ``params`` and ``model`` default to the parameters of the model and the model; inside ``schedulers``, ``optimizer``
    defaults to the optimizer. With a ``seed``, all random generators are seeded before any object is created, so that
    initial weights are reproducible.

    The configuration, including all defaults, is logged as hyperparameters and saved as ``config.yaml`` in
    ``save_folder``, or by a logger that stores files. If a different configuration exists there, the new one is saved
    under another name, and a warning lists the differences.

    Args:
        config: A YAML file, or its content.
        **given: Arguments of the trainer that the program creates itself.

    Raises:
        ConfigError: A value is unknown, missing or of the wrong type.
        MissingConditionalImportError: The packages of ``composer-torch[hparams]`` are not installed.

    >>> trainer = trainer_from_config(
    ...     {
    ...         "model": {
    ...             "class_path": "ComposerClassifier",
    ...             "init_args": {
    ...                 "num_classes": 3,
    ...                 "module": {"class_path": "torch.nn.LazyLinear", "init_args": {"out_features": 3}},
    ...             },
    ...         },
    ...         "algorithms": [{"MixUp": {"alpha": 0.2}}, "EMA"],
    ...         "progress_bar": False,
    ...     },
    ...     train_dataloader=[(torch.randn(4, 2), torch.tensor([0, 1, 2, 0]))],
    ... )
    >>> trainer.state.algorithms[0]
    MixUp(alpha=0.2, interpolate_loss=False, input_key=0, target_key=1, per_sample=False)
    """
    tree = expanded(config) if isinstance(config, Mapping) else expanded(read(config))
    return make_trainer(check(tree, given), given)


def check(tree: Tree, given: Mapping[str, Any]) -> Call:
    """Check a configuration and return the call of the trainer.

    Args:
        tree: The configuration, with objects in full form, see :func:`.expanded`.
        given: Arguments that are not part of it.

    Raises:
        ConfigError: A value is unknown, missing or of the wrong type.

    >>> check({"max_duration": "2ep", "seed": 1}, {"model": None}).plain
    {'max_duration': '2ep', 'seed': 1}
    """
    check_not_masked(tree)
    parameters = inspect.signature(Trainer).parameters.values()
    known = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    for name in [*tree, *given]:
        if name not in known:
            try:
                raise_if_unknown(Trainer.__init__, {name: None})
            except TypeError as error:
                raise ConfigError("", error) from None
    for name in given:
        if name in tree:
            raise ConfigError(name, "the program passes this argument itself; remove it from the configuration.")
    call = Call.to(Trainer, tree, "", given=frozenset(given), waiting_in=_WAITING)
    _check_classes(call)
    if "optimizers" not in tree and "optimizers" not in given:
        for entry in _entries(call.inner.get("schedulers", [])):
            if entry.waiting:
                raise ConfigError(entry.where, "a torch scheduler requires optimizers; give them as well.")
    return call


def _check_classes(call: Call) -> None:
    """Raise on classes that the trainer does not accept, before any object is created."""
    for argument, expected in _CLASSES.items():
        for entry in _entries(call.inner.get(argument, [])):
            if isinstance(entry, Call) and isinstance(entry.target, type) and not issubclass(entry.target, expected):
                names = " or ".join(one.__name__ for one in expected)
                raise ConfigError(entry.where, f"{entry.path} is not a subclass of {names}, required by {argument}.")


def make_trainer(call: Call, given: Mapping[str, Any]) -> Trainer:
    """Create the trainer of a configuration, and record the configuration.

    Args:
        call: The checked configuration.
        given: Arguments that are not part of it.

    Raises:
        ConfigError: A value is invalid.

    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> call = check(
    ...     {"optimizers": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}}, {"model": model}
    ... )
    >>> make_trainer(call, {"model": model}).state.optimizers[0].param_groups[0]["lr"]
    0.5
    """
    seed = {**given, **call.plain}.get("seed")
    if seed is not None:
        try:
            rng.seed_all(int(seed))
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError("seed", error) from None
    values = {**call.values({}, leave_out=_LATER), **given}
    if "optimizers" in call.inner:
        here = {"model": values["model"], "params": list(values["model"].parameters())}
        values["optimizers"] = [o for entry in _entries(call.inner["optimizers"]) for o in _several(entry.make(here))]
    if "schedulers" in call.inner:
        values["schedulers"] = _schedules(call.inner["schedulers"], _several(values.get("optimizers")))
    try:
        trainer = Trainer(**values)
    except Exception as error:
        if (masked := mask_error(error, secrets_in(call.tree()))) is not error:
            raise masked from masked.__cause__
        if isinstance(error, (TypeError, ValueError)) and call.is_invalid_value(error):
            raise ConfigError("", error) from error
        raise
    record(trainer, call.tree())
    return trainer


def _schedules(found: Any, optimizers: list[Optimizer]) -> list[Any]:
    """Create the schedulers; a single torch scheduler is created for each optimizer."""
    entries = _entries(found)
    for entry in entries:
        if entry.waiting and not optimizers:
            raise ConfigError(entry.where, "a torch scheduler requires optimizers; give them as well.")
    if len(entries) == 1 and entries[0].waiting:
        return [entries[0].make({"optimizer": optimizer}) for optimizer in optimizers]
    if any(entry.waiting for entry in entries) and len(entries) != len(optimizers):
        raise ConfigError("schedulers", f"got {len(entries)} torch schedulers for {len(optimizers)} optimizers.")
    of_each = optimizers or [None] * len(entries)
    return [entry.make({"optimizer": o}) for entry, o in zip(entries, [*of_each, *[None] * len(entries)], strict=False)]


def _entries(value: Any) -> list[Call]:
    return value if isinstance(value, list) else [value]


def _several(value: Any) -> list[Any]:
    return list(ensure_tuple(value))
