"""Add a note to an exception from the model, its loss or a metric: which tensor, its dtype or shape, and the remedy.

Nothing here runs before an exception. Notes cover common mistakes that torch reports in low-level terms: labels of the
wrong dtype, a wrong number of classes, a ``forward`` that expects inputs but gets the full batch.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from composer.trainer.auto_microbatch.out_of_memory import ESTIMATE, is_out_of_memory
from composer.trainer.failure_batches import batch_form, not_a_tensor, one_sample, unpacking
from composer.trainer.failure_dtypes import devices, input_dtype, target_dtype
from composer.trainer.failure_facts import Facts, called_method, described, facts_of, target_of, tensors_in

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["add_notes"]

_PREFIX: Final = "Composer: "
# Messages of torch, in lower case.
_SHAPE: Final = re.compile(
    r"target size|target batch_size|multi-target|size of tensor a|shape mismatch|only batches of spatial targets|"
    r"target and input must have|target must have shape"
)
_BOUNDS: Final = re.compile(
    r"(target|index) -?\d+ is out of bounds|`target` (?:tensor )?contains|unique values in `target`|class values must"
)
_CONTAINER: Final = re.compile(
    r"must be tensor, not [\w.]+$|'[\w.]+' object has no attribute|invalid combination of arguments - got \((?!tensor)"
)


def add_notes(error: BaseException, state: State) -> None:
    """Add a note on the cause to an exception. Never raises, and never changes the exception itself.

    Args:
        error: The exception that a loop raised; only exceptions from the model get notes.
        state: The state of the run.

    >>> from composer import State
    >>> error = KeyboardInterrupt()
    >>> add_notes(error, State(model=torch.nn.Linear(1, 1)))
    >>> getattr(error, "__notes__", [])
    []
    """
    if not isinstance(error, Exception):
        return
    try:
        if any(str(note).startswith(_PREFIX) for note in getattr(error, "__notes__", ())):
            return  # already added by an evaluation during training
        if is_out_of_memory(error):
            if ESTIMATE not in str(error):
                error.add_note(f"{_PREFIX}{ESTIMATE}")
            return
        for note in _notes(facts_of(error, state)):
            error.add_note(f"{_PREFIX}{note}")
    except Exception:
        return


def _notes(facts: Facts) -> Iterator[str]:
    if not facts.is_from_torch:
        return
    remedy = next((found for rule in _RULES if (found := _safely(rule, facts)) is not None), None)
    if remedy is not None:
        yield remedy
    if facts.stage in (None, "backward") or (remedy is None and not facts.is_in_library):
        return
    found = tensors_in(facts.batch, "batch")
    if facts.stage != "forward":
        found = [*tensors_in(facts.outputs, "outputs"), *found]
    shown = ", ".join(f"{path} {described(tensor)}" for path, tensor in found) or f"batch {described(facts.batch)}"
    yield f"{facts.name}.{facts.stage} had {shown}."


def _safely(rule: Callable[[Facts], str | None], facts: Facts) -> str | None:
    try:
        return rule(facts)
    except Exception:
        return None


def _tensor_for_loader(facts: Facts) -> str | None:
    """Return a note if a tensor or array is used as a data loader, so that its rows are batches."""
    loader = facts.loader
    if facts.stage is None or isinstance(loader, (list, tuple)) or not hasattr(loader, "ndim"):
        return None
    return (
        f"the data is one {type(loader).__name__} of shape {tuple(loader.shape)}, whose rows are used as batches. "
        f"Use a DataLoader, or a list of batches as the model expects them, such as [(x, y)]."
    )


def _arguments(facts: Facts) -> str | None:
    """Return a note if a method's parameters differ from the arguments that the trainer passes."""
    called, frame = called_method(facts.error), facts.frames[-1]
    if called is None or facts.stage is None:
        return None
    module = frame.f_locals.get("self") if frame.f_code.co_name == "_call_impl" else None
    if isinstance(module, nn.Module) and module is not facts.model:
        if called != "forward" or module is not getattr(facts.model, "module", None):
            return None
        name = type(module).__name__
        wanted = inspect.signature(module.forward)
        given = ", ".join(described(one) for one in frame.f_locals.get("args", ()))
        return (
            f"the module is called with the inputs only, {name}.forward({given}), but expects {name}.forward{wanted}. "
            f"Give its other parameters a default, or write a ComposerModel whose forward(self, batch) calls it."
        )
    forms = {
        "forward": "forward(self, batch)",
        "eval_forward": "eval_forward(self, batch, outputs=None)",
        "loss": "loss(self, outputs, batch)",
        "update_metric": "update_metric(self, batch, outputs, metric)",
    }
    if called != facts.stage or (module is None and not str(frame.f_globals.get("__name__")).startswith("composer.")):
        return None
    return (
        f"the trainer calls {forms[called]}, with the full batch, here {described(facts.batch)}, as one argument; "
        f"unpack it inside: {unpacking(facts.batch)}."
    )


