"""ALiBi: attention that minds distance in place of positions, so that models read more than they trained on.

    softmax(q_i . k_j / sqrt(d) - m_h * |i - j|)            m_h = 2 ** (-8 h / H),  h = 1 ... H

Training on short sequences costs less, and the model goes on to longer ones.

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

from composer._text import positive
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
"""Changes a module or makes its replacement, from ``(module, module_index, max_sequence_length)``; None skips it."""


class PolicyRegistry(dict[type[nn.Module], AlibiReplacementFunction]):
    """What :func:`apply_alibi` does with modules of which class: class -> function.

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
        """Return a decorator for the function that deals with modules of some classes, see the class.

        The function is called with the module, the number of modules of its class before it, and
        ``max_sequence_length``. It returns the module, changed in place, or its replacement, or None to leave it.

        Args:
            classes: The classes; subclasses follow.

        Raises:
            ValueError: No class is given, or one has a function already.
            TypeError: A class is none of modules, or the function does not take these three arguments.
        """
        if not classes:
            raise ValueError("register needs at least one class of modules.")
        for cls in classes:
            if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
                raise TypeError(f"register takes subclasses of torch.nn.Module, but got {cls!r}.")
            if cls in self:
                raise ValueError(f"{cls.__name__} has a function already; to replace it, delete the entry first.")

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
"""The functions that :func:`apply_alibi` uses; add your own for modules of your own."""


def apply_alibi(
    model: ModuleT,
    max_sequence_length: int,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Give a model attention with linear biases in place of its positions, in place.

    - Models of ``transformers`` with learned positions (BERT, RoBERTa, ELECTRA, GPT-2, ...) lose their position
      embeddings, those with rotary ones (Llama, Mistral, Qwen, ...) rotate by nothing. The bias comes by the attention
      function ``"alibi"``, registered with transformers, that runs PyTorch's scaled dot product attention; mask and
      bias are made once for all layers. Caches for generation work; attention weights are not returned.
    - The self-attention of ``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer`` adds the bias. Remove
      the positions that you add in front of these yourself.
    - Modules of your own are changed by functions that you register. :func:`.add_alibi` serves an
      ``nn.MultiheadAttention``, :func:`.alibi_bias` any other attention:

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
        max_sequence_length: The longest sequence that it is to read in training or after, in tokens. Only models of
            the BERT kind have buffers of such a size; others read any length.
        optimizers: Those of the model; position embeddings that are gone leave them.

    Returns:
        The model itself, or its replacement if a function that you registered replaces it.

    Raises:
        ValueError: ``max_sequence_length`` is not positive.
        NotImplementedError: The model has cross-attention or relative positions of its own.

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """
    positive("max_sequence_length", max_sequence_length)
    before = dict.fromkeys(model.parameters())
    changed = [in_transformers.convert(part, max_sequence_length) for part in in_transformers.pretrained_models(model)]
    holder = nn.ModuleList([model])  # so that the model itself can be of a registered class
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
        gone, new = [p for p in before if p not in after], [p for p in after if p not in before]
        update_params_in_optimizer(gone, new, optimizers)
    if not (any(changed) or used):
        classes = ", ".join(sorted(cls.__name__ for cls in policy_registry))
        warnings.warn(
            f"ALiBi changes nothing: the model has no model of transformers with learned or rotary positions and "
            f"exchangeable attention, and no module of the classes {classes}, that does not have it already. Register "
            f"your own classes with composer.algorithms.alibi.policy_registry.",
            NoEffectWarning,
            stacklevel=2,
        )
    return model


class Alibi(Algorithm):
    """Applies :func:`apply_alibi` at the start, and trains on shorter sequences.

    Every sequence of a training batch is cut into ``1 / train_sequence_length_scaling`` sequences: (B, S) becomes
    (B / scaling, S * scaling), with no token lost. Evaluation sees whole ones.

    When to use it:
        To train a transformer on short sequences and run it on longer ones, and to shorten training where attention
        takes much of the time.

    When not to:
        Where positions must be exact rather than near or far, in models with cross-attention, and in fine-tuning of a
        model that was trained with other positions: it has to learn anew where tokens are.

    How to choose:
        ``max_sequence_length`` is the longest that evaluation will see. Keep at least about 256 tokens after scaling:
        0.25 from 1024, 0.5 from 512. Set 1 where a batch has labels for whole sequences, which cannot be cut.

    Cost:
        The bias is one tensor for all layers and an addition in the attention kernel. Cut sequences leave out all but
        a share ``train_sequence_length_scaling`` of the attention scores.

    Args:
        max_sequence_length: The longest sequence that the model is to read, in tokens.
        train_sequence_length_scaling: Length of training sequences as a share of those given, above 0 up to 1 (off);
            the length times this must be whole and divide it.

    Raises:
        ValueError: An argument is out of its range.

    >>> Alibi(max_sequence_length=1024)
    Alibi(max_sequence_length=1024, train_sequence_length_scaling=0.25)

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "SeqLengthWarmup": "both cut the sequences of a batch. Set train_sequence_length_scaling=1.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="Layers are changed before weights are divided, and all processes cut alike.",
    )

    def __init__(self, max_sequence_length: int, train_sequence_length_scaling: float = 0.25) -> None:
        self.max_sequence_length = positive("max_sequence_length", max_sequence_length)
        self.train_sequence_length_scaling = positive("train_sequence_length_scaling", train_sequence_length_scaling)
        if train_sequence_length_scaling == 1:
            self.__traits__ = replace(self.__traits__, conflicts_with={})
        if train_sequence_length_scaling > 1:
            raise ValueError(
                f"train_sequence_length_scaling must be at most 1, but got {train_sequence_length_scaling}: sequences "
                f"are cut, not joined."
            )

    @staticmethod
    def required_on_load() -> bool:
        """Yes: the model has no position embeddings any more."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Change the model."""
        apply_alibi(state.model, self.max_sequence_length, state.optimizers)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Cut the sequences."""
        if self.train_sequence_length_scaling == 1:
            return
        _, size = sequence_size(state.batch)
        length = round(size * self.train_sequence_length_scaling)
        if length < 1 or size % length or abs(length - size * self.train_sequence_length_scaling) > 1e-6 * size:
            raise ValueError(
                f"train_sequence_length_scaling={self.train_sequence_length_scaling} does not cut sequences of {size} "
                f"tokens into equal parts. Choose one that does, such as 1 / 2 ** n, or 1 to leave them whole."
            )
        state.batch = fold_sequences(state.batch, length)


@policy_registry.register(nn.TransformerEncoder)
def _use_no_nested_tensors(module: nn.TransformerEncoder, module_index: int, max_sequence_length: int) -> None:
    """Nested tensors are for the fused inference path, which knows no bias; the layers are changed on their own."""
    module.use_nested_tensor = False


@policy_registry.register(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
def _change_layer(module: Any, module_index: int, max_sequence_length: int) -> nn.Module | None:
    if has_alibi(module.self_attn):
        return None
    add_alibi(module.self_attn)
    return module
