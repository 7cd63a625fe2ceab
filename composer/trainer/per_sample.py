"""Per-sample losses and gradient norms of a batch: l_i and |dl_i/dp| for each sample i, in one forward pass.

    L = sum_i w_i l_i,    w_i = n_i / sum_j n_j        with n_i the number of samples (1) or of targets of sample i

The loss of a sample is computed from its slice of the outputs of the full batch, so that normalization statistics and
dropout masks are those of the training step. Its gradient takes one backward pass through the same graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from composer import rng
from composer._containers import with_items
from composer.core.microbatches import split
from composer.core.types import Batch
from composer.dist.dtensor import joint_norm, norms
from composer.parallel.fsdp_units import has_fsdp_units
from composer.trainer.microbatch import named_losses
from composer.trainer.sampled_loss import Counts, SampledLoss, split_loss, weights_for

__all__ = ["ForwardContext", "PerSample", "measure", "per_sample"]

_IGNORED = -100


@dataclass(frozen=True)
class PerSample:
    """Loss and gradient norm of each sample of a batch.

    Attributes:
        losses: Loss of each sample, (N,), float64, on the CPU.
        gradient_norms: L2 norm of the gradient of each loss with respect to all trainable parameters, (N,), float64,
            on the CPU; None if it cannot be measured.
        weights: Weight of each sample in the loss of the batch, (N,), float64; they sum to 1, or are all 1 if the loss
            is a sum over samples.
        method: "sliced" if losses are computed from slices of the outputs of the full batch; "masked" if from the full
            batch with the labels of the other samples ignored; both are exact. "separate" if each sample was run on its
            own, with other batch statistics and other dropout masks.
        reason: Why the method is not "sliced", or why there are no gradient norms; empty otherwise.
        is_mean: Whether the weighted losses sum to the loss of the batch, up to rounding. It is False for losses that
            compare samples with each other, such as contrastive losses.

    >>> PerSample(torch.ones(2), torch.ones(2), torch.ones(2) / 2, "sliced").is_exact
    True
    """

    losses: Tensor
    gradient_norms: Tensor | None
    weights: Tensor
    method: Literal["sliced", "masked", "separate"]
    reason: str = ""
    is_mean: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether the losses are those of the training step."""
        return self.method != "separate" and self.is_mean


@dataclass
class ForwardContext:
    """The conditions of the forward pass of a training step, under which samples are run again if they have to be.

    Attributes:
        model: The model, with ``forward`` and ``loss``.
        autocast: Creates the autocast context, or None.
        random_state: Random state before the forward pass, from :func:`composer.rng.get_local_rng_state`.
        split: ``(batch, size) -> microbatches``.
        count: ``microbatches -> counts``: the number of samples or targets that the loss of each averages over; None
            tries both.
        scale: Factor of the losses in backward passes, so that small fp16 gradients do not underflow.

    >>> ForwardContext(torch.nn.Linear(1, 1)).scale
    1.0
    """

    model: nn.Module
    autocast: Callable[[], AbstractContextManager[Any]] | None = None
    random_state: dict[str, Any] = field(default_factory=rng.get_local_rng_state)
    split: Callable[[Batch, int], Sequence[Batch]] = split
    count: Counts | None = None
    scale: float = 1.0

    @contextlib.contextmanager
    def restored(self) -> Generator[None]:
        """Set the random state of the step; restore the current one and the buffers of the model afterwards."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with rng.preserve_rng_state():
            rng.set_local_rng_state(self.random_state)
            try:
                with self.autocast() if self.autocast is not None else nullcontext():
                    yield
            finally:
                with torch.no_grad():
                    for buffer, before in buffers:
                        # A graph may need unchanged ones for its backward pass.
                        if not torch.equal(buffer, before):
                            buffer.copy_(before)

    def loss_of(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, run forward.

        Args:
            batch: The batch.
        """
        model: Any = self.model
        with self.restored():
            return named_losses(model.loss(model(batch), batch))[0]

    def loss_of_sample(self, sample: Batch) -> Tensor:
        """Return the loss of a single sample, with the running statistics of BatchNorm: it has no statistics.

        Args:
            sample: A batch of one sample.
        """
        frozen = [module for module in self.model.modules() if isinstance(module, _BatchNorm) and module.training]
        for module in frozen:
            module.training = False
        try:
            return self.loss_of(sample)
        finally:
            for module in frozen:
                module.training = True