def _full_batch(facts: Facts) -> str | None:
    """Return a note if the full batch is used where a tensor is needed."""
    if _CONTAINER.search(facts.text) is None or not isinstance(facts.error, (TypeError, AttributeError)):
        return None
    if facts.stage == "loss" and not isinstance(facts.outputs, Tensor) and _is_about(facts, facts.outputs):
        return f"forward returned {described(facts.outputs)} as outputs, but loss needs a tensor from it."
    if isinstance(facts.batch, Tensor) or not _is_about(facts, facts.batch):
        return None
    if facts.stage in ("forward", "eval_forward"):
        return (
            f"{facts.stage} gets the full batch, here {described(facts.batch)}, not only the inputs. Unpack them: "
            f"{unpacking(facts.batch)}."
        )
    if facts.stage in ("loss", "update_metric"):
        target = target_of(facts.batch)
        expression = "batch[1]" if target is None else target[0]
        return f"{facts.stage} gets the full batch, here {described(facts.batch)}; the targets are {expression}."
    return None


def _is_about(facts: Facts, value: Any) -> bool:
    """Return whether the exception is about an attribute of this value, or a library function had it as argument."""
    if isinstance(facts.error, AttributeError):
        return facts.error.obj is value
    return facts.takes(value)


def _nothing_returned(facts: Facts) -> str | None:
    """Return a note if ``forward`` has no return statement."""
    if facts.stage not in ("loss", "update_metric") or facts.outputs is not None or "none" not in facts.text:
        return None
    if isinstance(facts.error, AttributeError):
        is_about = facts.error.obj is None and facts.frames[-1].f_code.co_name == facts.stage
    else:
        is_about = facts.is_in_library and next(iter(facts.frames[-1].f_locals.values()), 0) is None
    return "forward returned None; it must return the outputs." if is_about else None


def _classes(facts: Facts) -> str | None:
    """Return a note if a label is not a valid class index for the outputs."""
    target, outputs = target_of(facts.batch), facts.outputs
    if facts.stage == "backward" or target is None or not isinstance(outputs, Tensor):
        return None
    if facts.stage is None and not all(str(f.f_globals.get("__name__")).startswith("composer.") for f in facts.frames):
        return None
    path, tensor = target
    number = getattr(facts.model, "num_classes", None)
    configured = f" (num_classes={number})" if isinstance(number, int) else ""
    if "device-side assert triggered" in facts.text and isinstance(facts.error, RuntimeError):
        return (
            f"the most likely cause is a class index that is too large: the outputs are {described(outputs)}"
            f"{configured}, {path} is {described(tensor)}. Trainer(device='cpu') reports the index."
        )
    if facts.stage not in ("loss", "update_metric") or not _BOUNDS.search(facts.text):
        return None
    if outputs.ndim < 2 or tensor.is_floating_point():
        return None
    tensor = tensor[tensor != -100]
    low, high, classes = int(tensor.min()), int(tensor.max()), outputs.shape[1]
    if high < classes:
        if low >= 0:
            return None
        return f"{path}, the target, has class {low}; classes count from 0, and -100 is ignored."
    needed = max(high + 1, number if isinstance(number, int) else 0)
    return (
        f"the outputs are {described(outputs)}, of {classes} classes{configured}, but {path}, the target, has class "
        f"{high}. The last layer must have at least {needed} outputs, and classes must count from 0."
    )


def _metric_classes(facts: Facts) -> str | None:
    """Return a note if a metric has a different number of classes than the outputs."""
    if facts.stage != "update_metric" or not isinstance(facts.outputs, Tensor) or facts.outputs.ndim < 2:
        return None
    if not facts.is_in_library:
        return None
    metric = next((f.f_locals["metric"] for f in reversed(facts.frames) if "metric" in f.f_locals), None)
    number = getattr(metric, "num_classes", None)
    if not isinstance(number, int) or number == facts.outputs.shape[1]:
        return None
    classes = facts.outputs.shape[1]
    return (
        f"{type(metric).__name__} has num_classes={number}, but the outputs are {described(facts.outputs)}, of "
        f"{classes} classes. Make both the same: num_classes={classes}, or {number} outputs of the last layer."
    )


def _target_shape(facts: Facts) -> str | None:
    """Return a note if the shape of the target does not match that of the outputs."""
    target, outputs = target_of(facts.batch), facts.outputs
    if facts.stage not in ("loss", "update_metric") or target is None or not isinstance(outputs, Tensor):
        return None
    if not _SHAPE.search(facts.text) or not facts.takes(target[1]) or _shapes_match(outputs, target[1]):
        return None
    path, tensor = target
    wrong = f"{path}, the target, is {described(tensor)}, and the outputs are {described(outputs)}."
    if tensor.ndim > 1 and tensor.shape[-1] == 1 and tensor.shape[:-1] == outputs.shape[: tensor.ndim - 1]:
        return f"{wrong} Remove the last dimension: y.squeeze(-1)."
    if outputs.ndim == tensor.ndim + 1 and outputs.shape[-1] == 1:
        return f"{wrong} Remove the last dimension: outputs.squeeze(-1)."
    return f"{wrong} The loss takes class indices (B, ...) for outputs (B, C, ...), or a target of the outputs' shape."


