"""Maximal update parametrization (muP): learning rates that transfer from a narrow model to a wide one.

    with n the width relative to an otherwise identical base model:

                              input weights, biases, gains     hidden matrices     readout
    initial variance          as usual                         as usual            as usual / n
    learning rate of Adam     lr                               lr / n              lr / n
    learning rate of SGD      lr * n                           lr                  lr / n

With these, the outputs and the updates of each layer neither vanish nor explode with the width. So the best learning
rate of a narrow model, which is cheap to find, is also the best one of the wide model. Paper: Tensor Programs V, Yang
et al. 2022, https://arxiv.org/abs/2203.03466
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer._numbers import positive
from composer._text import one_of

__all__ = ["mup_groups", "scale_readout"]


def mup_groups(
    model: nn.Module, base: nn.Module, lr: float, weight_decay: float = 0.0, optimizer: str = "adam"
) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups, with learning rates scaled for their width.

    Also call :func:`scale_readout` after the weights are initialized. If the head size of attention grows, scale the
    attention scores by 1 / size instead of 1 / sqrt(size).

    Args:
        model: The model.
        base: The same model at the width for which the learning rate was tuned; on the ``meta`` device it costs
            nothing.
        lr: The learning rate tuned for ``base``.
        weight_decay: Weight decay of matrices and kernels, in the optimizer's convention. :class:`.DecoupledAdamW`
            applies it independently of the width; ``torch.optim.AdamW`` multiplies it by the learning rate, and so
            decays wide matrices less.
        optimizer: ``"adam"``, for all optimizers that normalize the gradient, or ``"sgd"``.

    Returns:
        Dicts with ``params``, ``lr``, ``weight_decay`` and ``name``.

    Raises:
        ValueError: The models differ in more than their width, or an embedding is tied to the readout.

    >>> def network(width):
    ...     return nn.Sequential(
    ...         nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 2)
    ...     )
    >>> groups = mup_groups(network(64), network(16), lr=0.1)
    >>> [(group["name"], group["lr"], len(group["params"])) for group in groups]
    [('input x4', 0.1, 1), ('vectors x4', 0.1, 2), ('hidden x4', 0.025, 1), ('readout x4', 0.025, 1), ('fixed', 0.1, 1)]

    Paper: https://arxiv.org/abs/2203.03466 (Yang et al. 2022)
    """
    one_of("optimizer", optimizer, ("adam", "sgd"))
    positive("lr", lr)
    groups: dict[tuple[str, float, float], dict[str, Any]] = {}
    for entry in _scaled_params(model, base):
        if not entry.param.requires_grad:
            continue
        rate = lr * (entry.adam_factor if optimizer == "adam" else entry.sgd_factor)
        decay = weight_decay if entry.param.ndim > 1 else 0.0
        name = entry.role if entry.growth == 1 else f"{entry.role} x{entry.growth:g}"
        group = groups.setdefault(
            (name, rate, decay), {"params": list[Tensor](), "lr": rate, "weight_decay": decay, "name": name}
        )
        group["params"].append(entry.param)
    return list(groups.values())


@torch.no_grad()
def scale_readout(model: nn.Module, base: nn.Module) -> list[str]:
    """Divide the initial weights of the readout by the square root of the relative width, in place.

    It assumes standard initialization, with a variance inversely proportional to the number of inputs. Call it once,
    after initialization and before training; a loaded checkpoint already holds scaled weights.

    Args:
        model: The model.
        base: The same model at the width for which the learning rate was tuned.

    Returns:
        The names of the weights.

    Raises:
        ValueError: The models differ in more than their width, or an embedding is tied to the readout.

    >>> model, base = nn.Linear(64, 2), nn.Linear(16, 2)
    >>> before = model.weight.detach().clone()
    >>> scale_readout(model, base)
    ['weight']
    >>> bool(torch.equal(model.weight, before / 2))
    True

    Paper: https://arxiv.org/abs/2203.03466 (Yang et al. 2022)
    """
    found: list[str] = []
    for entry in _scaled_params(model, base):
        if entry.role == "readout":
            entry.param.mul_(entry.growth**-0.5)
            found.append(entry.name)
    return found


@dataclass(frozen=True)
class _ScaledParam:
    """A parameter, its role, and its growth relative to the base model.

    ``growth`` is the ratio of the input sizes for a hidden matrix or readout, and of the output sizes otherwise.
    """

    name: str
    param: nn.Parameter
    role: str
    growth: float

    @property
    def adam_factor(self) -> float:
        return 1 / self.growth if self.role in ("hidden", "readout") else 1.0

    @property
    def sgd_factor(self) -> float:
        return {"hidden": 1.0, "readout": 1 / self.growth}.get(self.role, self.growth)


def _scaled_params(model: nn.Module, base: nn.Module) -> Iterator[_ScaledParam]:
    ours, theirs = dict(model.named_parameters()), dict(base.named_parameters())
    unlike = ours.keys() ^ theirs.keys()
    if unlike:
        raise ValueError(f"base must be the model at another width, but only one of them has {min(unlike)!r}.")
    tables = {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) in tables:
            raise ValueError(
                "An embedding is tied to the readout, but their learning rates and initial weights must differ in a "
                "wide model. Untie them."
            )
    for name, param in ours.items():
        yield _scaled_param(name, param, theirs[name], is_table=id(param) in tables)


def _scaled_param(name: str, param: nn.Parameter, base: Tensor, is_table: bool) -> _ScaledParam:
    if param.ndim != base.ndim:
        raise ValueError(
            f"base must be the model at another width, but {name!r} has a different number of dimensions there."
        )
    growth = [size / other for size, other in zip(param.shape, base.shape, strict=True)]
    grown_dims = [dim for dim, factor in enumerate(growth) if factor != 1]
    if not grown_dims:
        return _ScaledParam(name, param, "fixed", 1.0)
    if param.ndim < 2:
        return _ScaledParam(name, param, "vectors", growth[0])
    if max(grown_dims) > 1:
        raise ValueError(f"base must be the model at another width, but the kernel of {name!r} has a different size.")
    if is_table:
        return _ScaledParam(name, param, "input", growth[1])
    # Weights are (outputs, inputs, ...).
    if grown_dims == [0]:
        return _ScaledParam(name, param, "input", growth[0])
    return _ScaledParam(name, param, "hidden" if 0 in grown_dims else "readout", growth[1])
