"""Float8 training of linear layers with torchao: which layers are converted, and how.

Inputs, weights and gradients of a matrix product are scaled to the range of float8 and rounded; weights, gradients and
optimizer states keep their dtype, so checkpoints are those of any other precision.

    y = (round(s_x x) @ round(s_w W)^T) / (s_x s_w)          s = largest float8 / max(abs)
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from torch import nn

from composer._lazy import import_extra
from composer._text import one_of
from composer.precision import require_float8

__all__ = [
    "Float8Settings",
    "convert_to_float8",
    "converted_layers",
    "has_transformer_engine_layers",
    "restore_linear_layers",
]

_log = logging.getLogger(__name__)

_PURPOSE: Final = "precision amp_fp8"
_MULTIPLE: Final = 16  # of both dimensions of a weight, as the matrix products of GPUs need
_RECIPES: Final = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
_MARK: Final = "_converted_for_amp_fp8"  # of layers that were not converted by the user


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
            TypeError: The filter is not callable, or a value that must be True or False is not.
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
        defaults = {field.name: field.default for field in dataclasses.fields(float8.Float8LinearConfig)}
        for key, value in values.items():
            one_of("the key of precision_config", key, ("recipe", "module_filter_fn", *defaults))
            if isinstance(defaults[key], bool) and not isinstance(value, bool):
                raise TypeError(f"precision_config: {key} must be True or False, but is {value!r}.")
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

    Layers are ``torch.nn.Linear``, not of a subclass or with a ``forward`` of their own, whose numbers of inputs and
    outputs are divisible by 16. By default, the first and the last linear layer of the model stay as they are, since
    the outputs are sensitive to their rounding. Layers that an earlier call converted get the new settings.

    A converted layer is the same object, of another class, so that its hooks and attributes stay.

    Args:
        model: The model, before it is sharded.
        settings: Which layers are converted, and how.

    Returns:
        The names of the converted layers.

    Raises:
        ValueError: No layer can be converted, or a layer has an attribute with a name that the float8 layer uses.

    >>> model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 10))
    >>> convert_to_float8(model, Float8Settings.of({"emulate": True}, "cpu"))
    ['1']

    Paper: https://arxiv.org/abs/2209.05433 (Micikevicius et al. 2022)
    """
    _restore(converted_layers(model))
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
    cls, attributes = _float8_class(settings.config)
    for name, module in chosen.items():
        if taken := attributes.keys() & vars(module).keys():
            raise ValueError(
                f"precision='amp_fp8' cannot convert the layer {name}: it has the attribute {min(taken)!r}, which the "
                f"float8 layer of torchao uses. Rename it, or leave the layer out with "
                f"precision_config={{'module_filter_fn': lambda module, name: ...}}."
            )
    for module in chosen.values():
        vars(module).update(attributes)
        # A new layer would lose the hooks, and references of the user to the layer would not be to that of the model.
        module.__class__ = cls
    _log.info("amp_fp8: converted %d of %d linear layers: %s", len(chosen), len(linear), ", ".join(chosen))
    return list(chosen)


def converted_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model that :func:`convert_to_float8` has converted.

    Args:
        model: The model.

    >>> converted_layers(nn.Linear(16, 16))
    []
    """
    return [module for module in model.modules() if _MARK in vars(module)]


def restore_linear_layers(model: nn.Module) -> None:
    """Make the float8 layers of a model ``torch.nn.Linear`` again, in place; layers of sharded models stay.

    ``Trainer(precision="amp_fp8")`` leaves its float8 layers in the model. Call this to use the model in another
    precision afterwards.

    Args:
        model: The model.

    >>> model = nn.Sequential(nn.Linear(16, 16))
    >>> every = {"emulate": True, "module_filter_fn": lambda module, name: True}
    >>> _ = convert_to_float8(model, Float8Settings.of(every, "cpu"))
    >>> restore_linear_layers(model)
    >>> type(model[0])
    <class 'torch.nn.modules.linear.Linear'>
    """
    _restore([module for module in model.modules() if _is_float8(module)])


def _restore(layers: Sequence[nn.Module]) -> None:
    if not layers:
        return
    cls, attributes = _float8_class(None)
    for layer in layers:
        if type(layer) is cls:  # fully_shard derives a class of its own
            for name in attributes:
                vars(layer).pop(name, None)
            layer.__class__ = nn.Linear


def _float8_class(config: Any) -> tuple[type[nn.Linear], dict[str, Any]]:
    """Return the class of float8 layers, and the attributes that it has beyond those of ``nn.Linear``."""
    float8: Any = import_extra("torchao.float8", "quantize", _PURPOSE)
    plain = nn.Linear(_MULTIPLE, _MULTIPLE, device="meta")
    names = set(vars(plain))
    made: nn.Linear = float8.convert_to_float8_training(plain, config=config)
    return type(made), {_MARK: True, **{name: value for name, value in vars(made).items() if name not in names}}


def _is_convertible(module: nn.Linear) -> bool:
    # A subclass may compute something else; the output projection of nn.MultiheadAttention is never called.
    sizes = module.in_features, module.out_features
    is_plain = type(module) is nn.Linear and "forward" not in vars(module)
    return is_plain and not any(size % _MULTIPLE for size in sizes)


def _is_float8(module: nn.Module) -> bool:
    loaded: Any = sys.modules.get("torchao.float8.float8_linear")
    return loaded is not None and isinstance(module, loaded.Float8Linear)
