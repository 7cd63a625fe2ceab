"""Names of weights that do not match: what the error says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from composer.checkpoint.model_weights import load_weights
from composer.models import ComposerClassifier


def network(*, is_wrapped: bool) -> ComposerClassifier:
    part: Any = nn.Linear(2, 3)
    return ComposerClassifier(torch.compile(part, backend="eager") if is_wrapped else part, 3)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_names_of_a_wrapped_part_say_what_to_do(is_wrapped: bool) -> None:
    saved = network(is_wrapped=not is_wrapped).state_dict()
    with pytest.raises(
        RuntimeError, match=r"names differ by '_orig_mod\.'.*compile_config=\{\}.* or part\.compile\(\)"
    ):
        load_weights(network(is_wrapped=is_wrapped), saved)
    load_weights(network(is_wrapped=not is_wrapped), saved)


def test_other_names_are_of_another_model() -> None:
    saved = {f"{name}2": value for name, value in network(is_wrapped=True).state_dict().items()}
    with pytest.raises(RuntimeError, match="Load into the same model, or use load_strict_model_weights=False"):
        load_weights(network(is_wrapped=True), saved)


def test_a_part_that_is_compiled_in_place_keeps_its_names() -> None:
    model = network(is_wrapped=False)
    model.module.compile(backend="eager")
    load_weights(network(is_wrapped=False), model.state_dict())
