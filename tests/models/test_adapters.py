"""Adapters: what is trained, saved, resumed, refused, and made one with the weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer import State, Trainer, dist
from composer.checkpoint import convert_checkpoint, read_checkpoint, read_safetensors, save_checkpoint
from composer.models import HuggingFaceModel, write_huggingface_pretrained_from_composer_checkpoint
from composer.models.huggingface import (
    filter_state_dict_peft,
    get_peft_config_from_composer_state_dict,
    maybe_get_underlying_model,
)
from composer.warnings import NoEffectWarning
from tests.models import tiny
from tests.ranks import Ranks

# Today's peft asks transformers for an attribute that has another name by now.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def lora(**more: Any) -> Any:
    from peft import LoraConfig

    arguments = {
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["c_attn"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
    }
    return LoraConfig(**{**arguments, **more})


def adapted(seed: int = 5, base: Any = None, **arguments: Any) -> HuggingFaceModel:
    """A GPT-2 with adapters that change something, as they do not when they begin."""
    arguments.setdefault("peft_config", lora())
    torch.manual_seed(seed)
    model = HuggingFaceModel(tiny.gpt2() if base is None else base, tiny.tokenizer(), **arguments)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return model


def logits(model: Any) -> Tensor:
    batch = {name: value for name, value in tiny.texts().items() if name != "labels"}
    with torch.no_grad():
        return (model.eval()(batch) if isinstance(model, HuggingFaceModel) else model.eval()(**batch)).logits


def saved(folder: Path, model: HuggingFaceModel, name: str = "ep1.pt") -> Path:
    path = save_checkpoint(State(model=model), str(folder / name))
    assert path is not None
    return Path(path)


def test_adapters_alone_are_trained_and_saved() -> None:
    model = adapted()
    assert model.using_peft
    state = model.state_dict()
    assert len(state) == 4  # two matrices in each of two layers
    assert all("lora_" in name for name in state)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == set(state)
    model.should_save_peft_only = False
    assert len(model.state_dict()) > 20
    outer = nn.ModuleDict({"a": adapted(), "b": nn.Linear(1, 1)})
    assert {name.partition(".")[0] for name in outer.state_dict()} == {"a", "b"}
    assert len(outer.state_dict()) == 4 + 2


@pytest.mark.parametrize("form", ["wrapped", "dict"])
def test_other_ways_to_give_adapters(form: str) -> None:
    from peft import get_peft_model

    torch.manual_seed(5)
    if form == "wrapped":
        model = HuggingFaceModel(get_peft_model(tiny.gpt2(), lora()), tiny.tokenizer())
    else:
        arguments = {"peft_type": "LORA", "r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
        model = HuggingFaceModel(tiny.gpt2(), peft_config=arguments)
    assert len(model.state_dict()) == 4
    assert model.shift_labels
    assert "input_ids" in model.model_forward_args
    assert type(maybe_get_underlying_model(model.model)).__name__ == "GPT2LMHeadModel"
    with pytest.warns(NoEffectWarning, match="peft_config has no effect: the model already has adapters") as told:
        assert HuggingFaceModel(model.model, peft_config=lora()).model is model.model
    assert told[0].filename == __file__
    tokens = model.generate(torch.tensor([[5, 6]]), max_new_tokens=2)
    assert tokens.shape[0] == 1


@pytest.mark.parametrize("task", ["causal_lm", "CaUsAl_lM", "CAUSAL_LM"])
@pytest.mark.parametrize("kind", ["loRa", "lora", "LORA"])
@pytest.mark.parametrize("form", ["dict", "config"])
def test_types_in_any_case(kind: str, task: str, form: str) -> None:
    config: Any = lora()
    if form == "dict":
        config = {"peft_type": kind, "task_type": task, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    else:
        config.peft_type, config.task_type = kind, task
    model = HuggingFaceModel(tiny.gpt2(), peft_config=config)
    assert type(model.model).__name__ == "PeftModelForCausalLM"
    made = model.model.peft_config["default"]
    assert (made.peft_type.value, made.task_type.value) == ("LORA", "CAUSAL_LM")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "lorra"}, "peft_type must be one of .*Did you mean 'LORA'"),
        ({"peft_type": "lora", "task_type": "causal_ml"}, "task_type must be one of .*Did you mean 'CAUSAL_LM'"),
        ({"r": 2}, "must have 'peft_type', such as"),
    ],
)
def test_types_that_are_unknown(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HuggingFaceModel(tiny.gpt2(), peft_config=config)


def test_what_is_no_adapter_is_refused() -> None:
    from peft import PromptTuningConfig

    with pytest.raises(ValueError, match=r"supports adapter layers.*PromptTuningConfig, which is for prompt learning"):
        HuggingFaceModel(tiny.gpt2(), peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    several = adapted().model
    several.add_adapter("other", lora())
    with pytest.raises(ValueError, match="supports one set of adapters, but the model has default, other"):
        HuggingFaceModel(several)
    with pytest.raises(TypeError, match=r"peft_config must be a peft\.PeftConfig"):
        HuggingFaceModel(tiny.gpt2(), peft_config="lora")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"use_dora": True},
        {"modules_to_save": ["score"], "task_type": "SEQ_CLS"},
        {"bias": "lora_only"},
        {"trainable_token_indices": [3, 4]},
    ],
    ids=["plain", "dora", "modules to save", "biases", "tokens"],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_folder_of_adapters_is_that_of_peft(more: Any, tmp_path: Path) -> None:
    """The names are those that peft itself writes, for each kind of weight it may have."""
    from peft import PeftModel

    task = (
        {"task": "ForSequenceClassification", "num_labels": 3, "pad_token_id": 2} if "modules_to_save" in more else {}
    )
    model = adapted(base=tiny.gpt2(**task), peft_config=lora(**more))
    path = saved(tmp_path, model)
    write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "ours")
    model.model.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    ours, theirs = (read_safetensors(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = PeftModel.from_pretrained(tiny.gpt2(**task), tmp_path / "ours")
    torch.testing.assert_close(logits(again), logits(model))
    convert_checkpoint(path, tmp_path / "converted")
    assert {file.name for file in (tmp_path / "converted").iterdir()} >= {"adapter_config.json", "tokenizer.json"}


def test_resume_of_adapters_is_exact(tmp_path: Path) -> None:
    def build(seed: int, **arguments: Any) -> Trainer:
        model = adapted(seed)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        data = [tiny.texts(seed=number) for number in range(3)]
        return Trainer(
            model=model, train_dataloader=data, optimizers=optimizer, max_duration="6ba", progress_bar=False, seed=2,
            **arguments,
        )  # fmt: skip

    whole, first = build(5), build(5, save_folder=str(tmp_path), save_interval="1ba")
    whole.fit()
    first.fit(duration="4ba")
    first.close()
    path = tmp_path / "ep1-ba4-rank0.pt"
    assert all("lora_" in name for name in read_checkpoint(path)["state"]["model"])
    second = build(6, load_path=str(path))  # other adapters, which are replaced
    second.fit()
    expected = whole.state.model.state_dict()
    assert expected
    assert all(torch.equal(value, expected[name]) for name, value in second.state.model.state_dict().items())


def train_divided(folder: str, divides: bool) -> dict[str, Tensor]:
    """Adapters after two steps, and again after one more from the checkpoint of these."""
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    found: dict[str, Tensor] = {}
    name = "divided" if divides else "alone"
    for steps, arguments in ((2, {}), (3, {"load_path": f"{folder}/{name}/ep0-ba2-rank0.pt"})):
        model = adapted(5 + steps)
        if not arguments:
            model.load_state_dict(adapted(5).state_dict())
        rank, world_size = dist.get_global_rank(), dist.get_world_size()
        part = {key: value[rank::world_size] for key, value in tiny.texts().items()}
        trainer = Trainer(
            model=model,
            train_dataloader=[part] * 4,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            max_duration=f"{steps}ba",
            parallelism_config={"fsdp": {}} if divides else None,
            save_folder=f"{folder}/{name}",
            save_interval="1ba",
            save_overwrite=True,
            progress_bar=False,
            device="cpu",
            seed=1,
            **arguments,
        )
        trainer.fit()
        for key, value in trainer.state.model.state_dict().items():
            found[f"{steps} {key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
        trainer.close()
    return found


def test_adapters_of_weights_that_are_divided(two_ranks: Ranks, tmp_path: Path) -> None:
    expected = train_divided(str(tmp_path), False)
    assert len(expected) == 8
    for found in two_ranks.run(train_divided, str(tmp_path), True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    one, other = (read_checkpoint(tmp_path / name / "ep0-ba2-rank0.pt")["state"] for name in ("divided", "alone"))
    assert one["model"].keys() == other["model"].keys()
    assert one["integrations"] == other["integrations"]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    model, state = adapted(), adapted(6).state_dict()
    first = next(iter(state))
    model.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*lora_A"):
        model.load_state_dict({name: value for name, value in state.items() if name != first})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        model.load_state_dict({**state, "model.other": torch.ones(1)})
    # With some of the weights that adapters change, all of them are wanted.
    model.should_save_peft_only = False
    whole = dict(model.state_dict())
    model.should_save_peft_only = True
    model.load_state_dict(whole)
    frozen = next(name for name in whole if name.endswith("wpe.weight"))
    del whole[frozen]
    with pytest.raises(RuntimeError, match=r"Missing key.*wpe\.weight"):
        model.load_state_dict(whole)


@pytest.mark.parametrize("by_predecessor", [False, True])
@pytest.mark.parametrize("bias", ["none", "lora_only", "all"])
@pytest.mark.filterwarnings("ignore:Careful, disabling adapter layers:UserWarning")
def test_the_adapters_are_written_though_the_weights_are_there(bias: str, by_predecessor: bool, tmp_path: Path) -> None:
    from peft import PeftModel

    model = adapted(should_save_peft_only=False, peft_config=lora(bias=bias))
    path = saved(tmp_path, model)
    if by_predecessor:  # which did not write down their names in the files of peft
        checkpoint = read_checkpoint(path)
        del checkpoint["state"]["integrations"]["huggingface"]["model"]["adapter_names"]
        torch.save(checkpoint, path)
    write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "adapter")
    names = {file.name for file in (tmp_path / "adapter").iterdir()}
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "config.json", "tokenizer.json"}
    assert "model.safetensors" not in names
    model.model.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    ours, theirs = (
        read_safetensors(folder / "adapter_model.safetensors") for folder in (tmp_path / "adapter", tmp_path / "theirs")
    )
    assert ours.keys() == theirs.keys()
    if bias == "none":
        torch.testing.assert_close(logits(PeftModel.from_pretrained(tiny.gpt2(), tmp_path / "adapter")), logits(model))


def test_adapters_and_weights_become_one_model_on_request(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = adapted(should_save_peft_only=False)
    path = saved(tmp_path, model)
    expected = logits(model)
    again, words = HuggingFaceModel.hf_from_composer_checkpoint(path)
    assert type(again).__name__ == "PeftModelForCausalLM"
    assert torch.equal(logits(again), expected)
    assert words is not None
    again.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert type(merged).__name__ == "GPT2LMHeadModel"
    torch.testing.assert_close(logits(merged), expected)
    config = get_peft_config_from_composer_state_dict(read_checkpoint(path))
    assert (config.r, config.target_modules) == (2, {"c_attn"})
    with pytest.raises(ValueError, match="merges both into one model"):
        convert_checkpoint(path, tmp_path / "converted")


def test_adapters_alone_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adapters without the base weights"):
        HuggingFaceModel.hf_from_composer_checkpoint(saved(tmp_path, adapted()))


def test_new_embeddings_are_saved_with_the_adapters(tmp_path: Path) -> None:
    """Their rows began at random, and no one else has them."""

    def build(seed: int) -> HuggingFaceModel:
        torch.manual_seed(seed)
        return HuggingFaceModel(
            tiny.gpt2(), tiny.tokenizer(more=4), allow_embedding_resizing=True, peft_config=lora()
        )  # fmt: skip

    model, other = build(1), build(2)
    assert not torch.equal(logits(model), logits(other))
    assert any("wte" in name for name in model.state_dict())
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(model), logits(other))


def test_files_of_the_predecessor_name_adapters_alone(tmp_path: Path) -> None:
    """It did not write down their names in the files of peft."""
    from peft import PeftModel

    model = adapted()
    checkpoint = read_checkpoint(saved(tmp_path, model))
    del checkpoint["state"]["integrations"]["huggingface"]["model"]["adapter_names"]
    torch.save(checkpoint, tmp_path / "old.pt")
    write_huggingface_pretrained_from_composer_checkpoint(tmp_path / "old.pt", tmp_path / "adapter")
    assert torch.equal(logits(PeftModel.from_pretrained(tiny.gpt2(), tmp_path / "adapter")), logits(model))


def test_filter_by_names() -> None:
    one = torch.ones(1)
    state = {
        "q.base_layer.weight": one, "q.base_layer.bias": one, "norm.bias": one,
        "q.lora_A.default.weight": one, "q.lora_A.other.weight": one,
    }  # fmt: skip

    def names(bias: str, **arguments: Any) -> set[str]:
        return set(filter_state_dict_peft(state, SimpleNamespace(bias=bias), **arguments))

    assert names("none") == {"q.lora_A.weight"}
    assert names("none", remove_adapter_names=False) == {"q.lora_A.default.weight"}
    assert names("none", adapter_name="other", remove_adapter_names=False) == {"q.lora_A.other.weight"}
    assert names("lora_only") == {"q.lora_A.weight", "q.base_layer.bias"}
    assert names("all") == {"q.lora_A.weight", "q.base_layer.bias", "norm.bias"}
