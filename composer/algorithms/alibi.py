"""ALiBi (Attention with Linear Biases): replace position embeddings to extrapolate to longer sequences.

    softmax(q_i . k_j / sqrt(d) - m_h * |i - j|)            m_h = 2 ** (-8 h / H),  h = 1 ... H

Training on short sequences costs less, and the model extrapolates to longer ones at inference.

Paper: Train Short, Test Long, Press et al. 2022, https://arxiv.org/abs/2108.12409
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from torch import nn
from torch.optim import Optimizer

from composer._numbers import positive, whole_number
from composer.algorithms import _alibi_transformers as in_transformers
from composer.algorithms._sequences import fold_sequences, sequence_size
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.nn.alibi import add_alibi, has_alibi
from composer.surgery import ReplacementFunction, replace_module_classes, update_params_in_optimizer
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Alibi", "AlibiReplacementFunction", "PolicyRegistry", "apply_alibi", "policy_registry"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

AlibiReplacementFunction: TypeAlias = Callable[[Any, int, int], "nn.Module | None"]
"""``(module, module_index, max_sequence_length)`` -> the module changed in place, a replacement, or None to skip it."""


class PolicyRegistry(dict[type[nn.Module], AlibiReplacementFunction]):
    """Maps module classes to the functions with which :func:`apply_alibi` converts them.

    >>> class Positions(nn.Module):
    ...     pass
    >>> registry = PolicyRegistry()
    >>> @registry.register(Positions)
    ... def drop_positions(module, module_index, max_sequence_length):
    ...     return nn.Identity()
    >>> registry[Positions] is drop_positions
    True
    """

    def register(self, *classes: type[nn.Module]) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator that registers a function for some module classes; see the example of the class.

        The function is called with the module, the number of modules of its class before it, and
        ``max_sequence_length``. It returns the module changed in place, a replacement, or None to leave it unchanged.

        Args:
            classes: The module classes; subclasses are included.

        Raises:
            ValueError: No class is given, or a class is already registered.
            TypeError: A class is not a subclass of ``nn.Module``, or the function does not take these three arguments.
        """
        if not classes:
            raise ValueError("register() requires at least one module class.")
        for cls in classes:
            if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
                raise TypeError(f"register() requires subclasses of torch.nn.Module, but got {cls!r}.")
            if cls in self:
                raise ValueError(f"{cls.__name__} is already registered; delete its entry first to replace it.")

        def decorate(function: FunctionT) -> FunctionT:
            try:
                inspect.signature(function).bind(None, 0, 0)
            except TypeError:
                raise TypeError(
                    f"{function!r} must take (module, module_index, max_sequence_length), but takes "
                    f"{inspect.signature(function)}."
                ) from None
            self.update(dict.fromkeys(classes, function))
            return function

        return decorate


policy_registry = PolicyRegistry()
"""The functions that :func:`apply_alibi` uses; register functions for your own module classes here."""


