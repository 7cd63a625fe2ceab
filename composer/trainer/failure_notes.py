"""Add a note to an exception from the model, its loss or a metric: which tensor, its dtype or shape, and the remedy.

Nothing here runs before an exception. A note is for beginners' mistakes that torch reports in its own terms: labels of
another dtype, a number of classes that differs, a ``forward`` that is given the whole batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from composer.trainer.failure_facts import Facts, described, facts_of, target_of, tensors_in

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["add_notes"]

_PREFIX: Final = "Composer: "
_DTYPE: Final = re.compile(
    r"dtype|scalar type|not implemented for|should be the same|tensor to have one of|data type|be cast"
)
_CONTAINER: Final = re.compile(r"\b(list|tuple|dict|batchencoding|sequence)\b")


def add_notes(error: BaseException, state: State) -> None:
    """Add to an exception what is known of its cause. It never raises, and never changes the exception itself.

    Args:
        error: What a loop raised; only exceptions from the model get notes.
        state: The state of the run.

    >>> from composer import State
    >>> error = KeyboardInterrupt()
    >>> add_notes(error, State(model=torch.nn.Linear(1, 1)))
    >>> getattr(error, "__notes__", [])
    []
    """
    if not isinstance(error, Exception) or isinstance(error, torch.OutOfMemoryError):
        return
    try:
        if any(str(note).startswith(_PREFIX) for note in getattr(error, "__notes__", ())):
            return  # of an evaluation within a training
        for note in _notes(facts_of(error, state)):
            error.add_note(f"{_PREFIX}{note}")
    except Exception:
        return


def _notes(facts: Facts) -> Iterator[str]:
    remedy = next((found for rule in _RULES if (found := _safely(rule, facts)) is not None), None)
    if remedy is not None:
        yield remedy
    if facts.stage in (None, "backward") or (remedy is None and not _is_of_torch(facts)):
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


def _is_of_torch(facts: Facts) -> bool:
    """Whether the exception is of a kind that torch raises, rather than one of the user's own code."""
    return isinstance(facts.error, (RuntimeError, IndexError, TypeError, ValueError, AttributeError))


def _tensor_for_loader(facts: Facts) -> str | None:
    """A tensor or an array in place of a data loader, whose rows are taken for batches."""
    loader = facts.loader
    if facts.stage is None or isinstance(loader, (list, tuple)) or not hasattr(loader, "ndim"):
        return None
    return (
        f"the data is one {type(loader).__name__} of shape {tuple(loader.shape)}, whose rows are taken for batches. "
        f"Give a DataLoader, or a list of batches as the model takes them, such as [(x, y)]."
    )


def _arguments(facts: Facts) -> str | None:
    """A method with other parameters than the trainer calls it with."""
    found = re.search(r"(forward|loss|eval_forward|update_metric)\(\) (missing|takes)", facts.text)
    if found is None or not isinstance(facts.error, TypeError):
        return None
    forms = {
        "forward": "forward(self, batch)",
        "eval_forward": "eval_forward(self, batch, outputs=None)",
        "loss": "loss(self, outputs, batch)",
        "update_metric": "update_metric(self, batch, outputs, metric)",
    }
    return (
        f"the trainer calls {forms[found[1]]}, with the whole batch, here {described(facts.batch)}, as one argument; "
        f"take it apart inside: {_apart(facts.batch)}."
    )


def _apart(batch: Any) -> str:
    if isinstance(batch, Mapping):
        keys = list(batch)[:2]
        return ", ".join(f"{key} = batch[{key!r}]" for key in keys) or "x = batch['x']"
    if isinstance(batch, (list, tuple)):
        return {1: "x, = batch", 2: "x, y = batch"}.get(len(batch), "x = batch[0]")
    return "x = batch"


