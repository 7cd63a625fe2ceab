"""Collect facts about an exception in a step: the tensors, the module, the model's method and the stack frames."""

from __future__ import annotations

import dataclasses
import dis
import re
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

from torch import Tensor, nn

from composer.core.data_spec import DataSpec
from composer.core.model import ComposerModel

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["METHODS", "Facts", "called_method", "described", "facts_of", "target_of", "tensors_in"]

METHODS: Final = ("forward", "eval_forward", "loss", "update_metric")
_TARGETS: Final = ("labels", "label", "targets", "target", "y")
_MOST: Final = 8  # tensors that a note names
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
# torch and Python raise exactly these classes; subclasses, which users define, have a different meaning.
_TORCH_ERRORS: Final = (
    RuntimeError, IndexError, KeyError, TypeError, ValueError, AttributeError, NotImplementedError,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Facts:
    """An exception with its context.

    Attributes:
        error: The exception.
        text: Its message, in lower case.
        stage: The model's method that raised it, "backward", or None.
        model: The model.
        batch: The batch or microbatch.
        outputs: The result of ``forward``, or None.
        loss: The result of ``loss``, or None.
        loader: The data loader.
        module: Name, module and input of the innermost submodule that was running, or None.
        frames: The frames of the traceback, outermost first.
        is_raised: Whether the innermost frame has a ``raise`` statement, rather than a call into native code.
        state: The state of the run.

    >>> from composer import State
    >>> facts_of(RuntimeError("No graph"), State(model=torch.nn.Linear(1, 1))).text
    'no graph'
    """

    error: Exception
    text: str
    stage: str | None
    model: nn.Module
    batch: Any
    outputs: Any
    loss: Any
    loader: Any
    module: tuple[str, nn.Module, Any] | None
    frames: list[FrameType]
    is_raised: bool
    state: State

    @property
    def name(self) -> str:
        """Name of the model's class."""
        return type(self.model).__name__

    @property
    def is_from_torch(self) -> bool:
        """Whether torch raised the exception, rather than user code or another library."""
        cls = type(self.error)
        known = cls in _TORCH_ERRORS or cls.__module__.partition(".")[0] == "torch"
        return known and bool(self.frames) and (self.is_in_library or not self.is_raised)

    @property
    def is_in_library(self) -> bool:
        """Whether the innermost frame is in torch, torchmetrics or this library."""
        return bool(self.frames) and _package(self.frames[-1]) in ("torch", "torchmetrics", "composer")

    @property
    def is_in_model(self) -> bool:
        """Whether the innermost frame is a method of the model."""
        return bool(self.frames) and _owner(self.frames[-1]) is self.model

    def takes(self, value: Any) -> bool:
        """Return whether the failed library function had this value (or a tensor with its memory) as an argument.

        Args:
            value: A tensor, a batch, or None.
        """
        if not self.is_in_library:
            return False
        given = list(self.frames[-1].f_locals.values())
        if not isinstance(value, Tensor):
            return any(one is value for one in given)
        return any(isinstance(one, Tensor) and (one is value or _memory(one) == _memory(value) != 0) for one in given)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def facts_of(error: Exception, state: State) -> Facts:
    """Collect the facts about an exception that a loop raised.

    The arguments of the model's method are read from the frames of the traceback: if an evaluation failed, the state
    may already be that of training again.

    Args:
        error: The exception.
        state: The state of the run.
    """
    frames, traceback, is_raised = list[FrameType](), error.__traceback__, False
    while traceback is not None:
        frames.append(traceback.tb_frame)
        is_raised = traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE
        traceback = traceback.tb_next
    model, text = state.model, str(error).lower()
    stage, batch, outputs = _stage(frames, error, state)
    return Facts(
        error=error,
        text=text,
        stage=stage,
        model=model,
        batch=batch,
        outputs=outputs,
        loss=getattr(state, "loss", None),
        loader=_loader(frames, state),
        module=_module(frames, model),
        frames=frames,
        is_raised=is_raised,
        state=state,
    )


def _stage(frames: Sequence[FrameType], error: Exception, state: State) -> tuple[str | None, Any, Any]:
    """Return the method of the model that failed, with its batch and outputs."""
    batch, outputs = getattr(state, "batch", None), getattr(state, "outputs", None)
    # Also by code object: a function with a different name may have been assigned.
    methods = {getattr(getattr(type(state.model), name, None), "__code__", None): name for name in METHODS}
    for position, frame in reversed(list(enumerate(frames))):
        owner, given = _owner(frame), _arguments(frame)
        name = methods.get(frame.f_code, frame.f_code.co_name)
        in_backward = name == "backward" and frame.f_globals.get("__name__") in ("torch._tensor", "torch.autograd")
        if (owner is not state.model and not in_backward) or not _called_by_us(frames[:position], state):
            continue
        if in_backward:
            return "backward", batch, outputs
        if name in METHODS and isinstance(owner, ComposerModel):
            if name == "loss" and len(given) > 1:
                return name, given[1], given[0]
            if name == "update_metric" and len(given) > 1:
                return name, given[0], given[1]
            called = next((one for one in frames if one.f_code.co_name == "_call_impl" and _owner(one) is owner), None)
            exact = () if called is None or name != "forward" else called.f_locals.get("args", ())
            return name, next(iter((*exact, *given)), batch), None
        if name == "_call_impl":  # a forward with a different name
            return "forward", next(iter(frame.f_locals.get("args", ())), batch), None
    if type(error).__module__.startswith("torch._dynamo"):
        return "forward", batch, outputs
    # A call with the wrong arguments never enters the method.
    called = called_method(error)
    is_ours = called in METHODS and bool(frames) and _package(frames[-1]) == "composer"
    return called if is_ours else None, batch, outputs


def called_method(error: Exception) -> str | None:
    """Return the name of the function if Python reports a call with the wrong arguments, or None.

    Args:
        error: The exception.

    >>> called_method(TypeError("Net.forward() missing 1 required positional argument: 'y'"))
    'forward'
    """
    found = re.fullmatch(r"(?:[\w.<>]+\.)?(\w+)\(\) (?:missing \d+ required|takes (?:from )?\d+ ).*", str(error), re.S)
    return found[1] if found is not None and type(error) is TypeError else None


def _called_by_us(outer: Sequence[FrameType], state: State) -> bool:
    """Return whether the loop called a frame, rather than a callback, dataset or metric of the user."""
    return all(_package(frame) in ("composer", "torch") or _owner(frame) is state.model for frame in outer)


def _arguments(frame: FrameType) -> list[Any]:
    """Return the positional arguments of a method without ``self``; None for deleted ones."""
    code = frame.f_code
    return [frame.f_locals.get(name) for name in code.co_varnames[1 : code.co_argcount]]


def _loader(frames: Sequence[FrameType], state: State) -> Any:
    """Return the data loader that the loop was using."""
    for frame in reversed(frames):
        spec = getattr(frame.f_locals.get("evaluator"), "dataloader", frame.f_locals.get("spec"))
        if isinstance(spec, DataSpec):
            return spec.dataloader
    return getattr(state.train_phase.loader, "dataloader", None)


def _owner(frame: FrameType) -> Any:
    """Return the first argument of a function: ``self`` for a method."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _module(frames: Sequence[FrameType], model: nn.Module) -> tuple[str, nn.Module, Any] | None:
    names = {id(module): name for name, module in model.named_modules()}
    for frame in reversed(frames):
        owner = _owner(frame)
        if frame.f_code.co_name != "forward" or not isinstance(owner, nn.Module) or not names.get(id(owner)):
            continue
        return names[id(owner)], owner, next(iter(_arguments(frame)), None)
    return None


def tensors_in(value: Any, name: str) -> list[tuple[str, Tensor]]:
    """Return the tensors in a batch or in outputs, each with its path as an expression.

    Args:
        value: A tensor, or containers of tensors.
        name: Name of the value in the expression.

    >>> [path for path, _ in tensors_in({"x": torch.ones(1), "more": [torch.ones(1)]}, "batch")]
    ["batch['x']", "batch['more'][0]"]
    """
    return list(_walk(value, name, 3))[:_MOST]


def _walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, entry in cast("Mapping[Any, Any]", value).items():
            yield from _walk(entry, f"{name}[{key!r}]", depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for number, entry in enumerate(cast("Sequence[Any]", value)[:_MOST]):
            yield from _walk(entry, f"{name}[{number}]", depth - 1)


def target_of(batch: Any) -> tuple[str, Tensor] | None:
    """Return the tensor of a batch that is most likely the target, with its path as an expression.

    Args:
        batch: The batch.

    >>> target_of((torch.ones(1), torch.zeros(1)))
    ('batch[1]', tensor([0.]))
    """
    if isinstance(batch, Mapping):
        found = cast("Mapping[Any, Any]", batch)
        key = next((key for key in _TARGETS if isinstance(found.get(key), Tensor)), None)
        return None if key is None else (f"batch[{key!r}]", found[key])
    if isinstance(batch, (list, tuple)) and len(cast("Sequence[Any]", batch)) > 1 and isinstance(batch[1], Tensor):
        return "batch[1]", batch[1]
    return None


def described(value: Any) -> str:
    """Return the dtype and shape of a tensor, or the type and length of something else.

    Args:
        value: Anything.

    >>> described(torch.ones(2, 3)), described([1, 2]), described(None)
    ('float32 (2, 3)', 'a list of 2', 'None')
    """
    if isinstance(value, Tensor):
        shape = "a scalar" if value.ndim == 0 else str(tuple(value.shape))
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    if value is None:
        return "None"
    length = f" of {len(value)}" if isinstance(value, (list, tuple, dict)) else ""
    return f"a {type(value).__name__}{length}"
