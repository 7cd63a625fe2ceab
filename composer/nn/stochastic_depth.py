"""Residual blocks that are left out at random in training.

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

Part = Callable[..., Tensor]


@dataclass(frozen=True)
class ResidualForm:
    """How a kind of residual block computes its output: ``activation(shortcut(x) + branch(x))``.

    Attributes:
        branch: Gets the block and its inputs, returns what is left out; None where the whole block is ``x + f(x)``.
        shortcut: Gets the block and its first input; None leaves that as it is.
        activation: Gets the block and the sum; None leaves that as it is.

    >>> ResidualForm().branch is None
    True
    """

    branch: Part | None = None
    shortcut: Part | None = None
    activation: Part | None = None


# By class, by its name, or by its module and name, so that no model library has to be imported. These are x + f(x).
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
    branch: Part | None = None,
    shortcut: Part | None = None,
    activation: Part | None = None,
) -> None:
    """Make a class of residual blocks known to stochastic depth.

    Blocks whose output is ``x + f(x)``, one tensor, such as those of pre-norm transformers, need no more than their
    class. For others say what the parts of ``activation(shortcut(x) + branch(x))`` are.

    Args:
        block: The class, or its name.
        branch: Gets the block and its inputs, returns what is left out; None where the whole block is ``x + f(x)``.
        shortcut: Gets the block and its first input; None leaves that as it is.
        activation: Gets the block and the sum; None leaves that as it is.

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
        raise ValueError("branch must be given where there is a shortcut or an activation.")
    _FORMS[block] = ResidualForm(branch, shortcut, activation)


