"""Compile the model with ``torch.compile``: the forward pass, forward and loss as one graph, or the repeated blocks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from composer.core.logger import Logger
from composer.core.model import ComposerModel
from composer.core.types import Batch
from composer.parallel.strategy import SingleProcess
from composer.trainer.dynamic_dims import DynamicDims, dynamic_dims, is_compiled_by_size, with_recompile_limit
from composer.trainer.regional_compilation import compile_blocks
from composer.trainer.run import Run

__all__ = ["compile_model", "fuses_loss", "is_compiled", "torch_arguments", "undo_compilation"]


# In the error of torch with fullgraph=True.
_LOGS = (
    "calls of self.logger by the model are not compiled, since the number of the step would be. Log in a callback, as "
    "at BATCH_END, or leave out fullgraph=True"
)


def compile_model(run: Run, config: dict[str, Any] | None, wrapper: nn.Module | None) -> None:
    """Compile the model in place, so that its type and parameter names do not change; see :func:`undo_compilation`.

    The forward pass alone is compiled for evaluation, prediction and steps in which an algorithm acts between forward
    and loss; other steps run forward and loss as one graph. With ``regional``, only repeated blocks are compiled, see
    :func:`.compile_blocks`. Compilation happens at the first call.

    Args:
        run: The run, whose model is final.
        config: Arguments of :func:`torch.compile`, and ``regional``; None does not compile.
        wrapper: The result of ``torch.compile(model)``, if that was given as the model.

    Raises:
        ValueError: ``regional`` is True, and the model has no repeated blocks; or ``torch.compile`` knows no such
            backend, mode or option.
    """
    before = {module: _compiled_call(module) for module in run.state.model.modules()}
    try:
        _compile(run, config, wrapper)
    except RuntimeError as error:  # torch.compile knows no such backend, mode or option
        raise ValueError(f"compile_config={config!r}: {error}") from error
    run.compiled = [
        (module, own, earlier) for module, earlier in before.items() if (own := _compiled_call(module)) is not earlier
    ]


def undo_compilation(run: Run) -> None:
    """Let the model run as before :func:`compile_model`: eagerly, unless the user has compiled it or parts of it.

    What was compiled since, as for another trainer of this model, stays.

    Args:
        run: The run.
    """
    for module, own, earlier in run.compiled:
        if _compiled_call(module) is own:
            module._compiled_call_impl = earlier
    run.compiled = []


def _compiled_call(module: nn.Module) -> Any:
    """Return what a call of a module runs if it is compiled; None if it is not."""
    return module._compiled_call_impl  # pyright: ignore[reportPrivateUsage]


def _compile(run: Run, config: dict[str, Any] | None, wrapper: nn.Module | None) -> None:
    model = cast(ComposerModel, run.state.model)
    if wrapper is not None or config is not None or is_compiled(run):
        _keep_eager(run.logger)
        # Blocks get marks of their own.
        by_size = (config is None or fuses_loss(config)) and is_compiled_by_size(model, config or {})
        run.dynamic_dims = DynamicDims(dynamic_dims(run.state.algorithms), by_size=by_size)
    if wrapper is not None:
        # The user has already compiled it, with custom arguments.
        compiled = cast("Any", wrapper)
        options = getattr(compiled.dynamo_ctx, "compiler_config", None) or {}
        run.reuses_outputs = _has_cuda_graphs({"options": options})

        def forward(batch: Batch) -> Any:
            return compiled.dynamo_ctx(model._call_impl)(batch)

        model._compiled_call_impl = forward
        return
    if config is None:
        return
    run.reuses_outputs = _has_cuda_graphs(config)
    arguments = torch_arguments(config)
    if not fuses_loss(config):
        compile_blocks(model, arguments, run.dynamic_dims)
        return
    if any(run.dynamic_dims.dims) and run.dynamic_dims.by_size:
        arguments = with_recompile_limit(arguments)
    plain = model._call_impl

    def forward_and_loss(batch: Batch, detached: bool) -> tuple[Any, Any]:
        outputs = plain(batch)
        loss = model.loss(outputs, batch)
        # For outputs that require gradients, autograd would allocate zero gradients and add them.
        return (tree_map_only(Tensor, torch.detach, outputs) if detached else outputs), loss

    def forward_alone(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    model._compiled_call_impl = torch.compile(_with_own_code(forward_alone), **arguments)
    if type(run.strategy) is SingleProcess:
        # Other strategies act before and after the forward pass of the model.
        run.forward_and_loss = torch.compile(_with_own_code(forward_and_loss), **arguments)


def _keep_eager(logger: Logger) -> None:
    """Leave calls of the logger by the model out of its graphs, which they split.

    torch would trace them, and compile the model again in each step, as the number of the step is logged; after eight
    steps it would run eagerly.
    """
    for name in ("log_metrics", "log_hyperparameters", "log_table", "log_images", "upload_file"):
        setattr(logger, name, torch.compiler.disable(getattr(logger, name), reason=_LOGS))


def _with_own_code(function: Any) -> Any:
    """Return a copy of a function: torch limits the versions of a code object, of all trainers in a process together.

    The ninth trainer of a sweep would run eagerly.
    """
    code, namespace = function.__code__.replace(), function.__globals__
    return FunctionType(code, namespace, function.__name__, function.__defaults__, function.__closure__)


def fuses_loss(config: Mapping[str, Any] | None) -> bool:
    """Return whether forward and loss are compiled into one graph, unless an algorithm acts between them.

    Args:
        config: The ``compile_config`` of a trainer.

    >>> fuses_loss({}), fuses_loss({"regional": True}), fuses_loss(None)
    (True, False, False)
    """
    return config is not None and not config.get("regional")


def torch_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`torch.compile` in the ``compile_config`` of a trainer.

    Args:
        config: The configuration.

    >>> torch_arguments({"regional": True, "mode": "default"})
    {'mode': 'default'}
    """
    return {name: value for name, value in config.items() if name != "regional"}


def is_compiled(run: Run) -> bool:
    """Return whether the model of a run, or a module of it, is compiled.

    Args:
        run: The run.
    """
    modules = run.state.model.modules()
    return run.forward_and_loss is not None or any(_compiled_call(module) is not None for module in modules)


def _has_cuda_graphs(config: dict[str, Any]) -> bool:
    """Return whether the arguments of ``torch.compile``, or inductor's global settings, enable CUDA graphs."""
    options = cast("dict[str, Any]", config.get("options") or {})
    if config.get("mode") in ("reduce-overhead", "max-autotune") or config.get("backend") == "cudagraphs":
        return True
    inductor: Any = sys.modules.get("torch._inductor.config")
    everywhere = inductor is not None and inductor.triton.cudagraphs
    return bool(options.get("triton.cudagraphs", everywhere))
