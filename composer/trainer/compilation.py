"""Compiling the model, and the model with its loss."""

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
    """Compile in place, so that neither the model's type nor the names of its parameters change.

    The forward pass is compiled for evaluation, prediction and steps in which an algorithm acts between forward and
    loss; both as one graph for the others. Nothing is compiled before it first runs.

    Args:
        run: The run, whose model is final.
        config: Arguments of :func:`torch.compile`; None leaves the model as it is.
        wrapper: What ``torch.compile(model)`` had returned, if that was given as the model.
    """
    model = cast(ComposerModel, run.state.model)
    if wrapper is not None:
        # The user has compiled it already, with arguments of their own.
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
        # For results that could be differentiated, autograd makes zeros of their size and adds them up.
        return (tree_map_only(Tensor, torch.detach, outputs) if detached else outputs), loss

    model.compile(**config)
    if type(run.strategy) is SingleProcess:
        # Others act before and after the forward pass of the model.
        run.forward_and_loss = torch.compile(forward_and_loss, **config)


def _has_cuda_graphs(config: dict[str, Any]) -> bool:
    """Whether arguments of ``torch.compile``, or inductor's settings of the process, ask for CUDA graphs."""
    options = cast("dict[str, Any]", config.get("options") or {})
    if config.get("mode") in ("reduce-overhead", "max-autotune") or config.get("backend") == "cudagraphs":
        return True
    inductor: Any = sys.modules.get("torch._inductor.config")
    everywhere = inductor is not None and inductor.triton.cudagraphs
    return bool(options.get("triton.cudagraphs", everywhere))
