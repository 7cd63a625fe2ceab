"""Free the model's outputs, the loss and the autograd graph once nothing reads them; clone buffers of CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from composer import trees
from composer.core.event import AFTER_TRAIN_BATCH, BATCH_END
from composer.core.state import State
from composer.parallel.unsharded_parameters import unsharded_parameters
from composer.trainer.run import Run

__all__ = ["clone_reused_gradients", "clone_reused_outputs", "detach_outputs", "free_outputs", "free_unread_outputs"]


def detach_outputs(run: Run) -> None:
    """Detach outputs and loss after the backward pass, so that the autograd graph is freed.

    Args:
        run: The run; outputs and loss of its state are replaced by detached tensors in containers of the same types,
            cloned if the next forward pass would overwrite them.

    >>> from composer import Engine, Logger
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> state.outputs = {"logits": state.model(torch.ones(1, 1))}
    >>> logger = Logger(state)
    >>> detach_outputs(Run(state, Engine(state, logger), logger))
    >>> state.outputs["logits"].requires_grad
    False
    """
    state = run.state
    loss, outputs = state.loss, state.outputs
    if type(loss) is not Tensor:
        state.loss = trees.map_tensors(Tensor.detach, loss)
    elif loss.requires_grad:
        state.loss = loss.detach()
    state.outputs = outputs.detach() if type(outputs) is Tensor else trees.map_tensors(Tensor.detach, outputs)
    clone_reused_outputs(run)


def free_unread_outputs(run: Run) -> None:
    """Free graph and outputs before the optimizer's step, but keep detached outputs for custom listeners.

    Algorithms and callbacks outside this package that listen to ``AFTER_TRAIN_BATCH`` or ``BATCH_END`` can read the
    detached outputs and loss of the last microbatch.

    Args:
        run: The run, after its metrics were updated with the outputs.
    """
    engine = run.engine
    if engine.custom_listens(AFTER_TRAIN_BATCH) or engine.custom_listens(BATCH_END):
        detach_outputs(run)
    else:
        free_outputs(run.state)


def free_outputs(state: State) -> None:
    """Free the outputs, and the loss with its graph; a scalar loss keeps its value.

    Args:
        state: The state.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> state.outputs, state.loss = torch.ones(8), torch.tensor(0.5, requires_grad=True)
    >>> free_outputs(state)
    >>> state.outputs, state.loss
    (None, tensor(0.5000))
    """
    state.outputs, state.metric_outputs = None, {}
    loss = state.loss
    if type(loss) is Tensor and loss.numel() == 1:
        if loss.requires_grad:
            state.loss = loss.detach()
    elif loss is not None:
        scalar = all(isinstance(leaf, Tensor) and leaf.numel() == 1 for leaf in trees.leaves(loss))
        state.loss = trees.map_tensors(Tensor.detach, loss) if scalar else None


def clone_reused_outputs(run: Run) -> None:
    """Clone the outputs if the next forward pass would overwrite them; metrics and callbacks may keep them.

    Args:
        run: The run.
    """
    if run.reuses_outputs:
        run.state.outputs = trees.map_tensors(torch.clone, run.state.outputs)


def clone_reused_gradients(run: Run) -> None:
    """Clone new gradients whose memory the next call of a compiled function overwrites; called before it.

    Autograd does not copy the first gradient of a parameter, see https://github.com/pytorch/pytorch/issues/169545:
    ``.grad`` is the very tensor that a CUDA graph of the backward pass writes to, so that the gradient of the next
    microbatch would replace it and be added to itself.

    Args:
        run: The run, after a backward pass.

    >>> from composer import Engine, Logger
    >>> state = State(model=torch.nn.Linear(1, 1, bias=False))
    >>> state.model.weight.grad = gradient = torch.ones(1, 1)
    >>> run = Run(state, Engine(state, logger := Logger(state)), logger, reuses_outputs=True)
    >>> clone_reused_gradients(run)
    >>> state.model.weight.grad, state.model.weight.grad is gradient
    (tensor([[1.]]), False)
    """
    if not run.reuses_outputs:
        return
    model, own = run.state.model, list[Tensor]()
    for parameter in (*model.parameters(), *unsharded_parameters(model)):
        gradient = parameter.grad
        if gradient is not None and not gradient.requires_grad:
            if gradient not in run.owned_gradients:  # in-place additions to a clone stay in its memory
                parameter.grad = gradient = gradient.clone()
            own.append(gradient)
    run.owned_gradients.replace(own)