def _whole_batch(facts: Facts) -> str | None:
    """The whole batch where a tensor is needed."""
    word = _CONTAINER.search(facts.text)
    if word is None or not isinstance(facts.error, (TypeError, AttributeError, RuntimeError)):
        return None
    if facts.stage == "loss" and type(facts.outputs).__name__.lower() == word[1] and word[1] != _word(facts.batch):
        return f"forward returned {described(facts.outputs)} as outputs, of which loss needs the tensor."
    raised_in = str(facts.frames[-1].f_globals.get("__name__")) if facts.frames else ""
    if word[1] not in (_word(facts.batch), "sequence") or raised_in.startswith("composer."):
        return None
    if facts.stage in ("forward", "eval_forward"):
        return (
            f"{facts.stage} gets the whole batch, here {described(facts.batch)}, and not only the inputs. Take them "
            f"from it: {_apart(facts.batch)}."
        )
    if facts.stage in ("loss", "update_metric"):
        target = target_of(facts.batch)
        expression = "batch[1]" if target is None else target[0]
        return f"{facts.stage} gets the whole batch, here {described(facts.batch)}; the targets are {expression}."
    return None


def _word(value: Any) -> str:
    return type(value).__name__.lower()


def _nothing_returned(facts: Facts) -> str | None:
    """A forward without a return."""
    if facts.stage not in ("loss", "update_metric") or facts.outputs is not None or "none" not in facts.text:
        return None
    return "forward returned None; let it return the outputs."


def _devices(facts: Facts) -> str | None:
    """Tensors on several devices."""
    if "device" not in facts.text or "device-side" in facts.text:
        return None
    home = facts.state.device.torch_device
    wrong = [
        *((f"{facts.name}.{name}", tensor) for name, tensor in _weights(facts.model)),
        *((f"{facts.name}.{name}", tensor) for name, tensor in _unregistered(facts.model)),
        *tensors_in(facts.batch, "batch"),
        *tensors_in(facts.outputs, "outputs"),
    ]
    wrong = [(name, tensor) for name, tensor in wrong if tensor.device.type != home.type]
    if not wrong:
        return (
            f"the run is on {home}, and so are the batch and the weights: a tensor that the model makes itself is "
            f"not. Make it there: torch.zeros(..., device=x.device)."
        )
    listed = ", ".join(f"{name} {described(tensor)} is on {tensor.device}" for name, tensor in wrong[:4])
    return (
        f"the run is on {home}, but {listed}. Trainer(device=...) moves the model and the batches; a constant is "
        f"moved where the module has it by register_buffer(name, tensor)."
    )


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _unregistered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are plain attributes of modules, which do not move with them."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}".lstrip("."), value


def _input_dtype(facts: Facts) -> str | None:
    """Inputs of another dtype than the weights."""
    if facts.stage not in ("forward", "eval_forward") or not _DTYPE.search(facts.text):
        return None
    weights = {tensor.dtype: name for name, tensor in facts.model.named_parameters() if tensor.is_floating_point()}
    name, module, given = facts.module or ("", facts.model, None)
    inputs = [(path, tensor) for path, tensor in tensors_in(facts.batch, "batch") if path != _target_path(facts.batch)]
    if isinstance(given, Tensor) and not any(given is tensor for _, tensor in inputs):
        inputs = [(f"the input of {name}", given)]
    if isinstance(module, nn.Embedding):
        path, tensor = inputs[0]
        return f"{path} is {described(tensor)}, but {name} needs indices, whole numbers: x.long() in the data set."
    if len(weights) > 1:
        listed = ", ".join(f"{name} is {_short(dtype)}" for dtype, name in weights.items())
        return f"the weights of {facts.name} have several dtypes: {listed}. Bring them to one: model.float()."
    of_weights = next(iter(weights))
    path, tensor = next((path, tensor) for path, tensor in inputs if tensor.dtype != of_weights)
    wrong = f"{path} is {described(tensor)}, but the weights of {facts.name} are {_short(of_weights)}."
    if not tensor.is_floating_point():
        return f"{wrong} Make it a floating-point tensor in the data set: x.float(), of images x.float() / 255."
    if of_weights in (torch.bfloat16, torch.float16):
        kind = "amp_bf16" if of_weights is torch.bfloat16 else "amp_fp16"
        return f"{wrong} Keep the weights in float32, model.float(), and give Trainer(precision={kind!r})."
    if of_weights is torch.float64:
        return f"{wrong} Make them agree: model.float(), or x.double() in the data set."
    return f"{wrong} Make them agree: x.to(torch.{_short(of_weights)}) in the data set."