class StochasticBlock(nn.Module):
    """What :func:`make_stochastic` adds to the class of a block.

    Attributes:
        block_drop_rate: Probability of being left out; not called ``drop_rate``, as many a block has one.
    """

    _residual_form = ResidualForm()
    _first_input = "input"
    __jit_unused_properties__ = ("block_drop_rate",)

    if TYPE_CHECKING:  # TorchScript cannot read it
        _stochastic_depth: _Depth
        _drop_rate: float
        _drops_samples: bool

    @property
    def block_drop_rate(self) -> float:
        """Probability of being left out."""
        return self._drop_rate

    @block_drop_rate.setter
    def block_drop_rate(self, rate: float) -> None:
        self._drop_rate = float(rate)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the block, or in training perhaps its shortcut only."""
        if not args and self._first_input in kwargs:
            args = (kwargs.pop(self._first_input),)
        return self._drawn(*args, **kwargs)

    def _drawn(self, input: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        """Compute it from its first input, on which the shortcut is; all others are the block's own affair."""
        depth = self._stochastic_depth
        if not self.training:
            return self._weighed(1 - self._drop_rate, input, *args, **kwargs)
        if depth.method == "sample":
            shape = (input.shape[0], *(1,) * (input.ndim - 1))
            kept = torch.rand(shape, device=input.device) >= self._drop_rate
            return self._weighed(kept.to(input.dtype), input, *args, **kwargs)
        kept = torch.rand(()) >= self._drop_rate if depth.kept is None else depth.kept
        if torch.compiler.is_compiling():
            # One graph, which computes the block in any case.
            return self._weighed(copied_to(kept, input.device, input.dtype), input, *args, **kwargs)
        if kept:  # on the host, so that no device is waited for
            return super().forward(input, *args, **kwargs)
        form = self._residual_form
        output = input if form.shortcut is None else form.shortcut(self, input)
        if form.activation is None:
            return output
        # Activations may work in place, and the input is not ours.
        return form.activation(self, output.clone() if output is input else output)

    def _weighed(self, weight: float | Tensor, input: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the block with a weight on its branch."""
        form = self._residual_form
        if form.branch is None:
            output = super().forward(input, *args, **kwargs)
            if not isinstance(output, (Tensor, fx.Proxy)):
                raise TypeError(
                    f"{type(self).__name__} must return one tensor x + f(x) to be left out at random, but returned "
                    f"{type(output).__name__}. Describe its parts with register_residual_block."
                )
            return torch.lerp(input, cast(Any, output), cast(Any, weight))
        shortcut = input if form.shortcut is None else form.shortcut(self, input)
        output = shortcut + form.branch(self, input, *args, **kwargs) * weight
        return output if form.activation is None else form.activation(self, output)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the block's own class, since the class made from it has no importable name."""
        bases = type(self).__mro__
        return _restore, (bases[bases.index(StochasticBlock) + 1],), self.__getstate__()


@dataclass
class _Depth:
    """What a stochastic block knows beside its weights."""

    method: str
    kept: Tensor | None = None
    """Whether it runs until the next decision, bool, on the host; None where each forward pass decides by itself."""


def make_stochastic(block: nn.Module, stochastic_method: str, drop_rate: float) -> StochasticBlock:
    """Let a residual block be left out at random, in place: it stays the same object with the same weights.

    Its class becomes one derived from its own class and :class:`StochasticBlock`.

    Args:
        block: The block, of a kind that is known, see :func:`register_residual_block`.
        stochastic_method: ``"block"`` leaves it out for a whole batch, ``"sample"`` for each sample by itself.
        drop_rate: Probability of being left out.

    Raises:
        ValueError: It is not known which part of the block is to be left out.

    >>> register_residual_block(nn.ReLU)  # max(x, 0) = x + max(-x, 0)
    >>> block = make_stochastic(nn.ReLU(), "block", drop_rate=1.0)
    >>> block(torch.tensor([-1.0])), block.eval()(torch.tensor([-1.0]))
    (tensor([-1.]), tensor([-1.]))
    """
    form = _form_of(block)
    block.__dict__["_stochastic_depth"] = _Depth(stochastic_method)
    # TorchScript sees plain numbers only.
    block.__dict__["_drop_rate"] = float(drop_rate)
    block.__dict__["_drops_samples"] = stochastic_method == "sample"
    block.__class__ = _stochastic_class(type(block), form)
    assert isinstance(block, StochasticBlock)
    return block


def decide_blocks(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """Decide for each block of a model that may be left out as a whole whether it runs, until the next decision.

    Without this each block decides anew whenever it is called. With generators of one seed all processes of a run
    decide alike, as they must where each holds a shard of the weights.

    Args:
        model: The model.
        generator: Source of random numbers, on the host; the default one if None.

    >>> decide_blocks(nn.Linear(1, 1))
    """
    blocks = [module for module in model.modules() if isinstance(module, StochasticBlock)]
    blocks = [block for block in blocks if block._stochastic_depth.method == "block"]
    draws = torch.rand(len(blocks), generator=generator).tolist()
    for block, draw in zip(blocks, draws, strict=True):
        depth = block._stochastic_depth
        if depth.kept is None:
            depth.kept = torch.tensor(True)
        depth.kept.fill_(draw >= block._drop_rate)


def _stochastic_class(cls: type[nn.Module], form: ResidualForm) -> type[nn.Module]:
    """The class of blocks of a class, always the same as long as that lives."""
    base = _StochasticResNetBlock if form is _RESNET else StochasticBlock
    for known in cls.__subclasses__():
        if known.__bases__ == (base, cls) and vars(known).get("_residual_form") is form:
            return known
    names = [*inspect.signature(cls.forward).parameters]
    members = {"_residual_form": form, "_first_input": names[1] if len(names) > 1 else "", "__module__": cls.__module__}
    return type(f"Stochastic{cls.__name__}", (base, cls), members)


def _restore(cls: type[nn.Module]) -> nn.Module:
    """A block without its state, for pickle and copy."""
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
            f"It is not known which part of a {type(block).__name__} is to be left out. If its output is x + f(x), "
            f"call composer.functional.register_residual_block({type(block).__name__}); else give that the parts."
        )
    return form


def _is_resnet_block(block: nn.Module) -> bool:
    """Whether a block has the layers of a residual block of torchvision or timm, and computes the same."""
    parts = ["conv1", "bn1", "conv2", "bn2", "downsample"]
    names = block._modules
    if not all(hasattr(block, part) for part in parts) or not ("relu" in names or {"act1", "act2"} <= names.keys()):
        return False
    if type(block).forward.__module__ == "torchvision.models.resnet":
        return True  # the definition, whose classes need no trial
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

    The parts are methods that ask for layers by ``hasattr``, which TorchScript answers as it compiles where nothing
    stands beside it in the condition.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Compute the block, or in training perhaps its shortcut only."""
        return self._as_formula(input) if torch.jit.is_scripting() else super().forward(input)  # pyright: ignore[reportPrivateImportUsage]

    def _as_formula(self, input: Tensor) -> Tensor:
        """What TorchScript compiles: each forward pass decides by itself."""
        shortcut = self._resnet_shortcut(input)
        if not self.training:
            return self._resnet_activation(shortcut + self._resnet_branch(input) * (1 - self._drop_rate))
        shape = [1] * input.ndim
        if self._drops_samples:
            shape[0] = input.shape[0]
        kept = torch.rand(shape, device=input.device) >= self._drop_rate
        return self._resnet_activation(shortcut + self._resnet_branch(input) * kept.to(input.dtype))

    def _resnet_branch(self: Any, x: Tensor) -> Tensor:
        """The layers of a basic or a bottleneck block up to the sum; the optional ones are timm's."""
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
