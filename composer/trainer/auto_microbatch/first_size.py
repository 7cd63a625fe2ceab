"""Begin at the estimate: the first microbatch size of ``"auto"``, from the memory of passes with fake tensors.

    needed(s) = optimizer state + peak of a pass of s samples, with gradients if s < n
    s_0 = the first of n, ceil(n / 2), ceil(n / 4), ... with  needed(s) <= 1.02 * free memory

A size that is estimated to be slightly too large is tried nevertheless: a failed try costs a part of one step, a size
that is too small the speed of 64 batches. Memory grows linearly in s < n, so that two sizes give the others. What
methods allocate later, such as the average of EMA, is not known.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer import rng
from composer._module_hooks import module_hooks
from composer.core.data_spec import DataSpec
from composer.core.microbatch_sizes import halved
from composer.devices import MEMORY_STATISTICS
from composer.trainer.auto_microbatch.undo import ObjectSnapshot
from composer.trainer.compilation import is_compiled
from composer.trainer.microbatch import named_losses
from composer.trainer.run import Run

if TYPE_CHECKING:
    from composer.memory.fake_passes import FakePasses

__all__ = ["estimated_halvings", "free_memory"]

_log = logging.getLogger(__name__)

_MARGIN = 1.02
# Hooks of a model that only compute; others may keep what they see.
_SAFE_HOOKS = ("torch.", "composer.nn.", "composer.algorithms.", "composer.parallel.")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that tensors can still allocate on a device; None if it is not known, as on the CPU.

    Args:
        device: The device.

    >>> free_memory(torch.device("cpu"))
    """
    if device.type not in MEMORY_STATISTICS:
        return None
    module: Any = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    allocated, reserved = torch.accelerator.memory_allocated(device), torch.accelerator.memory_reserved(device)
    free += reserved - allocated  # cached blocks
    if device.type == "cuda":
        share = torch.cuda.get_per_process_memory_fraction(device)
        free = min(free, int(share * total) - allocated)
    return max(0, free)


def estimated_halvings(run: Run, samples: int) -> int:
    """Return how often to halve the batch until it is estimated to fit; 0 if that cannot be estimated.

    The model, the optimizers, the random generators and the memory of the device are not changed.

    Args:
        run: The run; ``state.batch`` is the batch.
        samples: Number of samples in the batch.
    """
    limit = free_memory(run.state.device.torch_device)
    if limit is None or samples < 2:
        return 0
    reason = _reason_against(run)
    if reason:
        _log.debug("The microbatch size begins at the whole batch: %s.", reason)
        return 0
    generators, model = rng.RNGSnapshot(), ObjectSnapshot([run.state.model], copies_tensors=False)
    passes: FakePasses | None = None
    try:
        passes = _passes(run)
        halvings = _estimate(run, passes, samples, limit)
    except Exception as error:  # whatever a model does that fake tensors cannot do
        _log.debug(
            "The microbatch size begins at the whole batch: its memory cannot be estimated: %s: %s",
            type(error).__name__,
            error,
        )
        halvings = 0
    finally:
        model.restore()
        generators.restore()
    if passes is not None:
        _remove_rest(passes)
    return halvings


def _reason_against(run: Run) -> str:
    """Return why the model is not run for an estimate; empty if it can be."""
    model = run.state.model
    if run.strategy.shards_weights or run.strategy.name not in ("single", "ddp"):
        return f"the memory of {run.strategy.name} is not estimated"
    if is_compiled(run) or any(map(_is_compiled, model.modules())):
        return "the model is compiled"
    if run.state.train_phase.loader.microbatch_transforms is not None:
        return "microbatch_transforms would run twice"
    tensors = [*model.parameters(), *model.buffers()]
    if any(type(each) not in (Tensor, nn.Parameter, nn.Buffer) for each in tensors):
        return "parameters are not ordinary tensors"
    for module in model.modules():
        for hook in itertools.chain(*module_hooks(module)):
            if not _module_of(hook).startswith(_SAFE_HOOKS):
                return f"{type(module).__name__} has hooks, which would run twice"
    return ""


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch._dynamo")


def _module_of(hook: Any) -> str:
    function = getattr(hook, "func", hook)  # of a partial
    return str(getattr(function, "__module__", None) or type(function).__module__) + "."


def _passes(run: Run) -> FakePasses:
    from composer.memory.cuda_kernel_memory import cuda_temporary_memory
    from composer.memory.fake_passes import FakePasses

    device = run.state.device.torch_device
    return FakePasses(
        run.state.model, run.state.batch, device, cuda_temporary_memory if device.type == "cuda" else None
    )


def _estimate(run: Run, passes: FakePasses, samples: int, limit: int) -> int:
    """Return how often to halve the batch until it fits."""
    spec: DataSpec = run.state.train_phase.loader
    limit += sum(each.grad.nbytes for each in run.state.model.parameters() if each.grad is not None)  # freed before
    loss = _loss_of(run)

    def needed(size: int) -> int:
        with passes.mode:
            batch = spec.__microbatches__(passes.batch, size, samples)[0]
        # The buckets of DDP are there, and the gradients of a whole batch are views of them.
        bucketed = run.strategy.module is not None and size == samples
        return passes.peak(loss, batch, gradients=size < samples or bucketed, counts_gradients=not bucketed)

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # they come again when the model trains
        if "torch._dynamo" in sys.modules:  # functions that a model compiles itself
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        limit -= sum(map(passes.optimizer_state, run.state.optimizers))
        return _halvings_that_fit(needed, samples, int(_MARGIN * limit))


def _remove_rest(passes: FakePasses) -> None:
    """Remove tensors that the passes left in caches outside of the model."""
    from composer.memory.cached_tensors import remove_from_caches

    if passes.left():
        gc.collect()
        remove_from_caches(passes.left())
    if passes.left():
        _log.warning(
            "The model keeps tensors from the estimate of its memory, which have no values. If training fails with an "
            "error about FakeTensor, set device_train_microbatch_size to a number."
        )


def _loss_of(run: Run) -> Callable[[Any], Tensor]:
    model: Any = run.state.model

    def loss(batch: Any) -> Tensor:
        with nullcontext() if run.autocast is None else run.autocast():
            found = model.loss(model(batch), batch)
        return named_losses(found)[0]

    return loss


def _halvings_that_fit(needed: Callable[[int], int], samples: int, limit: int) -> int:
    """Return how often to halve a batch until its memory is below a limit; 0 if no size is.

    Args:
        needed: Returns the bytes of a microbatch size.
        samples: Number of samples in the batch.
        limit: The bytes that there are.

    >>> _halvings_that_fit(lambda size: 100 + 10 * size, samples=64, limit=300)
    2
    >>> _halvings_that_fit(lambda size: 100 + 10 * size, samples=64, limit=1000)
    0
    """
    sizes = [samples]
    while sizes[-1] > 1:
        sizes.append(halved(sizes[-1]))
    known: list[int] = []
    for halvings, size in enumerate(sizes[:3]):
        known.append(needed(size))
        if known[-1] <= limit:
            return halvings
    if len(sizes) <= 3:
        return 0
    per_sample = (known[1] - known[2]) / (sizes[1] - sizes[2])
    fitting = (n for n, size in enumerate(sizes) if known[2] - per_sample * (sizes[2] - size) <= limit)
    return next(fitting, 0)