def _target_path(batch: Any) -> str | None:
    found = target_of(batch)
    return None if found is None else found[0]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _target_dtype(facts: Facts) -> str | None:
    """Class indices that are not int64, or probabilities that are whole numbers."""
    target, outputs = target_of(facts.batch), facts.outputs
    if facts.stage not in ("loss", "update_metric") or target is None or not _DTYPE.search(facts.text + " "):
        return None
    path, tensor = target
    if not isinstance(outputs, Tensor):
        return None
    wrong = f"{path}, the target, is {described(tensor)}, and the outputs are {described(outputs)}."
    if tensor.dtype is torch.int64 and re.search(r"long but expected float|desired output type long", facts.text):
        return f"{wrong} The loss takes floating-point targets: y.float() in the data set."
    if tensor.ndim == outputs.ndim - 1 and tensor.dtype is not torch.int64:
        more = (
            " For a regression use another loss: ComposerClassifier(..., loss_fn=...) or a subclass of ComposerModel."
        )
        return f"{wrong} Class indices are int64: y.long() in the data set.{more if tensor.is_floating_point() else ''}"
    if tensor.shape == outputs.shape and tensor.dtype != outputs.dtype:
        return f"{wrong} Targets of the outputs' shape have their dtype: y.to(torch.{_short(outputs.dtype)})."
    if tensor.dtype is not torch.int64 and not tensor.is_floating_point():
        return f"{wrong} Class indices are int64: y.long() in the data set."
    return f"{wrong} Bring them to the dtype that the loss takes."


def _classes(facts: Facts) -> str | None:
    """Labels that are no class of the outputs."""
    target, outputs = target_of(facts.batch), facts.outputs
    if facts.stage not in ("loss", "update_metric", None) or target is None or not isinstance(outputs, Tensor):
        return None
    path, tensor = target
    number = getattr(facts.model, "num_classes", None)
    said = f" (num_classes={number})" if isinstance(number, int) else ""
    if "device-side assert" in facts.text:
        return (
            f"most often a class index is too large: the outputs are {described(outputs)}{said}, {path} is "
            f"{described(tensor)}. Trainer(device='cpu') says which."
        )
    if "out of bounds" not in facts.text or outputs.ndim < 2 or tensor.is_floating_point():
        return None
    low, high, classes = int(tensor.min()), int(tensor.max()), outputs.shape[1]
    if high < classes and low < 0:
        return f"{path}, the target, has the class {low}; classes count from 0, and -100 is ignored."
    needed = max(high + 1, number if isinstance(number, int) else 0)
    return (
        f"the outputs are {described(outputs)}, of {classes} classes{said}, but {path}, the target, has the class "
        f"{high}. Let the last layer have {needed} outputs or more, and count classes from 0."
    )


def _metric_classes(facts: Facts) -> str | None:
    """A metric made for another number of classes."""
    if facts.stage != "update_metric" or not isinstance(facts.outputs, Tensor) or facts.outputs.ndim < 2:
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
    """A target whose shape does not go with that of the outputs."""
    target, outputs = target_of(facts.batch), facts.outputs
    words = re.search(r"size|shape|dimension|multi-target|inconsistent", facts.text)
    if (
        facts.stage not in ("loss", "update_metric")
        or target is None
        or words is None
        or not isinstance(outputs, Tensor)
    ):
        return None
    path, tensor = target
    wrong = f"{path}, the target, is {described(tensor)}, and the outputs are {described(outputs)}."
    if tensor.ndim > 1 and tensor.shape[-1] == 1 and tensor.shape[:-1] == outputs.shape[: tensor.ndim - 1]:
        return f"{wrong} Leave out the last dimension: y.squeeze(-1)."
    if outputs.ndim == tensor.ndim + 1 and outputs.shape[-1] == 1:
        return f"{wrong} Leave out the last dimension: outputs.squeeze(-1)."
    return f"{wrong} The loss takes class indices (B, ...) for outputs (B, C, ...), or a target of the outputs' shape."


