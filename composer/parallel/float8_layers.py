"""Float8 training of linear layers with torchao: which layers are converted, and how.

Inputs, weights and gradients of a matrix product are scaled to the range of float8 and rounded; weights, gradients and
optimizer states keep their dtype, so checkpoints are those of any other precision.

    y = (round(s_x x) @ round(s_w W)^T) / (s_x s_w)          s = largest float8 / max(abs)
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from torch import nn

from composer._lazy import import_extra
from composer._text import one_of
from composer.precision import require_float8
from composer.surgery import replace_module_classes

__all__ = [
    "Float8Settings",
    "convert_to_float8",
    "has_transformer_engine_layers",
    "restore_linear_layers",
]

_log = logging.getLogger(__name__)

_PURPOSE: Final = "precision amp_fp8"
_MULTIPLE: Final = 16  # of both dimensions of a weight, as the matrix products of GPUs need
_RECIPES: Final = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


@dataclass(frozen=True)
class Float8Settings:
    """How linear layers are converted.

    Attributes:
        config: torchao's ``Float8LinearConfig``.
        module_filter_fn: ``(module, name) -> bool``, which of the layers that can be converted are; None leaves out the
            first and the last linear layer of the model.
    """

    config: Any
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], device_type: str) -> Float8Settings:
        """Return the settings of a ``precision_config``.

        Args:
            config: ``recipe``, ``module_filter_fn`` and the fields of ``Float8LinearConfig``.
            device_type: The type of the device, such as ``"cuda"``.

        Raises:
            ValueError: A key or a recipe is unknown, or the device has no float8 and ``emulate`` is not given.
            TypeError: The filter is not callable.
            RuntimeError: The GPU has no 8-bit arithmetic, and ``emulate`` is not given.
            MissingConditionalImportError: torchao is not installed.

        >>> Float8Settings.of({"emulate": True}, "cpu").config.emulate
        True
        """
        float8: Any = import_extra("torchao.float8", "quantize", _PURPOSE)
        values = dict(config)
        recipe = one_of("precision_config: recipe", values.pop("recipe", "tensorwise"), _RECIPES)
        chosen: Any = values.pop("module_filter_fn", None)
        if chosen is not None and not callable(chosen):
            raise TypeError(f"precision_config: module_filter_fn must be a function (module, name) -> bool: {chosen!r}")
        fields = [field.name for field in dataclasses.fields(float8.Float8LinearConfig)]
        for key in values:
            one_of("the key of precision_config", key, ("recipe", "module_filter_fn", *fields))
        if not values.get("emulate", False):
            require_float8(device_type)
        elif recipe == "rowwise_with_gw_hp" and device_type == "cpu":
            raise ValueError(
                f"precision_config: recipe={recipe!r} cannot be emulated on the CPU; use 'rowwise' or 'tensorwise'."
            )
        if values.get("enable_fsdp_float8_all_gather", False):
            raise ValueError(
                "precision_config: enable_fsdp_float8_all_gather=True is not supported, since the shards of weights in "
                "checkpoints would not be plain tensors; leave it out. FSDP all-gathers the weights in bfloat16."
            )
        try:
            made = dataclasses.replace(float8.Float8LinearConfig.from_recipe_name(recipe), **values)
        except AssertionError as error:  # this is how torchao rejects combinations
            raise ValueError(f"precision_config={dict(config)!r}: {error}") from error
        return cls(made, cast("Callable[[nn.Module, str], bool] | None", chosen))


def has_transformer_engine_layers(model: nn.Module) -> bool:
    """Return whether a model has layers of TransformerEngine, which compute in 8 bits by themselves.

    Args:
        model: The model.

    >>> has_transformer_engine_layers(nn.Linear(1, 1))
    False
    """
    return any(type(module).__module__.partition(".")[0] == "transformer_engine" for module in model.modules())


def convert_to_float8(model: nn.Module, settings: Float8Settings) -> list[str]:
    """Convert the linear layers of a model to float8, in place.

    Layers are ``torch.nn.Linear``, not of a subclass, whose numbers of inputs and outputs are divisible by 16. By
    default, the first and the last linear layer of the model stay as they are, since the outputs are sensitive to their
    rounding.

    Args:
        model: The model, before it is sharded.
        settings: Which layers are converted, and how.

    Returns:
        The names of the converted layers.

    Raises:
        ValueError: No layer can be converted.

    >>> model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 10))
    >>> convert_to_float8(model, Float8Settings.of({"emulate": True}, "cpu"))
    ['1']

    Paper: https://arxiv.org/abs/2209.05433 (Micikevicius et al. 2022)
    """
    float8: Any = import_extra("torchao.float8", "quantize", _PURPOSE)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = {name: module for name, module in linear.items() if _is_convertible(module)}
    if settings.module_filter_fn is None:
        ends = {*list(linear)[:1], *list(linear)[-1:]}
        chosen = {name: module for name, module in found.items() if name not in ends}
    else:
        chosen = {name: module for name, module in found.items() if settings.module_filter_fn(module, name)}
    converted = [name for name, module in linear.items() if _is_float8(module)]
    if not chosen and not converted:
        raise ValueError(
            f"precision='amp_fp8' converts no layer of {type(model).__name__}: of its {len(linear)} linear layers, "
            f"{len(found)} are torch.nn.Linear with both dimensions divisible by {_MULTIPLE}, and "
            + ("the first and the last are left out." if settings.module_filter_fn is None else "the filter left all.")
            + " Choose layers with precision_config={'module_filter_fn': lambda module, name: ...}, or use "
            "precision='amp_bf16'."
        )
    layers = set(chosen.values())

    def converted_layer(module: nn.Module, module_index: int) -> nn.Module | None:
        return float8.convert_to_float8_training(module, config=settings.config) if module in layers else None

    replace_module_classes(model, {nn.Linear: converted_layer})
    _log.info("amp_fp8: converted %d of %d linear layers: %s", len(chosen), len(linear), ", ".join(chosen))
    return list(chosen)


def restore_linear_layers(model: nn.Module) -> None:
    """Replace the float8 layers of a model by ``torch.nn.Linear`` with the same parameters, in place.

    Args:
        model: The model.

    >>> model = nn.Sequential(nn.Linear(16, 16))
    >>> every = {"emulate": True, "module_filter_fn": lambda module, name: True}
    >>> _ = convert_to_float8(model, Float8Settings.of(every, "cpu"))
    >>> restore_linear_layers(model)
    >>> type(model[0])
    <class 'torch.nn.modules.linear.Linear'>
    """
    if not any(map(_is_float8, model.modules())):
        return

    def linear(module: nn.Linear, module_index: int) -> nn.Module | None:
        if not _is_float8(module):
            return None
        made = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
        made.weight, made.bias = module.weight, module.bias
        return made

    replace_module_classes(model, {nn.Linear: linear})


def _is_convertible(module: nn.Linear) -> bool:
    # A subclass may compute something else; the output projection of nn.MultiheadAttention is never called.
    sizes = module.in_features, module.out_features
    return type(module) is nn.Linear and not any(size % _MULTIPLE for size in sizes)


def _is_float8(module: nn.Module) -> bool:
    loaded: Any = sys.modules.get("torchao.float8.float8_linear")
    return loaded is not None and isinstance(module, loaded.Float8Linear)
