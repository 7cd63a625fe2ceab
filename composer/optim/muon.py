"""Muon for hidden weight matrices combined with AdamW for all other parameters (``MuonAdamW``).

Muon orthogonalizes the momentum: it steps along the nearest matrix whose singular values are all one. So every
direction of a matrix learns at the same pace, with half of AdamW's optimizer memory. It is for matrices between hidden
layers; embeddings, readout and vectors stay with AdamW. Papers: Muon, Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/; learning rate and decay shared with AdamW: Liu et al. 2025,
https://arxiv.org/abs/2502.16982
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from composer._numbers import non_negative
from composer.optim.param_groups import match_names

__all__ = ["MuonAdamW", "hidden_matrices", "muon_and_adamw"]


def hidden_matrices(model: nn.Module, readout: str | Iterable[str] | None = None) -> list[nn.Parameter]:
    """Return the parameters for Muon: trainable, two-dimensional, neither embedding nor readout.

    Args:
        model: The model.
        readout: Names of the output matrices, or patterns such as ``"head.*"``; ``()`` for none. Default: the matrix
            of the last module that has one, which may be tied to an embedding.

    Raises:
        ValueError: A name does not exist.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 9))
    >>> [tuple(param.shape) for param in hidden_matrices(model)]
    [(8, 4), (4, 8)]
    """
    parameters = dict(model.named_parameters())
    owners = [(module, param) for module in model.modules() for param in module.parameters(recurse=False)]
    excluded = {id(param) for module, param in owners if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
    if readout is None:
        matrices = [
            param
            for module, param in owners
            if param.ndim == 2 and not isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        ]
        excluded |= {id(param) for param in matrices[-1:]}
    else:
        excluded |= {id(parameters[name]) for name in match_names("readout", readout, parameters)}
    return [p for p in parameters.values() if p.ndim == 2 and p.requires_grad and id(p) not in excluded]


def muon_and_adamw(
    model: nn.Module,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    *,
    adamw_lr: float | None = None,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    readout: str | Iterable[str] | None = None,
) -> list[Optimizer]:
    """Return two optimizers for a model: Muon for its hidden matrices and AdamW for its other parameters.

    Muon's updates are scaled to the size of AdamW's, so both use the same learning rate and decay. AdamW decays
    parameters with two or more dimensions. Each optimizer may have its schedule; for a single optimizer see
    :class:`MuonAdamW`.

    Args:
        model: The model.
        lr: Learning rate.
        weight_decay: Weight decay, multiplied by the learning rate as in ``torch.optim``.
        adamw_lr: Learning rate of AdamW. Default: ``lr``.
        momentum: Momentum factor of Muon.
        betas: Decay coefficients of AdamW's running averages.
        eps: Term added to the denominator in AdamW.
        readout: See :func:`hidden_matrices`.

    Raises:
        ValueError: The model has no hidden matrices, or only hidden matrices, or a number is out of range.

    >>> muon, adamw = muon_and_adamw(
    ...     nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 1)), lr=0.01
    ... )
    >>> [len(group["params"]) for optimizer in (muon, adamw) for group in optimizer.param_groups]
    [2, 1, 3]

    Paper: https://arxiv.org/abs/2502.16982 (Liu et al. 2025)
    """
    rate = lr if adamw_lr is None else adamw_lr
    non_negative("lr", lr)
    non_negative("adamw_lr", rate)
    matrices = hidden_matrices(model, readout)
    if not matrices:
        raise ValueError(
            f"model: {type(model).__name__} has no hidden matrix for Muon other than embeddings and readout. Use only "
            f"AdamW, or name the output matrices with readout=."
        )
    matrix_ids = {id(param) for param in matrices}
    rest = [param for param in model.parameters() if param.requires_grad and id(param) not in matrix_ids]
    groups = [
        {"params": [param for param in rest if param.ndim > 1], "weight_decay": weight_decay},
        {"params": [param for param in rest if param.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError(f"model: {type(model).__name__} has only hidden matrices. Use torch.optim.Muon instead.")
    muon = Muon(matrices, lr=lr, weight_decay=weight_decay, momentum=momentum, adjust_lr_fn="match_rms_adamw")
    return [muon, AdamW(groups, lr=rate, betas=betas, eps=eps)]


class MuonAdamW(Optimizer):
    """Both optimizers of :func:`muon_and_adamw` as one optimizer, with a single state and schedule.

    It has the parameter groups of both, with ``"muon": True`` in the first. A group that is added later goes to AdamW
    unless it sets ``"muon": True`` too; replaced layers keep the optimizer of their group.

    Args:
        model: The model.
        lr: Learning rate.
        weight_decay: Weight decay, multiplied by the learning rate as in ``torch.optim``.
        adamw_lr: Learning rate of AdamW. Default: ``lr``.
        momentum: Momentum factor of Muon.
        betas: Decay coefficients of AdamW's running averages.
        eps: Term added to the denominator in AdamW.
        readout: See :func:`hidden_matrices`.

    Raises:
        ValueError: The model has no hidden matrices, or only hidden matrices, or a number is out of range.

    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    >>> optimizer = MuonAdamW(model, lr=0.01)
    >>> [(group["muon"], len(group["params"])) for group in optimizer.param_groups]
    [(True, 2), (False, 1), (False, 3)]

    Paper: https://arxiv.org/abs/2502.16982 (Liu et al. 2025)
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        *,
        adamw_lr: float | None = None,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        readout: str | Iterable[str] | None = None,
    ) -> None:
        optimizers = muon_and_adamw(
            model,
            lr,
            weight_decay,
            adamw_lr=adamw_lr,
            momentum=momentum,
            betas=betas,
            eps=eps,
            readout=readout,
        )
        self._defaults = [optimizer.defaults for optimizer in optimizers]
        groups = [
            {**group, "muon": isinstance(optimizer, Muon)}
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        self._build_inner()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Args:
            param_group: A dict with ``params``, ``"muon": True`` for matrices to update with Muon, and group-specific
                options.

        Raises:
            ValueError: A parameter for Muon is not two-dimensional.
        """
        is_muon = param_group.setdefault("muon", False)
        for name, value in self._defaults[0 if is_muon else 1].items():
            param_group.setdefault(name, value)
        super().add_param_group(param_group)
        wrong = [tuple(param.shape) for param in param_group["params"] if is_muon and param.ndim != 2]
        if wrong:
            self.param_groups.pop()
            raise ValueError(f"Muon requires 2D parameters, but param_group has a parameter of shape {wrong[0]}.")
        if "_inner" in self.__dict__:
            self._build_inner()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling."""
        return {**super().__getstate__(), "_defaults": self._defaults}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._build_inner()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the parameters that have a gradient.

        Args:
            closure: Computes the gradients and returns the loss.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self._inner:
            optimizer.state = self.state  # may have been replaced
            optimizer.step()
        return loss

    def _build_inner(self) -> None:
        """Build both optimizers on the same group dicts and the same state."""
        self._inner: list[Optimizer] = []
        for optimizer_class, defaults in zip((Muon, AdamW), self._defaults, strict=True):
            groups = [group for group in self.param_groups if group["muon"] == (optimizer_class is Muon)]
            # Created as if unpickled, because the constructors reject an empty list of parameters.
            optimizer = optimizer_class.__new__(optimizer_class)
            optimizer.__setstate__({"defaults": defaults, "state": self.state, "param_groups": groups})
            self._inner.append(optimizer)
