"""Validate and normalize the arguments of the Trainer: model, optimizers, evaluators, microbatch size, run name."""

from __future__ import annotations

import inspect
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from composer import trees
from composer._numbers import whole_number
from composer._text import one_of
from composer.core.data_spec import DataSpec, ensure_data_spec, microbatch_size_of
from composer.core.evaluator import Evaluator, ensure_evaluator
from composer.core.infinite_data import raise_if_infinite
from composer.core.model import ComposerModel
from composer.core.name_placeholders import check_run_name
from composer.core.state import State

if TYPE_CHECKING:
    from composer.core.time import Time

__all__ = [
    "as_count",
    "as_evaluators",
    "as_microbatch_size",
    "as_model",
    "as_optimizers",
    "as_parallelism",
    "as_signals",
    "as_subset",
    "name_run",
    "warn_already_compiled",
]


_CLASSIFIER: Final = "composer.models.ComposerClassifier(module, num_classes=...)"
# Remedy for models of other libraries, by the name of a base class; the first match is used.
_MODELS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("PreTrainedModel", "PeftModel"),
        "Wrap it as composer.models.HuggingFaceModel(model, tokenizer=tokenizer).",
    ),
    "LightningModule": (
        "Subclass ComposerModel: training_step becomes forward(batch) and loss(outputs, batch), validation_step "
        "get_metrics and update_metric, and what configure_optimizers returns goes to Trainer(optimizers=...)."
    ),
    **dict.fromkeys(
        ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"),
        "Pass the wrapped module, as a ComposerModel; the Trainer wraps it.",
    ),
    "ScriptModule": "Pass the ComposerModel that it was created from.",
    "Module": (
        f"Wrap a classifier as {_CLASSIFIER}, or subclass ComposerModel with forward(batch) and loss(outputs, batch)."
    ),
}


def as_model(model: Any) -> tuple[ComposerModel, nn.Module | None]:
    """Return the model, and the ``torch.compile`` wrapper around it, if any.

    Args:
        model: The ``model`` argument.

    Raises:
        TypeError: The model is not a :class:`.ComposerModel`.

    >>> as_model(torch.nn.Identity)
    Traceback (most recent call last):
    TypeError: model: got the class Identity; give an object of it: Identity(...).
    """
    original = getattr(model, "_orig_mod", model)
    if isinstance(original, ComposerModel):
        return original, None if original is model else model
    if isinstance(original, type) and issubclass(original, nn.Module):
        raise TypeError(f"model: got the class {original.__name__}; give an object of it: {original.__name__}(...).")
    name = getattr(original, "__name__", type(original).__name__)
    parents = {parent.__name__ for parent in inspect.getmro(type(original))}
    remedy = next((remedy for parent, remedy in _MODELS.items() if parent in parents), None)
    if remedy is not None:
        raise TypeError(f"model must be a ComposerModel, which defines its loss; got {name}. {remedy}")
    if inspect.isroutine(original):
        raise TypeError(f"model: got the function {name}; call it and wrap its result: {_CLASSIFIER}.")
    raise TypeError(f"model must be a ComposerModel, such as {_CLASSIFIER}; got {original!r}.")


def as_optimizers(optimizers: Any, model: nn.Module) -> list[Optimizer]:
    """Return the optimizers as a list.

    Args:
        optimizers: One or more optimizers.
        model: The model whose parameters they must contain.

    Raises:
        TypeError: An entry is not an optimizer.
        ValueError: An optimizer has none of the model's parameters.

    >>> as_optimizers(torch.optim.SGD, torch.nn.Linear(1, 1))
    Traceback (most recent call last):
    TypeError: optimizers: got SGD without parameters; make the optimizer first: SGD(model.parameters(), lr=...).
    """
    found = list(trees.ensure_tuple(optimizers))
    ours = {id(parameter) for parameter in model.parameters()}
    for optimizer in found:
        if not isinstance(optimizer, Optimizer):
            made = getattr(optimizer, "func", optimizer)
            name = getattr(made, "__name__", type(made).__name__)
            if callable(optimizer):
                raise TypeError(
                    f"optimizers: got {name} without parameters; make the optimizer first: "
                    f"{name}(model.parameters(), lr=...)."
                )
            raise TypeError(f"optimizers must be torch.optim.Optimizer objects; got {optimizer!r}.")
        groups: list[dict[str, Any]] = optimizer.param_groups
        if not any(id(parameter) in ours for group in groups for parameter in group["params"]):
            raise ValueError(
                f"optimizers: {type(optimizer).__name__} has none of the model's parameters and would train nothing; "
                f"create it as {type(optimizer).__name__}(model.parameters(), ...) with the model given to the Trainer."
            )
    if len(set(map(id, found))) < len(found):
        raise ValueError("optimizers: the same optimizer is given twice, and would step twice; give it once.")
    return found