def _shapes_match(outputs: Tensor, target: Tensor) -> bool:
    """Return whether a target has the outputs' shape, or the shape of class indices for them."""
    indices = (*outputs.shape[:1], *outputs.shape[2:])
    return target.shape == outputs.shape or (tuple(target.shape) == indices and outputs.shape[1] > 1)


def _no_graph(facts: Facts) -> str | None:
    """Return a note if the loss does not depend on any parameter."""
    if facts.stage != "backward" or not re.search(r"element \d+ of tensors does not require grad", facts.text):
        return None
    if any(tensor.requires_grad for _, tensor in tensors_in(facts.loss, "loss")):
        return None
    if not any(parameter.requires_grad for parameter in facts.model.parameters()):
        return (
            f"no parameter of {facts.name} requires gradients: all are frozen. Leave some unfrozen: requires_grad_()."
        )
    shown = described(facts.loss)
    if any(tensor.requires_grad for _, tensor in tensors_in(facts.outputs, "outputs")):
        return (
            f"the outputs have a graph, but the loss, {shown}, has none: loss() detached it, by detach(), item(), "
            f"torch.tensor(...), argmax or no_grad. Compute it from the outputs with differentiable functions."
        )
    return (
        f"neither the outputs nor the loss, {shown}, depend on a parameter that requires gradients: forward() ran "
        f"under no_grad, detached them, or used frozen layers only."
    )


def _integer_loss(facts: Facts) -> str | None:
    """Return a note if the loss is not differentiable, such as a count of correct predictions."""
    if "could not infer output dtype" not in facts.text or not isinstance(facts.loss, Tensor):
        return None
    return f"the loss is {described(facts.loss)}, which has no gradient; compute it from the outputs, not from argmax."


def _layer(facts: Facts) -> str | None:
    """Return a note if the shape of an input does not match a layer."""
    if facts.module is None or facts.stage not in ("forward", "eval_forward") or not facts.is_in_library:
        return None
    name, layer, given = facts.module
    if not isinstance(given, Tensor) or not type(layer).__module__.startswith("torch."):
        return None
    where, shape, untyped = f"{name} is {layer!r} and got {described(given)}", list(given.shape), layer
    width: Any = getattr(untyped, "in_features", None)
    if isinstance(width, int) and shape and shape[-1] != width:
        if len(shape) > 2 and math.prod(shape[1:]) == width:
            return f"{where}. Insert nn.Flatten() before it."
        flat = f", after nn.Flatten() {math.prod(shape[1:])}" if len(shape) > 2 else ""
        return f"{where}. Set in_features={shape[-1]}{flat}, or use inputs with {width} features."
    channels: Any = getattr(untyped, "in_channels", getattr(untyped, "num_features", None))
    if isinstance(channels, int) and len(shape) > 1 and shape[1] != channels:
        if len(shape) == 4 and shape[-1] == channels:
            return f"{where}. Move the channels to dimension 1: x.permute(0, 3, 1, 2)."
        if len(shape) == 3 and hasattr(untyped, "in_channels") and channels == 1:
            return f"{where}. Add a channel dimension: x.unsqueeze(1)."
        return f"{where}. Set its channels to {shape[1]}, the size of dimension 1, or use {channels} input channels."
    if isinstance(layer, nn.Embedding) and "index out of range in self" in facts.text:
        return f"{where} with index {int(given.max())}. Set num_embeddings={int(given.max()) + 1} or more."
    return None


def _attribute(facts: Facts) -> str | None:
    """Return a note if a method of another library's model class is used."""
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", str(facts.error))
    if found is None or facts.stage is None or not isinstance(facts.error, AttributeError):
        return None
    if facts.error.obj is not facts.model:
        return None
    from composer._compat.other_libraries import MODEL_MEMBERS

    answer = MODEL_MEMBERS.get(found[2])
    return None if answer is None else f"a ComposerModel has no {found[2]!r}. Use {answer}."


_RULES: Final[tuple[Callable[[Facts], str | None], ...]] = (
    _tensor_for_loader,
    _arguments,
    _attribute,
    _full_batch,
    not_a_tensor,
    batch_form,
    one_sample,
    _nothing_returned,
    _no_graph,
    _integer_loss,
    devices,
    input_dtype,
    _classes,
    _metric_classes,
    target_dtype,
    _target_shape,
    _layer,
)
