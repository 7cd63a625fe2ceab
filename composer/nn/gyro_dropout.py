"""Gyro dropout: dropout with masks that are sampled once and stay active for many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from composer._numbers import in_unit_interval, whole_number

__all__ = ["GyroDropoutLayer"]


class GyroDropoutLayer(nn.Module):
    """Drops features with one of ``tau`` masks per group of examples, selected from ``sigma`` fixed masks.

        y = x * mask / (1 - p)

    The selection stays for ``period`` forward passes, so that each of the ``sigma`` subnetworks trains for long, and on
    different examples. Features are the last dimension of inputs (B, F) and (B, S, F), and the channels of (B, C, ...)
    with four dimensions or more; a mask is broadcast along the other dimensions. In evaluation it is the identity.

    Masks, selection and step count are buffers, so that training resumes exactly. The masks are sampled in the first
    forward pass, when the number of features is known. There is no device synchronization.

    Args:
        p: Probability of dropping a feature, from 0 up to but not including 1.
        sigma: Number of masks.
        tau: Number of masks active at once, at most ``sigma``. The batch is split evenly among them.
        period: Number of forward passes for which a selection stays.

    Raises:
        ValueError: An argument is out of range; in the forward pass, the number of features has changed.

    >>> layer = GyroDropoutLayer(p=0.5, sigma=4, tau=2, period=100)
    >>> y = layer(torch.ones(4, 8))
    >>> torch.equal(y[0], y[1]), sorted(set(y.flatten().tolist()))
    (True, [0.0, 2.0])

    Paper: https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
    """

    if TYPE_CHECKING:  # not supported by TorchScript
        masks: Tensor | None
        chosen: Tensor
        count: Tensor
        _period: Tensor

    __jit_unused_properties__ = ("period",)

    def __init__(self, p: float = 0.5, sigma: int = 256, tau: int = 16, period: int = 1) -> None:
        super().__init__()
        if in_unit_interval("p", p) == 1:
            raise ValueError("p must be less than 1: otherwise all features are dropped.")
        sigma, tau = whole_number("sigma", sigma, minimum=None), whole_number("tau", tau, minimum=None)
        if not 1 <= tau <= sigma:
            raise ValueError(f"tau must be from 1 to sigma, the number of masks; got tau={tau!r} and sigma={sigma!r}.")
        self.p, self.sigma, self.tau = p, sigma, tau
        # In a tensor, since torch compiles a model again for another number; training sets it at each start.
        self.register_buffer("_period", torch.zeros((), dtype=torch.long), persistent=False)
        self.period = period
        self.register_buffer("masks", None)
        self.register_buffer("chosen", torch.zeros(tau, dtype=torch.long))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_load_state_dict_pre_hook(_resize_masks)

    @property
    def period(self) -> int:
        """Number of forward passes for which a selection stays."""
        return self._num_passes

    @period.setter
    def period(self, period: int) -> None:
        self._num_passes = whole_number("period", period, minimum=1)
        self._period.fill_(self._num_passes)

    def forward(self, x: Tensor) -> Tensor:
        """Drop features.

        Args:
            x: Any shape (B, ...).
        """
        if not self.training or x.numel() == 0:
            return x
        if torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            raise RuntimeError("GyroDropout in TorchScript supports only evaluation: call eval() first.")
        else:
            return self._drop(x)

    def _drop(self, x: Tensor) -> Tensor:
        dim = x.ndim - 1 if x.ndim <= 3 else 1
        selected = self._select(x, x.shape[dim] if dim else 1)
        shape = [1] * x.ndim
        if dim:
            shape[dim] = x.shape[dim]
        if len(x) % self.tau == 0:
            # One mask per group, broadcast by the multiplication rather than expanded in memory.
            groups = x.unflatten(0, (self.tau, len(x) // self.tau))
            return (groups * selected.view(self.tau, *shape)).flatten(0, 1)
        rows = torch.arange(len(x), device=x.device) * self.tau // len(x)
        return x * selected.index_select(0, rows).view(len(x), *shape[1:])

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"p={self.p}, sigma={self.sigma}, tau={self.tau}, period={self.period}"

    @torch.no_grad()
    def _select(self, x: Tensor, features: int) -> Tensor:
        """Return the factors of the active masks, (tau, F), with a new selection at the end of a period."""
        if self.masks is None:
            self.masks = torch.rand(self.sigma, features, device=x.device) >= self.p
        if self.masks.shape[1] != features:
            raise ValueError(
                f"GyroDropout has masks for {self.masks.shape[1]} features, but the input has {features}. Use a "
                f"separate nn.Dropout for each position in the model."
            )
        # Sampled in each pass and used in few: cheaper than synchronizing to check the period.
        fresh = torch.rand(self.sigma, device=x.device).topk(self.tau).indices
        self.chosen.copy_(torch.where(self.count % self._period == 0, fresh, self.chosen))
        self.count.add_(1)
        return self.masks.index_select(0, self.chosen).to(x.dtype).mul_(1 / (1 - self.p))


def _resize_masks(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    """Allocate the masks that are about to be loaded."""
    saved = state_dict.get(f"{prefix}masks")
    if saved is not None and isinstance(module, GyroDropoutLayer):
        module.masks = torch.empty_like(saved, device=module.chosen.device)