def as_evaluators(
    data: Any, eval_interval: int | str | Time | Callable[..., bool], subset_num_batches: int | None
) -> list[Evaluator]:
    """Return the evaluation data as evaluators.

    Args:
        data: An evaluator, a loader, a data spec, a sequence of these, a mapping from labels to loaders, or None.
            Without labels, the second of multiple loaders gets the label ``"eval-2"``.
        eval_interval: The interval of evaluators that have none.
        subset_num_batches: The number of batches of evaluators that have none; None or -1 uses all.

    Raises:
        ValueError: Evaluators and plain loaders are mixed, a label is given twice, or infinite data has no number of
            batches.

    >>> [evaluator.label for evaluator in as_evaluators([(1, 2)], eval_interval=1, subset_num_batches=-1)]
    ['eval']
    """
    subset_num_batches = as_subset("eval_subset_num_batches", subset_num_batches)
    if _is_mapping_of_loaders(data):
        data = [_labeled(label, loader) for label, loader in data.items()]
    entries: Iterable[Any] = () if data is None else data if _is_sequence_of_loaders(data) else (data,)
    evaluators = [
        entry if isinstance(entry, Evaluator) else ensure_evaluator(ensure_data_spec(entry, "eval_dataloader"))
        for entry in entries
    ]
    if len({isinstance(entry, Evaluator) for entry in entries}) > 1:
        raise ValueError(
            "eval_dataloader: give either Evaluators or loaders, not both; Evaluator(label=..., dataloader=...) wraps "
            "a loader."
        )
    _number_bare_loaders(entries, evaluators)
    labels = [evaluator.label for evaluator in evaluators]
    if repeated := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(
            f"eval_dataloader: the labels {sorted(repeated)} are given more than once: their metrics would be "
            f"mixed up. Use a unique label for each loader: Evaluator(label=..., dataloader=...)."
        )
    for evaluator in evaluators:
        if evaluator.eval_interval is None:
            evaluator.eval_interval = eval_interval
        if evaluator.subset_num_batches is None:
            evaluator.subset_num_batches = subset_num_batches
        if evaluator.subset_num_batches == -1:
            raise_if_infinite(
                f"eval_dataloader: iterating over {evaluator.label!r}",
                evaluator.dataloader.dataloader,
                "Set eval_subset_num_batches, or Evaluator(subset_num_batches=...), the number of batches to use.",
            )
    return evaluators


def _number_bare_loaders(entries: Iterable[Any], evaluators: Sequence[Evaluator]) -> None:
    """Label the second loader without a label ``"eval-2"``, and so on."""
    bare = [evaluator for entry, evaluator in zip(entries, evaluators, strict=True) if entry is not evaluator]
    for number, evaluator in enumerate(bare[1:], 2):
        evaluator.label = f"{evaluator.label}-{number}"


def _is_mapping_of_loaders(data: Any) -> bool:
    """Return whether a mapping is from labels to loaders, rather than the arguments of a :class:`.DataSpec`."""
    if not isinstance(data, Mapping) or isinstance(data, DataLoader):
        return False
    entries = cast("Mapping[Any, Any]", data)
    # A single key "dataloader" means the arguments of a DataSpec, as in 0.32.
    return not (entries and set(entries) <= set(inspect.signature(DataSpec).parameters) and "dataloader" in entries)


def _labeled(label: Any, data: Any) -> Evaluator:
    """Return one entry of a mapping as an evaluator."""
    where = f"eval_dataloader[{label!r}]"
    if not isinstance(label, str) or not label:
        raise TypeError(f"{where}: a key is the label of an evaluator, which must be a string.")
    if isinstance(data, Evaluator):
        if data.label != label:
            raise ValueError(f"{where}: the evaluator has the label {data.label!r}; use it as the key.")
        return data
    if data is None or hasattr(data, "ndim"):
        raise TypeError(
            f"{where}: must be a loader; got {type(data).__name__}. Wrap a single batch in a list: [batch]."
        )
    return Evaluator(label=label, dataloader=ensure_data_spec(data, where))


def _is_sequence_of_loaders(data: Any) -> bool:
    """Return whether a list is empty or contains loaders, rather than being a list of batches itself."""
    if not isinstance(data, (list, tuple)):
        return False
    entries = cast("Sequence[Any]", data)
    loaders = (Evaluator, DataSpec, DataLoader)
    return not entries or any(isinstance(entry, loaders) for entry in entries)