def _no_graph(facts: Facts) -> str | None:
    """A loss that depends on no parameter."""
    if "does not require grad" not in facts.text:
        return None
    if not any(parameter.requires_grad for parameter in facts.model.parameters()):
        return (
            f"no parameter of {facts.name} requires gradients: all are frozen. Leave some unfrozen: requires_grad_()."
        )
    shown = described(facts.loss)
    if any(tensor.requires_grad for _, tensor in tensors_in(facts.outputs, "outputs")):
        return (
            f"the outputs have a graph, but the loss, {shown}, has none: loss() detached it, by detach(), item(), "
            f"torch.tensor(...), argmax or no_grad. Compute it from the outputs by differentiable functions."
        )
    return (
        f"neither the outputs nor the loss, {shown}, depend on a parameter that requires gradients: forward() ran "
        f"under no_grad, detached them, or used frozen layers only."
    )


def _integer_loss(facts: Facts) -> str | None:
    """A loss that cannot be differentiated, as a count of hits."""
    if "could not infer output dtype" not in facts.text or not isinstance(facts.loss, Tensor):
        return None
    return f"the loss is {described(facts.loss)}, which has no gradient; compute it from the outputs, not from argmax."


def _layer(facts: Facts) -> str | None:
    """An input that does not fit a layer."""
    if facts.module is None or facts.stage not in ("forward", "eval_forward"):
        return None
    name, layer, given = facts.module
    if not isinstance(given, Tensor):
        return None
    where, shape, anyone = f"{name} is {layer!r} and got {described(given)}", list(given.shape), layer
    width: Any = getattr(anyone, "in_features", None)
    if isinstance(width, int) and shape and shape[-1] != width:
        if len(shape) > 2 and math.prod(shape[1:]) == width:
            return f"{where}. Put nn.Flatten() before it."
        flat = f", after nn.Flatten() {math.prod(shape[1:])}" if len(shape) > 2 else ""
        return f"{where}. Give it in_features={shape[-1]}{flat}, or inputs of {width} features."
    channels: Any = getattr(anyone, "in_channels", getattr(anyone, "num_features", None))
    if isinstance(channels, int) and len(shape) > 1 and shape[1] != channels:
        if len(shape) == 4 and shape[-1] == channels:
            return f"{where}. The channels come second: x.permute(0, 3, 1, 2)."
        if len(shape) == 3 and hasattr(anyone, "in_channels") and channels == 1:
            return f"{where}. Add the dimension of the channels: x.unsqueeze(1)."
        return f"{where}. Its channels must be {shape[1]}, those of dimension 1, or the input must have {channels}."
    if isinstance(layer, nn.Embedding) and "out of range" in facts.text:
        return f"{where} with the index {int(given.max())}. Give it num_embeddings={int(given.max()) + 1} or more."
    return None


def _attribute(facts: Facts) -> str | None:
    """A method of another library's model."""
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", str(facts.error))
    if found is None or not isinstance(facts.error, AttributeError) or found[1] != facts.name:
        return None
    from composer._foreign_names import MODEL_MEMBERS

    answer = MODEL_MEMBERS.get(found[2])
    return None if answer is None else f"a ComposerModel has no {found[2]!r}. Use {answer}."


_RULES: Final[tuple[Callable[[Facts], str | None], ...]] = (
    _tensor_for_loader,
    _arguments,
    _attribute,
    _whole_batch,
    _nothing_returned,
    _no_graph,
    _integer_loss,
    _devices,
    _input_dtype,
    _classes,
    _metric_classes,
    _target_dtype,
    _target_shape,
    _layer,
)
