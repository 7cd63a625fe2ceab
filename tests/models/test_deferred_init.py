"""Models of transformers that are made on the meta device, and get their values when they are divided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from composer.models import HuggingFaceModel
from composer.models._deferred_init import initialize_parameters
from composer.parallel.meta_init import Materializer
from tests.common import trainer_of
from tests.models import tiny
from tests.ranks import Ranks


def on_meta(make: Callable[[], nn.Module]) -> HuggingFaceModel:
    with torch.device("meta"):
        return HuggingFaceModel(make())


@pytest.mark.parametrize("make", [tiny.bert, tiny.gpt2, tiny.llama, tiny.vit, tiny.t5])
def test_values_are_those_of_a_new_model(make: Callable[[], Any]) -> None:
    expected, found = HuggingFaceModel(make()), on_meta(make)
    Materializer(found, torch.device("cpu")).materialize(found.modules())
    torch.testing.assert_close(dict(found.named_buffers()), dict(expected.named_buffers()), rtol=0, atol=0)
    weights = dict(found.named_parameters())  # of weights that are shared, one
    assert weights.keys() == dict(expected.named_parameters()).keys()
    for name, value in expected.named_parameters():
        if value.std() == 0:
            torch.testing.assert_close(weights[name], value, msg=name)
        elif value.numel() >= 256:
            assert weights[name].std().item() == pytest.approx(value.std().item(), rel=0.3), name
            assert not torch.equal(weights[name], value), name


def test_a_weight_that_the_model_does_not_tell_of() -> None:
    model = tiny.gpt2()
    model.transformer.ln_f.gain = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel does not initialize gain of a LayerNorm"):
        initialize_parameters(model, model.transformer.ln_f)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_need_trained_weights() -> None:
    pytest.importorskip("peft")
    model = HuggingFaceModel(
        tiny.gpt2(), peft_config={"peft_type": "LORA", "r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    )
    with pytest.raises(ValueError, match="adapters needs trained weights"):
        model.param_init_fn(model.model)


def trained_from_meta() -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    model = on_meta(tiny.llama)
    trainer = trainer_of(model, [tiny.texts()], parallelism_config={"fsdp": {}}, device="cpu", max_duration="3ba")
    trainer.fit()
    whole: Any = dict(model.named_parameters())
    return {name: parameter.full_tensor().detach() for name, parameter in whole.items()}


def test_training(two_ranks: Ranks) -> None:
    one, other = two_ranks.run(trained_from_meta)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert all(value.isfinite().all() for value in one.values())
    assert one["model.model.embed_tokens.weight"].std() > 0.01