def as_microbatch_size(size: Any, grad_accum: Any, state: State) -> int | Literal["auto"] | None:
    """Return the number of samples of a microbatch, "auto", or None for the full batch.

    Args:
        size: The ``device_train_microbatch_size`` argument.
        grad_accum: The old spelling, the number of microbatches.
        state: State with the training data.

    Raises:
        ValueError: The size is neither "auto" nor a positive number, or both arguments are given; or it is not an
            integer, and the data has no custom ``split_batch``.

    >>> as_microbatch_size(8, None, State(model=torch.nn.Linear(1, 1)))
    8
    """
    name, value = ("grad_accum", grad_accum) if grad_accum is not None else ("device_train_microbatch_size", size)
    if size is not None and grad_accum is not None:
        raise ValueError("Pass device_train_microbatch_size (samples in a microbatch) or grad_accum, not both.")
    if value is None:
        return None
    if isinstance(value, str) and value == "auto":
        return "auto"
    spec = state.train_phase.loader
    value = microbatch_size_of(name, value, None if grad_accum is not None else spec)
    if grad_accum is None:
        return value
    batch_size = None if spec is None else spec.__batch_size__
    if batch_size is None:
        raise ValueError(
            "grad_accum requires a train_dataloader with a batch_size attribute; use device_train_microbatch_size "
            "instead, the number of samples per microbatch."
        )
    return -(-batch_size // value)


def warn_already_compiled(compile_config: Mapping[str, Any] | None) -> None:
    """Warn that the model is already compiled, so that ``compile_config`` is not used.

    Args:
        compile_config: The ``compile_config`` argument.

    >>> warn_already_compiled(None)
    """
    ignored = "" if compile_config is None else "; compile_config is ignored"
    logging.getLogger("composer.trainer").warning("`model` is already compiled with `torch.compile`%s.", ignored)


def as_parallelism(config: Any, fsdp_config: Any) -> Any:
    """Return ``parallelism_config``, built from the old spelling ``fsdp_config`` if that is given.

    Args:
        config: The ``parallelism_config`` argument.
        fsdp_config: The old spelling, its ``"fsdp"`` entry.

    Raises:
        ValueError: Both are given.

    >>> as_parallelism(None, {"sharding_strategy": "FULL_SHARD"})
    {'fsdp': {'sharding_strategy': 'FULL_SHARD'}}
    """
    if config is not None and fsdp_config is not None:
        raise ValueError("Pass parallelism_config={'fsdp': {...}} or its old spelling fsdp_config, not both.")
    return config if fsdp_config is None else {"fsdp": fsdp_config}


def as_signals(names: Any) -> list[int]:
    """Return signal numbers by name; signals that this system does not support are skipped.

    Args:
        names: Names such as ``["SIGTERM"]``.

    Raises:
        TypeError: A single name is given instead of a sequence.
        ValueError: A name is not a signal on any system.

    >>> as_signals(["SIGTERM"]) == [signal.SIGTERM]
    True
    """
    if isinstance(names, str):
        raise TypeError(f"save_on_signals must be a sequence of names; got {names!r}. Pass [{names!r}].")
    known = {"SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGBREAK", *signal.Signals.__members__}
    chosen = [one_of("save_on_signals", name, sorted(known)) for name in names]
    return [signal.Signals[name] for name in chosen if name in signal.Signals.__members__]


def as_count(argument: str, value: Any) -> int:
    """Return a number of batches.

    Args:
        argument: Name of the argument.
        value: The value.

    Raises:
        TypeError: The value is not a whole number.
        ValueError: The value is negative.

    >>> as_count("overfit_batches", 2)
    2
    """
    number = whole_number(argument, value, minimum=None)
    if number < 0:
        raise ValueError(f"{argument} must be a number of batches, 0 for none; got {value!r}.")
    return number


def as_subset(argument: str, value: int | None) -> int:
    """Return the number of batches to use, or -1 for all.

    Args:
        argument: Name of the argument.
        value: The value; None uses all.

    Raises:
        TypeError: The value is not a whole number.
        ValueError: The value is zero, or negative and not -1.

    >>> as_subset("train_subset_num_batches", 2), as_subset("train_subset_num_batches", None)
    (2, -1)
    """
    number = -1 if value is None else whole_number(argument, value, minimum=None)
    if number < -1 or number == 0:
        raise ValueError(f"{argument} must be positive, or -1 for all batches; got {value!r}.")
    return number


def name_run(run_name: str | None) -> tuple[str, bool]:
    """Return the run name, and whether it was given by the argument, ``COMPOSER_RUN_NAME`` or ``RUN_NAME``.

    Args:
        run_name: The argument; if None or empty, the environment variables are used, or a new name is generated.

    Raises:
        TypeError: The name is not a string.
        ValueError: The name cannot be part of a path, for example because it contains ``..``.

    >>> name_run("resnet-1")
    ('resnet-1', True)
    """
    given = {"run_name": run_name, **{name: os.environ.get(name) for name in ("COMPOSER_RUN_NAME", "RUN_NAME")}}
    for source, name in given.items():
        if name:
            return check_run_name(source, name), True
    # Randomness of the operating system, so that generating a name does not change the seeded random state.
    return f"{int(time.time())}-{secrets.token_hex(3)}", False