def apply_alibi(
    model: ModuleT,
    max_sequence_length: int,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Replace the position embeddings of a model by linear attention biases (ALiBi), in place.

    - Models of ``transformers``: learned position embeddings (BERT, RoBERTa, ELECTRA, GPT-2, ...) are removed, and
      rotary embeddings (Llama, Mistral, Qwen, ...) become the identity. The bias is added by the attention function
      ``"alibi"``, which is registered with transformers and calls PyTorch's scaled dot product attention. Mask and bias
      are computed once for all layers. KV caches work; attention weights are not returned.
    - ``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer``: self-attention adds the bias. Remove the
      positional encoding that your model adds before these layers yourself.
    - Custom modules: register a function that converts them. Use :func:`.add_alibi` for an
      ``nn.MultiheadAttention`` and :func:`.alibi_bias` for any other attention:

      >>> class Block(nn.Module):
      ...     def __init__(self):
      ...         super().__init__()
      ...         self.attention = nn.MultiheadAttention(8, 2)
      >>> @policy_registry.register(Block)
      ... def change_block(module, module_index, max_sequence_length):
      ...     add_alibi(module.attention)
      ...     return module
      >>> has_alibi(apply_alibi(nn.Sequential(Block()), max_sequence_length=64)[0].attention)
      True

    Args:
        model: The model.
        max_sequence_length: The longest sequence in training or inference, in tokens. Only BERT-style models
            allocate buffers of this size; others accept any length.
        optimizers: The model's optimizers; removed position embeddings are removed from them too.

    Returns:
        The model itself, or its replacement if a registered function replaces it.

    Raises:
        ValueError: ``max_sequence_length`` is not positive.
        NotImplementedError: The model has cross-attention or uses relative position embeddings.

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """
    max_sequence_length = whole_number("max_sequence_length", max_sequence_length, minimum=1)
    before = dict.fromkeys(model.parameters())
    changed = [
        in_transformers.convert(pretrained, max_sequence_length)
        for pretrained in in_transformers.pretrained_models(model)
    ]
    holder = nn.ModuleList([model])  # lets the model itself be of a registered class
    used: list[nn.Module] = []

    def policy(function: AlibiReplacementFunction) -> ReplacementFunction:
        def change(module: nn.Module, module_index: int) -> nn.Module | None:
            new = function(module, module_index, max_sequence_length)
            used.extend([] if new is None else [new])
            return new

        return change

    replace_module_classes(holder, {cls: policy(function) for cls, function in policy_registry.items()}, optimizers)
    model = cast(ModuleT, holder[0])
    if optimizers is not None:
        after = dict.fromkeys(model.parameters())
        removed, new = [p for p in before if p not in after], [p for p in after if p not in before]
        update_params_in_optimizer(removed, new, optimizers)
    if not (any(changed) or used):
        classes = ", ".join(sorted(cls.__name__ for cls in policy_registry))
        warnings.warn(
            f"ALiBi has no effect: the model contains no transformers model with learned or rotary positions and "
            f"replaceable attention, and no unconverted module of the classes {classes}. Register custom classes with "
            f"composer.algorithms.alibi.policy_registry.",
            NoEffectWarning,
            stacklevel=2,
        )
    return model


class Alibi(Algorithm):
    """Applies :func:`apply_alibi` at initialization, and trains on shorter sequences.

    Every sequence of a training batch is split into ``1 / train_sequence_length_scaling`` sequences: (B, S) becomes
    (B / scaling, S * scaling), without losing tokens. Evaluation uses full sequences.

    When to use it:
        To train a transformer on short sequences and run it on longer ones, and to shorten training if attention
        takes much of the time.

    When not to:
        If exact positions matter, for models with cross-attention, and for fine-tuning a model that was pretrained
        with other positions: it must relearn positions.

    How to choose:
        Set ``max_sequence_length`` to the longest sequence in evaluation. Keep at least about 256 tokens after
        scaling: 0.25 from 1024, 0.5 from 512. Set 1 if labels belong to entire sequences, which cannot be split.

    Cost:
        The bias is one tensor for all layers and an addition in the attention kernel. With split sequences, attention
        computes only a fraction ``train_sequence_length_scaling`` of the scores.

    Args:
        max_sequence_length: The longest sequence that the model must handle, in tokens.
        train_sequence_length_scaling: Length of training sequences as a fraction of the input length, above 0 up to 1
            (off). The resulting length must be an integer that divides the input length.

    Raises:
        ValueError: An argument is out of range.

    >>> Alibi(max_sequence_length=1024)
    Alibi(max_sequence_length=1024, train_sequence_length_scaling=0.25)

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "SeqLengthWarmup": "both shorten the sequences of a batch. Set train_sequence_length_scaling=1.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="Layers are changed before parameters are sharded, and all ranks split sequences alike.",
        why_not_neutral="it changes the attention of the model",
    )

    def __init__(self, max_sequence_length: int, train_sequence_length_scaling: float = 0.25) -> None:
        self.max_sequence_length = whole_number("max_sequence_length", max_sequence_length, minimum=1)
        self.train_sequence_length_scaling = positive("train_sequence_length_scaling", train_sequence_length_scaling)
        if train_sequence_length_scaling == 1:
            self.__traits__ = replace(self.__traits__, conflicts_with={})
        if train_sequence_length_scaling > 1:
            raise ValueError(
                f"train_sequence_length_scaling must be at most 1, but got {train_sequence_length_scaling}: sequences "
                f"are split, not joined."
            )

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the model has no position embeddings anymore."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Change the model."""
        apply_alibi(state.model, self.max_sequence_length, state.optimizers)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Split the sequences."""
        if self.train_sequence_length_scaling == 1:
            return
        _, size = sequence_size(state.batch)
        length = round(size * self.train_sequence_length_scaling)
        if length < 1 or size % length or abs(length - size * self.train_sequence_length_scaling) > 1e-6 * size:
            raise ValueError(
                f"train_sequence_length_scaling={self.train_sequence_length_scaling} does not split sequences of "
                f"{size} tokens evenly. Use a value that does, such as 1 / 2 ** n, or 1 to disable splitting."
            )
        state.batch = fold_sequences(state.batch, length)


@policy_registry.register(nn.TransformerEncoder)
def _use_no_nested_tensors(module: nn.TransformerEncoder, module_index: int, max_sequence_length: int) -> None:
    """Disable nested tensors, which select a fused inference path without bias; the layers are changed separately."""
    module.use_nested_tensor = False


@policy_registry.register(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
def _change_layer(module: Any, module_index: int, max_sequence_length: int) -> nn.Module | None:
    if has_alibi(module.self_attn):
        return None
    add_alibi(module.self_attn)
    return module
