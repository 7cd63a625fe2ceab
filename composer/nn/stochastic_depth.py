"""Stochastic depth: residual blocks that training skips at random.

    y = activation(shortcut(x) + b * branch(x))          b ~ Bernoulli(1 - p) in training, 1 - p in evaluation

Paper: Deep Networks with Stochastic Depth, Huang et al. 2016, https://arxiv.org/abs/1603.09382
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn

from composer._device_copies import copied_to

__all__ = ["ResidualForm", "StochasticBlock", "decide_blocks", "make_stochastic", "register_residual_block"]

BlockFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class ResidualForm:
    """How a class of residual blocks computes its output: ``activation(shortcut(x) + branch(x))``.

    Attributes:
        branch: Called with the block and its inputs, returns the skippable branch; None if the block is ``x + f(x)``.
        shortcut: Called with the block and its first input; None is the identity.
        activation: Called with the block and the sum; None is the identity.

    >>> ResidualForm().branch is None
    True
    """

    branch: BlockFunction | None = None
    shortcut: BlockFunction | None = None
    activation: BlockFunction | None = None


# By class, class name, or module and class name, so that no model library is imported. These compute x + f(x).
_FORMS: dict[type[nn.Module] | str, ResidualForm] = dict.fromkeys(
    (
        "timm.models.convnext.ConvNeXtBlock",
        "timm.models.mlp_mixer.MixerBlock",
        "timm.models.swin_transformer.SwinTransformerBlock",
        "timm.models.vision_transformer.Block",
        "torchvision.models.convnext.CNBlock",
        "torchvision.models.swin_transformer.SwinTransformerBlock",
        "torchvision.models.vision_transformer.EncoderBlock",
    ),
    ResidualForm(),
)


def register_residual_block(
    block: type[nn.Module] | str,
    branch: BlockFunction | None = None,
    shortcut: BlockFunction | None = None,
    activation: BlockFunction | None = None,
) -> None:
    """Register a class of residual blocks for stochastic depth.

    Blocks whose output is ``x + f(x)``, one tensor, such as those of pre-norm transformers, need only their class. For
    others, give the components of ``activation(shortcut(x) + branch(x))``.

    Args:
        block: The class, or its name.
        branch: Called with the block and its inputs, returns the skippable branch; None if the block is ``x + f(x)``.
        shortcut: Called with the block and its first input; None is the identity.
        activation: Called with the block and the sum; None is the identity.

    Raises:
        ValueError: There is a shortcut or an activation, but no branch.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body, self.act = nn.Linear(8, 8), nn.ReLU()
    ...
    ...     def forward(self, x):
    ...         return self.act(x + self.body(x))
    >>> register_residual_block(
    ...     Block, branch=lambda block, x: block.body(x), activation=lambda block, y: block.act(y)
    ... )
    """
    if branch is None and (shortcut is not None or activation is not None):
        raise ValueError("branch is required if shortcut or activation is given.")
    _FORMS[block] = ResidualForm(branch, shortcut, activation)


class StochasticBlock(nn.Module):
    """Mixin that :func:`make_stochastic` adds to the class of a block.

    Attributes:
        block_drop_rate: Probability of skipping; not called ``drop_rate``, an attribute that many blocks have.
    """

    _residual_form = ResidualForm()
    _first_input = "input"
    __jit_unused_properties__ = ("block_drop_rate",)

    if TYPE_CHECKING:  # not supported by TorchScript
        _stochastic_depth: _Depth
        _drop_rate: float
        _drops_samples: bool

    @property
    def block_drop_rate(self) -> float:
        """Probability of skipping the block."""
        return self._drop_rate

    @block_drop_rate.setter
    def block_drop_rate(self, rate: float) -> None:
        self._drop_rate = float(rate)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the block, or in training randomly only its shortcut."""
        if not args and self._first_input in kwargs:
            args = (kwargs.pop(self._first_input),)
        return self._forward_stochastic(*args, **kwargs)

    def _forward_stochastic(self, input: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the block from its first input, which the shortcut uses; other inputs are passed to the branch."""
        depth = self._stochastic_depth
        if not self.training:
            return self._forward_weighted(1 - self._drop_rate, input, *args, **kwargs)
        if depth.method == "sample":
            shape = (input.shape[0], *(1,) * (input.ndim - 1))
            kept = torch.rand(shape, device=input.device) >= self._drop_rate
            return self._forward_weighted(kept.to(input.dtype), input, *args, **kwargs)
        kept = torch.rand(()) >= self._drop_rate if depth.kept is None else depth.kept
        if torch.compiler.is_compiling():
            # One graph, which always computes the block.
            return self._forward_weighted(copied_to(kept, input.device, input.dtype), input, *args, **kwargs)
        if kept:  # on the host, so no device synchronization
            return super().forward(input, *args, **kwargs)
        form = self._residual_form
        output = input if form.shortcut is None else form.shortcut(self, input)
        if form.activation is None:
            return output
        # The activation may be in-place, and must not modify the input.
        return form.activation(self, output.clone() if output is input else output)

    def _forward_weighted(self, weight: float | Tensor, input: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the block with a weight on its branch."""
        form = self._residual_form
        if form.branch is None:
            output = super().forward(input, *args, **kwargs)
            if not isinstance(output, (Tensor, fx.Proxy)):
                raise TypeError(
                    f"{type(self).__name__} must return one tensor x + f(x) to be skipped at random, but returned "
                    f"{type(output).__name__}. Describe its components with register_residual_block."
                )
            return torch.lerp(input, cast(Any, output), cast(Any, weight))
        shortcut = input if form.shortcut is None else form.shortcut(self, input)
        output = shortcut + form.branch(self, input, *args, **kwargs) * weight
        return output if form.activation is None else form.activation(self, output)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the original class, since the derived class has no importable name."""
        bases = type(self).__mro__
        return _restore, (bases[bases.index(StochasticBlock) + 1],), self.__getstate__()


@dataclass
class _Depth:
    """State of a stochastic block in addition to its parameters."""

    method: str
    kept: Tensor | None = None
    """Whether it runs until the next decision, bool, on the host; None if each forward pass samples."""


def make_stochastic(block: nn.Module, stochastic_method: str, drop_rate: float) -> StochasticBlock:
    """Make a residual block stochastic, in place: it stays the same object with the same parameters.

    Its class becomes a subclass of its original class and :class:`StochasticBlock`.

    Args:
        block: The block, of a registered class, see :func:`register_residual_block`.
        stochastic_method: ``"block"`` skips it for an entire batch, ``"sample"`` for each sample independently.
        drop_rate: Probability of skipping.

    Raises:
        ValueError: The structure of the block is unknown.

    >>> register_residual_block(nn.ReLU)  # max(x, 0) = x + max(-x, 0)
    >>> block = make_stochastic(nn.ReLU(), "block", drop_rate=1.0)
    >>> block(torch.tensor([-1.0])), block.eval()(torch.tensor([-1.0]))
    (tensor([-1.]), tensor([-1.]))
    """
    form = _form_of(block)
    block.__dict__["_stochastic_depth"] = _Depth(stochastic_method)
    # TorchScript supports only plain numbers.
    block.__dict__["_drop_rate"] = float(drop_rate)
    block.__dict__["_drops_samples"] = stochastic_method == "sample"
    block.__class__ = _stochastic_class(type(block), form)
    assert isinstance(block, StochasticBlock)
    return block


def decide_blocks(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Sample for each block with method ``"block"`` whether it runs, until the next call.

    Without this, each block samples whenever it is called. With generators of the same seed, all ranks decide alike,
    as they must if parameters are sharded: otherwise a rank would hang in the all-gather of a block that others skip.

    Args:
        model: The model.
        generator: CPU random generator; the default one if None.

    >>> decide_blocks(nn.Linear(1, 1))
    """
    blocks = [module for module in model.modules() if isinstance(module, StochasticBlock)]
    blocks = [block for block in blocks if block._stochastic_depth.method == "block"]
    samples = torch.rand(len(blocks), generator=generator).tolist()
    for block, sample in zip(blocks, samples, strict=True):
        depth = block._stochastic_depth
        if depth.kept is None:
            depth.kept = torch.tensor(True)
        depth.kept.fill_(sample >= block._drop_rate)


def _stochastic_class(cls: type[nn.Module], form: ResidualForm) -> type[nn.Module]:
    """Return the stochastic subclass of a class, cached as long as the class lives."""
    base = _StochasticResNetBlock if form is _RESNET else StochasticBlock
    for existing in cls.__subclasses__():
        if existing.__bases__ == (base, cls) and vars(existing).get("_residual_form") is form:
            return existing
    names = [*inspect.signature(cls.forward).parameters]
    members = {"_residual_form": form, "_first_input": names[1] if len(names) > 1 else "", "__module__": cls.__module__}
    return type(f"Stochastic{cls.__name__}", (base, cls), members)


def _restore(cls: type[nn.Module]) -> nn.Module:
    """Return a block without its state, for pickle and copy."""
    block = cls.__new__(_stochastic_class(cls, _registered(cls) or _RESNET))
    assert isinstance(block, nn.Module)
    return block


def _registered(cls: type) -> ResidualForm | None:
    for base in cls.__mro__:
        for key in (base, f"{base.__module__}.{base.__qualname__}", base.__name__):
            if key in _FORMS:
                return _FORMS[key]
    return None


def _form_of(block: nn.Module) -> ResidualForm:
    form = _registered(type(block))
    if form is None and _is_resnet_block(block):
        form = _RESNET
    if form is None:
        raise ValueError(
            f"The structure of {type(block).__name__} is unknown, so it cannot be skipped. If its output is x + f(x), "
            f"call composer.functional.register_residual_block({type(block).__name__}); else also pass its components."
        )
    return form


def _is_resnet_block(block: nn.Module) -> bool:
    """Return whether a block has the layers of a residual block of torchvision or timm, and computes the same."""
    required = ["conv1", "bn1", "conv2", "bn2", "downsample"]
    names = block._modules
    if not all(hasattr(block, name) for name in required) or not ("relu" in names or {"act1", "act2"} <= names.keys()):
        return False
    if type(block).forward.__module__ == "torchvision.models.resnet":
        return True  # the reference implementation, which needs no check
    weight = next(block.parameters())
    if weight.is_meta:
        return True
    probe = torch.linspace(-1, 1, weight.shape[1] * 64, device=weight.device).to(weight.dtype)
    modes = {module: module.training for module in block.modules()}
    block.eval()
    try:
        with torch.no_grad():
            probe = probe.view(1, -1, 8, 8)
            expected = block(probe)
            found = _RESNET.shortcut(block, probe) + _RESNET.branch(block, probe)
            return torch.allclose(expected, _RESNET.activation(block, found), rtol=1e-2, atol=1e-3)
    finally:
        for module, training in modes.items():
            module.training = training


class _StochasticResNetBlock(StochasticBlock):
    """A stochastic block with the layers of torchvision's or timm's, which TorchScript can compile.

    The methods test for layers with ``hasattr``, which TorchScript evaluates at compile time if it is the entire
    condition.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Compute the block, or in training randomly only its shortcut."""
        return self._as_formula(input) if torch.jit.is_scripting() else super().forward(input)  # pyright: ignore[reportPrivateImportUsage]

    def _as_formula(self, input: Tensor) -> Tensor:
        """Compute the block in TorchScript: each forward pass samples."""
        shortcut = self._resnet_shortcut(input)
        if not self.training:
            return self._resnet_activation(shortcut + self._resnet_branch(input) * (1 - self._drop_rate))
        shape = [1] * input.ndim
        if self._drops_samples:
            shape[0] = input.shape[0]
        kept = torch.rand(shape, device=input.device) >= self._drop_rate
        return self._resnet_activation(shortcut + self._resnet_branch(input) * kept.to(input.dtype))

    def _resnet_branch(self: Any, x: Tensor) -> Tensor:
        """Compute the layers of a basic or a bottleneck block up to the sum; the optional ones are timm's."""
        x = self.bn1(self.conv1(x))
        if hasattr(self, "conv3"):
            x = self.act1(x) if hasattr(self, "act1") else self.relu(x)
            x = self.bn2(self.conv2(x))
        if hasattr(self, "drop_block"):  # noqa: SIM102
            if self.drop_block is not None:
                x = self.drop_block(x)
        if hasattr(self, "relu"):
            x = self.relu(x)
        elif hasattr(self, "conv3"):
            x = self.act2(x)
        else:
            x = self.act1(x)
        if hasattr(self, "aa"):  # noqa: SIM102
            if self.aa is not None:
                x = self.aa(x)
        x = self.bn3(self.conv3(x)) if hasattr(self, "conv3") else self.bn2(self.conv2(x))
        if hasattr(self, "se"):  # noqa: SIM102
            if self.se is not None:
                x = self.se(x)
        if hasattr(self, "drop_path"):  # noqa: SIM102
            if self.drop_path is not None:
                x = self.drop_path(x)
        return x

    def _resnet_shortcut(self: Any, x: Tensor) -> Tensor:
        return x if self.downsample is None else self.downsample(x)

    def _resnet_activation(self: Any, x: Tensor) -> Tensor:
        if hasattr(self, "relu"):
            return self.relu(x)
        elif hasattr(self, "conv3"):
            return self.act3(x)
        else:
            return self.act2(x)


_RESNET: Any = ResidualForm(
    _StochasticResNetBlock._resnet_branch,
    _StochasticResNetBlock._resnet_shortcut,
    _StochasticResNetBlock._resnet_activation,
)
