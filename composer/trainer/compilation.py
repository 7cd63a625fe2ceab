"""Compile the model with ``torch.compile``: the forward pass, and forward and loss as one graph."""

from __future__ import annotations

import sys
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from composer.core.model import ComposerModel
from composer.core.types import Batch
from composer.parallel.strategy import SingleProcess
from composer.trainer.run import Run

__all__ = ["compile_model"]


def compile_model(run: Run, config: dict[str, Any] | None, wrapper: nn.Module | None) -> None:
    """Compile the model in place, so that its type and parameter names do not change.

    The forward pass alone is compiled for evaluation, prediction and steps in which an algorithm acts between forward
    and loss; other steps run forward and loss as one graph. Compilation happens at the first call.

    Args:
        run: The run, whose model is final.
        config: Arguments of :func:`torch.compile`; None does not compile.
        wrapper: The result of ``torch.compile(model)``, if that was given as the model.
    """
    model = cast(ComposerModel, run.state.model)
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
    plain = model._call_impl
    run.reuses_outputs = _has_cuda_graphs(config)

    def forward_and_loss(batch: Batch, detached: bool) -> tuple[Any, Any]:
        outputs = plain(batch)
        loss = model.loss(outputs, batch)
        # For outputs that require gradients, autograd would allocate zero gradients and add them.
        return (tree_map_only(Tensor, torch.detach, outputs) if detached else outputs), loss

    model.compile(**config)
    if type(run.strategy) is SingleProcess:
        # Other strategies act before and after the forward pass of the model.
        run.forward_and_loss = torch.compile(forward_and_loss, **config)


def _has_cuda_graphs(config: dict[str, Any]) -> bool:
    """Return whether the arguments of ``torch.compile``, or inductor's global settings, enable CUDA graphs."""
    options = cast("dict[str, Any]", config.get("options") or {})
    if config.get("mode") in ("reduce-overhead", "max-autotune") or config.get("backend") == "cudagraphs":
        return True
    inductor: Any = sys.modules.get("torch._inductor.config")
    everywhere = inductor is not None and inductor.triton.cudagraphs
    return bool(options.get("triton.cudagraphs", everywhere))
