"""Notes on exceptions for tensors on the wrong device or with the wrong dtype."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from composer._text import dtype_name
from composer.parallel.fsdp_units import has_fsdp_units
from composer.trainer.failure_facts import Facts, described, target_of, tensors_in

__all__ = ["devices", "input_dtype", "target_dtype"]

# Messages of torch, in lower case.
_DTYPE: Final = re.compile(
    r"must have the same dtype|to have the same dtype|to have scalar type|scalar types?[: ]|not implemented for '|"
    r"weight type|bias type|should be the same|found dtype|expected floating point type|can't be cast|"
    r"desired output type|long but expected float|target dtype to be"
)
_DEVICE: Final = re.compile(
    r"expected all tensors to be on the same device|is not on the expected device|must be on the same device|"
    r"input type .* and weight type .* should be the same|is on \S+, different from other tensors"
)


def devices(facts: Facts) -> str | None:
    """Return a note on tensors on different devices, or None.

    Args:
        facts: Facts about the exception.

    >>> from composer import State
    >>> from composer.trainer.failure_facts import facts_of
    >>> devices(facts_of(OSError("No space left on device"), State(model=nn.Linear(1, 1))))
    """
    if facts.stage in (None, "backward") or not _DEVICE.search(facts.text):
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
        if facts.stage == "update_metric":
            return None
        return (
            f"the run, the batch and the weights are on {home}, but a tensor that the model creates itself is not. "
            f"Create it there: torch.zeros(..., device=x.device)."
        )
    listed = ", ".join(f"{name} {described(tensor)} is on {tensor.device}" for name, tensor in wrong[:4])
    return (
        f"the run is on {home}, but {listed}. Trainer(device=...) moves the model and the batches; a constant moves "
        f"with its module if registered by register_buffer(name, tensor)."
    )


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _unregistered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors that are plain attributes of modules, which do not move with the module."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}".lstrip("."), value


def input_dtype(facts: Facts) -> str | None:
    """Return a note on inputs whose dtype differs from that of the weights, or None.

    Args:
        facts: Facts about the exception.

    >>> from composer import State
    >>> from composer.trainer.failure_facts import facts_of
    >>> input_dtype(facts_of(OSError("No space left on device"), State(model=nn.Linear(1, 1))))
    """
    if facts.stage not in ("forward", "eval_forward") or not _DTYPE.search(facts.text):
        return None
    if has_fsdp_units(facts.model):
        return None  # FSDP casts inputs, and weights that are gathered at the moment have another dtype than the rest
    weights = {tensor.dtype: name for name, tensor in facts.model.named_parameters() if tensor.is_floating_point()}
    name, module, given = facts.module or ("", facts.model, None)
    inputs = [(path, tensor) for path, tensor in tensors_in(facts.batch, "batch") if path != _target_path(facts.batch)]
    if isinstance(given, Tensor):
        path = next((path for path, tensor in inputs if given is tensor), f"the input of {name}")
        inputs = [(path, given)]
    elif len(inputs) != 1:
        return None  # unknown which of them it was
    if isinstance(module, nn.Embedding):
        path, tensor = inputs[0]
        if not tensor.is_floating_point():
            return None
        return f"{path} is {described(tensor)}, but {name} needs integer indices: x.long() in the dataset."
    if len(weights) > 1:
        listed = ", ".join(f"{name} is {dtype_name(dtype)}" for dtype, name in weights.items())
        return f"the weights of {facts.name} have several dtypes: {listed}. Convert them to one: model.float()."
    of_weights = next(iter(weights))
    path, tensor = next(((path, tensor) for path, tensor in inputs if tensor.dtype != of_weights), ("", None))
    if tensor is None:
        return None  # the module casts its input itself
    wrong = f"{path} is {described(tensor)}, but the weights of {facts.name} are {dtype_name(of_weights)}."
    if not tensor.is_floating_point():
        return f"{wrong} Convert it to floating point in the dataset: x.float(), or x.float() / 255 for images."
    if of_weights in (torch.bfloat16, torch.float16):
        is_half = of_weights is torch.float16 and facts.state.device.torch_device.type != "cpu"
        precision = "amp_fp16" if is_half else "amp_bf16"  # float16 needs an accelerator
        return f"{wrong} Keep the weights in float32, model.float(), and use Trainer(precision={precision!r})."
    if of_weights is torch.float64:
        return f"{wrong} Make them agree: model.float(), or x.double() in the dataset."
    return f"{wrong} Make them agree: x.to(torch.{dtype_name(of_weights)}) in the dataset."


def _target_path(batch: Any) -> str | None:
    found = target_of(batch)
    return None if found is None else found[0]


def target_dtype(facts: Facts) -> str | None:
    """Return a note on class indices that are not int64, or on integer probabilities, or None.

    Args:
        facts: Facts about the exception.

    >>> from composer import State
    >>> from composer.trainer.failure_facts import facts_of
    >>> target_dtype(facts_of(OSError("No space left on device"), State(model=nn.Linear(1, 1))))
    """
    target, outputs = target_of(facts.batch), facts.outputs
    if facts.stage not in ("loss", "update_metric") or target is None or not _DTYPE.search(facts.text + " "):
        return None
    path, tensor = target
    if not isinstance(outputs, Tensor) or not facts.takes(tensor):
        return None
    wrong = f"{path}, the target, is {described(tensor)}, and the outputs are {described(outputs)}."
    if tensor.dtype is torch.int64 and re.search(r"long but expected float|desired output type long", facts.text):
        return f"{wrong} The loss takes floating-point targets: y.float() in the dataset."
    if tensor.ndim == outputs.ndim - 1 and tensor.dtype is not torch.int64:
        more = (
            " For a regression use another loss: ComposerClassifier(..., loss_fn=...) or a subclass of ComposerModel."
        )
        return f"{wrong} Class indices are int64: y.long() in the dataset.{more if tensor.is_floating_point() else ''}"
    if tensor.shape == outputs.shape and tensor.dtype != outputs.dtype:
        return f"{wrong} Targets of the outputs' shape need their dtype: y.to(torch.{dtype_name(outputs.dtype)})."
    if tensor.dtype is not torch.int64 and not tensor.is_floating_point():
        return f"{wrong} Class indices are int64: y.long() in the dataset."
    return None
