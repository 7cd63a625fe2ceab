"""Learning rates that stay right when a model is made wider (maximal update parametrisation).

    with n the width relative to a base model of the same shape otherwise:

                              input weights, biases, gains     hidden matrices     readout
    initial variance          as usual                         as usual            as usual / n
    rate of Adam              lr                               lr / n              lr / n
    rate of SGD               lr * n                           lr                  lr / n

With these the outputs and what each layer learns in a step neither vanish nor explode with the width, and so the best
rate of a narrow model, which is cheap to find, is that of the wide one. Paper: Tensor Programs V, Yang et al. 2022,
https://arxiv.org/abs/2203.03466
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer._text import one_of, positive

__all__ = ["mup_groups", "scale_readout"]


def mup_groups(
    model: nn.Module, base: nn.Module, lr: float, weight_decay: float = 0.0, optimizer: str = "adam"
) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups, with the rates that go with their width.

    Call :func:`scale_readout` after the weights are initialised, too. Attention that divides by the root of the size
    of a head is to divide by the size instead, if that is what grows.

    Args:
        model: The model.
        base: The same model at the width for which the rate was found; on the ``meta`` device it costs nothing.
        lr: That rate.
        weight_decay: Weight decay of matrices and kernels, in the optimizer's unit. :class:`.DecoupledAdamW` decays by
            it at any width; ``torch.optim.AdamW`` multiplies it with the rate, and so decays wide matrices less.
        optimizer: ``"adam"``, for all that divide by the size of the gradient, or ``"sgd"``.

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
    for part in _parts(model, base):
        if not part.param.requires_grad:
            continue
        rate = lr * (part.adam_factor if optimizer == "adam" else part.sgd_factor)
        decay = weight_decay if part.param.ndim > 1 else 0.0
        name = part.kind if part.growth == 1 else f"{part.kind} x{part.growth:g}"
        group = groups.setdefault(
            (name, rate, decay), {"params": list[Tensor](), "lr": rate, "weight_decay": decay, "name": name}
        )
        group["params"].append(part.param)
    return list(groups.values())


@torch.no_grad()
def scale_readout(model: nn.Module, base: nn.Module) -> list[str]:
    """Make the initial weights of the readout smaller by the root of the relative width, in place.

    For weights whose initial variance is that of the usual methods, inversely proportional to the inputs. Call it
    once, after these and before training; a loaded checkpoint holds scaled weights already.

    Args:
        model: The model.
        base: The same model at the width for which the learning rate was found.

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
    for part in _parts(model, base):
        if part.kind == "readout":
            part.param.mul_(part.growth**-0.5)
            found.append(part.name)
    return found


@dataclass(frozen=True)
class _Part:
    """A parameter and how it grows with the width.

    ``growth`` is that of the inputs of a hidden matrix or a readout, and of the outputs of the others.
    """

    name: str
    param: nn.Parameter
    kind: str
    growth: float

    @property
    def adam_factor(self) -> float:
        return 1 / self.growth if self.kind in ("hidden", "readout") else 1.0

    @property
    def sgd_factor(self) -> float:
        return {"hidden": 1.0, "readout": 1 / self.growth}.get(self.kind, self.growth)


def _parts(model: nn.Module, base: nn.Module) -> Iterator[_Part]:
    ours, theirs = dict(model.named_parameters()), dict(base.named_parameters())
    unlike = ours.keys() ^ theirs.keys()
    if unlike:
        raise ValueError(f"base must be the model at another width, but only one of them has {min(unlike)!r}.")
    tables = {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) in tables:
            raise ValueError(
                "An embedding is tied to the readout, whose rates and initial weights must differ in a wide model; "
                "untie them."
            )
    for name, param in ours.items():
        yield _part(name, param, theirs[name], is_table=id(param) in tables)


def _part(name: str, param: nn.Parameter, base: Tensor, is_table: bool) -> _Part:
    if param.ndim != base.ndim:
        raise ValueError(f"base must be the model at another width, but {name!r} has other dimensions there.")
    growth = [size / other for size, other in zip(param.shape, base.shape, strict=True)]
    grown = [place for place, factor in enumerate(growth) if factor != 1]
    if not grown:
        return _Part(name, param, "fixed", 1.0)
    if param.ndim < 2:
        return _Part(name, param, "vectors", growth[0])
    if max(grown) > 1:
        raise ValueError(f"base must be the model at another width, but the kernel of {name!r} has another size.")
    if is_table:
        return _Part(name, param, "input", growth[1])
    # Weights are (outputs, inputs, ...).
    if grown == [0]:
        return _Part(name, param, "input", growth[0])
    return _Part(name, param, "hidden" if 0 in grown else "readout", growth[1])
