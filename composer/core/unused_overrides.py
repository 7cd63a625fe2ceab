"""Warn about methods of a model that look like overrides but that the trainer never calls."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Iterator
from typing import Final

from composer.core.hook_names import is_like_a_hook, is_misspelled, meant_event
from composer.core.model import ComposerModel
from composer.core.unused_methods import added_methods, parameters_of
from composer.warnings import ComposerWarning

__all__ = ["check_model_methods"]

# Optional methods of a model that the base class does not define.
_OPTIONAL: Final = {
    "flops_per_batch": "batch",
    "fsdp_wrap_fn": "module",
    "activation_checkpointing_fn": "module",
    "param_init_fn": "module",
}
# Methods of models in other libraries, and their equivalents.
_EVALUATION: Final = ("eval_forward", "update_metric")
_ELSEWHERE: Final = {
    "training_step": ("forward", "loss"),
    "train_step": ("forward", "loss"),
    "validation_step": _EVALUATION,
    "val_step": _EVALUATION,
    "eval_step": _EVALUATION,
    "evaluation_step": _EVALUATION,
    "test_step": _EVALUATION,
    "predict_step": ("forward",),
    "prediction_step": ("forward",),
    "compute_loss": ("loss",),
    "loss_fn": ("loss",),
    "compute_metrics": ("get_metrics", "update_metric"),
}
_OPTIMIZERS: Final = ("configure_optimizers", "create_optimizer", "configure_optimizer")

_done: weakref.WeakSet[type] = weakref.WeakSet()


def check_model_methods(model: ComposerModel, *, has_optimizers: bool) -> None:
    """Warn, once per class, about methods that look like they are for the trainer but are never called.

    These are misspellings (``eval_foward``, ``update_metrics``), methods of other libraries (``validation_step``) and
    hooks, which belong in a callback. Methods that the class itself calls, or another base class has, are ignored.

    Args:
        model: The model.
        has_optimizers: Whether optimizers were passed to the trainer, so that the model need not create them.

    >>> class Net(ComposerModel):
    ...     def eval_foward(self, batch, outputs=None): ...
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     check_model_methods(Net(), has_optimizers=True)
    >>> print(caught[0].message)
    Net.eval_foward is never called. Did you mean eval_forward(self, batch, outputs)?
    """
    cls = type(model)
    if cls in _done or not issubclass(cls, ComposerModel):
        return
    for message in _messages(cls, has_optimizers=has_optimizers):
        warnings.warn(message, ComposerWarning, stacklevel=3)
    _done.add(cls)


def _messages(cls: type[ComposerModel], *, has_optimizers: bool) -> Iterator[str]:
    known = [name for name in vars(ComposerModel) if not name.startswith("_") and name != "logger"]
    for name, function, classes in added_methods(cls, ComposerModel):
        if name in _OPTIONAL:
            continue
        there = {name for owner in classes for name in vars(owner)}
        meant = next((other for other in (*known, *_OPTIONAL) if is_misspelled(name, other)), None)
        if meant is not None:
            if meant not in there:
                yield f"{cls.__name__}.{name} is never called. Did you mean {_form(meant)}?"
        elif name in _ELSEWHERE:
            # Modules of other libraries have forward too; it is the loss that shows that one is for the trainer.
            needed = {"loss"} if "loss" in _ELSEWHERE[name] else set(_ELSEWHERE[name])
            if not there & needed:
                forms = " and ".join(map(_form, _ELSEWHERE[name]))
                yield f"{cls.__name__}.{name} is never called by the Trainer. Composer's methods are {forms}."
        elif name in _OPTIMIZERS:
            if not has_optimizers:
                yield f"{cls.__name__}.{name} is never called: give what it returns to Trainer(optimizers=...)."
        elif is_like_a_hook(name, parameters_of(function)) and (event := meant_event(name)) is not None:
            hook = f"{event.value}(self, state, logger)"
            yield f"{cls.__name__}.{name} is never called: hooks are methods of a Callback. Write {hook} in one."


def _form(name: str) -> str:
    if name in _OPTIONAL:
        return f"{name}(self, {_OPTIONAL[name]})"
    parameters = inspect.signature(getattr(ComposerModel, name)).parameters.values()
    return f"{name}({', '.join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)})"
