"""Load saved weights into a model: compare names and shapes first, and name every mismatch in one error."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from composer._text import first_of
from composer.checkpoint.legacy_formats import CONSTANTS
from composer.checkpoint.on_all_ranks import BroadcastTensor
from composer.checkpoint.sharded_reader import TensorMetadata
from composer.warnings import ComposerWarning

__all__ = ["check_shapes", "load_weights"]

# What torch.compile(module) puts before the names of the module's weights.
_COMPILED = "_orig_mod."


def check_shapes(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Raise if the shapes of weights differ from those of the model; the error names all of them.

    Args:
        model: The model.
        saved: The weights by name; they need not be loaded yet.

    Raises:
        RuntimeError: A shape differs, or a value is not a tensor.

    >>> check_shapes(nn.Linear(1, 1), {"weight": torch.ones(2, 1)})
    Traceback (most recent call last):
    RuntimeError: Error(s) in loading state_dict for Linear: the checkpoint is of another model: size mismatch for \
weight: (2, 1) in the checkpoint and (1, 1) in the model.
    """
    present = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    shapes = [
        f"size mismatch for {name}: {tuple(value.shape)} in the checkpoint and {tuple(present[name].shape)} "
        f"in the model"
        for name, value in saved.items()
        if isinstance(value, (Tensor, TensorMetadata, BroadcastTensor))
        and name in present
        and not is_lazy(present[name])
        if tuple(value.shape) != present[name].shape
    ]
    shapes += [
        f"{name} is {type(value).__name__} in the checkpoint, but a tensor in the model"
        for name, value in saved.items()
        if name in present and not isinstance(value, (Tensor, TensorMetadata, BroadcastTensor))
    ]
    if shapes:
        raise RuntimeError(f"{_begin(model)}: {first_of(shapes)}.")


def load_weights(
    model: nn.Module, weights: dict[str, Any], *, strict: bool = True, excluded: Collection[str] = ()
) -> None:
    """Load weights by name; an error or a warning names all mismatches.

    Args:
        model: The model.
        weights: The weights by name.
        strict: Whether mismatched names are an error, rather than a warning.
        excluded: Names of weights that are excluded from loading, so that they may be missing.

    Raises:
        RuntimeError: Names differ and ``strict`` is set.

    >>> model = nn.Linear(1, 1)
    >>> load_weights(model, {"weight": torch.ones(1, 1)}, excluded=["bias"])
    >>> model.weight.item()
    1.0
    """
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if name not in excluded]
    unexpected = [name for name in unexpected if not name.endswith(CONSTANTS)]
    if not missing and not unexpected:
        return
    differences = "; ".join(
        [
            *([f"the checkpoint lacks {first_of(missing)}"] if missing else []),
            *([f"the model lacks {first_of(unexpected)}"] if unexpected else []),
        ]
    )
    if strict:
        remedy = _remedy_of_wrapped(missing, unexpected) or (
            "Load into the same model, or use load_strict_model_weights=False to load only the weights that both have."
        )
        raise RuntimeError(f"{_begin(model)}: {differences}. {remedy}")
    warnings.warn(f"Not all weights were loaded: {differences}.", ComposerWarning, stacklevel=4)


def _remedy_of_wrapped(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return what to do if the names differ by the prefix of torch.compile only; empty if they differ otherwise."""
    plain = [{name.replace(_COMPILED, "") for name in names} for names in (missing, unexpected)]
    if plain[0] != plain[1]:
        return ""
    return (
        f"The names differ by {_COMPILED!r}, which torch.compile(part) adds to those of the part. Load into "
        "a model with the same parts wrapped; or do not wrap parts, but compile with Trainer(compile_config={}) or "
        "part.compile(), which keep the names."
    )


def _begin(model: nn.Module) -> str:
    # The message begins as torch's, which scripts search for.
    return f"Error(s) in loading state_dict for {type(model).__name__}: the checkpoint is of another model"