def per_sample(
    model: Any,
    batch: Batch,
    *,
    autocast: Callable[[], AbstractContextManager[Any]] | None = None,
    split_batch: Callable[[Batch, int], Sequence[Batch]] = split,
    count: Callable[[Batch], Any] | None = None,
) -> PerSample:
    """Return loss and gradient norm of each sample of a batch, in one forward and N backward passes.

    The model is left unchanged: its parameters, gradients and buffers, and the random state.

    Args:
        model: A model with ``forward(batch)`` and ``loss(outputs, batch)``, in the mode (train or eval) it is in.
        batch: The batch, on the device of the model.
        autocast: Creates the autocast context of the forward pass.
        split_batch: ``(batch, microbatch_size) -> microbatches``.
        count: Number of samples or targets that the loss of a batch averages over; by default, samples or
            ``"labels"`` that are not -100, whichever gives the loss of the batch.

    >>> from composer.models import ComposerClassifier
    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.eye_(layer.weight), torch.nn.init.zeros_(layer.bias)
    >>> model = ComposerClassifier(layer, num_classes=2)
    >>> found = per_sample(model, (torch.tensor([[5.0, 0.0], [5.0, 0.0]]), torch.tensor([0, 1])))
    >>> found.losses, found.method
    (tensor([0.0067, 5.0067], dtype=torch.float64), 'sliced')
    """
    counts = None if count is None else lambda parts: [count(part) for part in parts]
    context = ForwardContext(model, autocast, split=split_batch, count=counts)
    sampled = SampledLoss(model.loss, split_batch)
    with context.restored():
        loss = sampled(model(batch), batch)
        return measure(context, batch, sampled, loss)


def measure(context: ForwardContext, batch: Batch, sampled: SampledLoss, loss: Any) -> PerSample:
    """Return the per-sample losses and gradient norms of a forward pass that was made with a :class:`SampledLoss`.

    Call it before the backward pass of the step, whose graph it keeps.

    Args:
        context: The conditions of the forward pass, for models whose outputs cannot be sliced.
        batch: The batch.
        sampled: Has recorded the calls of the loss function.
        loss: The loss to differentiate, after algorithms changed it.

    >>> model, batch = torch.nn.Linear(2, 1), torch.randn(4, 2)
    >>> sampled = SampledLoss(lambda outputs, batch: outputs.mean())
    >>> measure(ForwardContext(model), batch, sampled, sampled(model(batch), batch)).weights
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    total = named_losses(loss)[0]
    split_up = split_loss(context.model, sampled, loss, total, context.count)
    problem, is_mean = split_up.problem, not split_up.losses or split_up.weights is not None
    if split_up.weights is not None:
        try:
            return _result(context, _differentiated(context, split_up.losses, retain=True), split_up.weights, "sliced")
        except RuntimeError as error:  # graphs that can be differentiated only once, as some compiled ones
            problem = f"the graph of the step cannot be differentiated repeatedly: {error}"
    reason = f"{problem[:1].upper()}{problem[1:]}."
    parts = _masked_parts(batch)
    if parts:
        found = _differentiated(context, map(context.loss_of, parts))
        weights = weights_for(context.model, parts, found[0], total, context.count)
        if weights is not None:
            return _result(context, found, weights, "masked", reason)
    parts = context.split(batch, 1)
    found = _differentiated(context, map(context.loss_of_sample, parts))
    weights = weights_for(context.model, parts, found[0], None, context.count)
    assert weights is not None
    reason += " Each sample was run on its own: without the batch statistics, dropout masks and methods of the step."
    return _result(context, found, weights, "separate", reason, is_mean)


def _masked_parts(batch: Batch) -> list[Batch]:
    """Return the batch once for each sample, with the labels of all others ignored; empty without integer labels."""
    labels = cast("Mapping[str, Any]", batch).get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim == 0:
        return []
    rows = torch.arange(len(labels), device=labels.device).view(-1, *[1] * (labels.ndim - 1))
    edits = ({"labels": labels.where(rows == row, _IGNORED)} for row in range(len(labels)))
    return [with_items(cast("Mapping[str, Any]", batch), edit) for edit in edits]


def _differentiated(
    context: ForwardContext, losses: Iterable[Tensor], *, retain: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the losses, (N,), and their gradient norms, (N,); None for norms that cannot be measured."""
    parameters = [parameter for parameter in context.model.parameters() if parameter.requires_grad]
    sharded = has_fsdp_units(context.model)
    values: list[float] = []
    found: list[float] = []
    with rng.preserve_rng_state():
        for loss in losses:
            values.append(loss.item())
            if sharded or not loss.requires_grad:
                found.append(0.0)
                continue
            # A larger loss keeps small fp16 gradients above the smallest number.
            scaled = loss * context.scale
            gradients = torch.autograd.grad(scaled, parameters, retain_graph=retain, allow_unused=True)
            used = [gradient for gradient in gradients if gradient is not None]
            found.append(joint_norm(norms(used)).item() / context.scale if used else 0.0)
    return torch.tensor(values, dtype=torch.float64), None if sharded else torch.tensor(found, dtype=torch.float64)


def _result(
    context: ForwardContext,
    found: tuple[Tensor, Tensor | None],
    weights: Tensor,
    method: Literal["sliced", "masked", "separate"],
    reason: str = "",
    is_mean: bool = True,
) -> PerSample:
    """Return the result, with 0 for samples without targets, whose loss is 0 / 0."""
    values, gradient_norms = (None if one is None else one.masked_fill(weights == 0, 0.0) for one in found)
    assert values is not None
    if gradient_norms is None:
        reason += (
            " Gradient norms are not measured: a backward pass with sharded parameters (FSDP) sums the gradients of "
            "all ranks, so that those of one row cannot be told apart. To have them, blame the same run with a script "
            "that does not shard (DDP), on as many ranks; it loads the same checkpoints."
        )
    return PerSample(values, gradient_norms, weights, method, reason.strip(), is_mean)
