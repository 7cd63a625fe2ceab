"""Models of transformers from checkpoints: with their weights, from every form of checkpoint, and without trust."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import Tensor, nn

from composer import State
from composer.checkpoint import convert_checkpoint, read_checkpoint, save_checkpoint
from composer.models import HuggingFaceModel, write_huggingface_pretrained_from_composer_checkpoint
from composer.models.huggingface import (
    get_hf_config_from_composer_state_dict,
    get_hf_model_from_composer_state_dict,
    get_hf_tokenizer_from_composer_state_dict,
    get_peft_config_from_composer_state_dict,
)
from composer.warnings import ComposerWarning
from tests.models import tiny

load = HuggingFaceModel.hf_from_composer_checkpoint


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def saved(folder: Path, model: HuggingFaceModel, name: str = "ep1.pt", **arguments: Any) -> Path:
    path = save_checkpoint(State(model=model), str(folder / name), **arguments)
    assert path is not None
    return Path(path)


KINDS = {
    "bert": tiny.bert,
    "bert sorts": lambda: tiny.bert("ForSequenceClassification", num_labels=3, id2label={0: "a", 1: "b", 2: "c"}),
    "gpt2": tiny.gpt2,
    "llama": tiny.llama,
    "vit": tiny.vit,
    "t5": tiny.t5,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_comes_back_with_its_weights(kind: str, tmp_path: Path) -> None:
    model = HuggingFaceModel(KINDS[kind](), tiny.tokenizer())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    again, words = load(saved(tmp_path, model, weights_only=kind == "gpt2"))
    assert type(again) is type(model.model)
    assert same(again, model.model)
    one, other = again.config.to_dict(), model.config.to_dict()
    told_by_saving = ("architectures", "dtype")
    assert all(one[name] == other[name] for name in other if name not in told_by_saving)
    text = "the cat sat on xyz"
    assert words(text)["input_ids"] == tiny.tokenizer()(text)["input_ids"]
    assert words.get_vocab() == tiny.tokenizer().get_vocab()
    assert words.pad_token == "<pad>"


def test_weights_that_are_one_stay_one(tmp_path: Path) -> None:
    again, words = load(saved(tmp_path, HuggingFaceModel(tiny.gpt2().to(torch.bfloat16))))
    assert again.lm_head.weight is again.transformer.wte.weight
    assert again.dtype is torch.bfloat16
    assert words is None


def test_what_is_told_for_writing_is_kept(tmp_path: Path) -> None:
    model = tiny.gpt2()
    model.generation_config.eos_token_id = [3, 5]
    model.generation_config.temperature = 0.25
    model.generation_config.do_sample = True
    path = saved(tmp_path, HuggingFaceModel(model))
    again, _ = load(path)
    write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "folder")
    for one in (again, type(model).from_pretrained(tmp_path / "folder")):
        assert one.generation_config.eos_token_id == [3, 5]
        assert one.generation_config.temperature == 0.25


def test_any_place_and_every_form(tmp_path: Path) -> None:
    model = HuggingFaceModel(tiny.bert(), tiny.tokenizer())
    path = saved(tmp_path, model)
    with fsspec.open("memory://models/ep1.pt", "wb") as file:
        file.write(path.read_bytes())
    again, _ = load("memory://models/ep1.pt", local_checkpoint_save_location=tmp_path / "kept" / "copy.pt")
    assert same(again, model.model)
    assert (tmp_path / "kept" / "copy.pt").read_bytes() == path.read_bytes()
    convert_checkpoint(path, tmp_path / "ep1.dcp")
    again, words = load(tmp_path / "ep1.dcp", local_checkpoint_save_location=tmp_path / "copied")
    assert same(again, model.model)
    assert len(words) == len(tiny.tokenizer())
    assert same(load(tmp_path / "copied")[0], model.model)


def test_a_file_of_the_predecessor(tmp_path: Path) -> None:
    """As it wrote them: optimizers by class, times as timedelta, no configuration for writing."""
    model = HuggingFaceModel(tiny.gpt2(), tiny.tokenizer())
    described = model.get_metadata()
    del described["model"]["generation_config"]
    old = {
        "model": dict(model.state_dict()),
        "optimizers": {"SGD": {"state": {}, "param_groups": []}},
        "timestamp": {"Timestamp": {"epoch": 1, "batch": 4, "total_wct": timedelta(seconds=3)}},
        "integrations": {"huggingface": described},
        "metadata": {"composer_env_info": {"composer_version": "0.32.1"}, "torch_version": "2.7.0"},
        "run_name": "night",
    }
    torch.save({"state": old, "rng": []}, tmp_path / "ep1-rank0.pt")
    again, words = load(tmp_path / "ep1-rank0.pt")
    assert same(again, model.model)
    assert words("a dog")["input_ids"] == tiny.tokenizer()("a dog")["input_ids"]


# ------------------------------------------------------------------------------------------------- other classes, sizes


def test_the_trunk_of_a_model_for_another_task(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, BertModel

    model = HuggingFaceModel(tiny.bert())
    path = saved(tmp_path, model)
    for asked in (AutoModelForSequenceClassification, "transformers.BertForSequenceClassification"):
        with pytest.warns(ComposerWarning, match=r"checkpoint lacks .*classifier\.weight.*the model lacks cls\."):
            sorts, _ = load(path, asked, {"num_labels": 5})
        assert type(sorts).__name__ == "BertForSequenceClassification"
        assert sorts.classifier.weight.shape == (5, 16)
        trunk = sorts.bert.encoder.state_dict()
        assert all(torch.equal(trunk[name], value) for name, value in model.model.bert.encoder.state_dict().items())
    with pytest.warns(ComposerWarning, match="the model lacks cls"):
        trunk_alone, _ = load(path, BertModel)
    assert torch.equal(
        trunk_alone.embeddings.word_embeddings.weight, model.model.bert.embeddings.word_embeddings.weight
    )


def test_other_sizes_are_told(tmp_path: Path) -> None:
    path = saved(tmp_path, HuggingFaceModel(tiny.bert("ForSequenceClassification", num_labels=3)))
    with pytest.warns(ComposerWarning, match=r"shapes differ for classifier\.bias, classifier\.weight"):
        again, _ = load(path, None, {"num_labels": 2})
    assert again.classifier.weight.shape == (2, 16)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("transformers.BertForSequenceClasification", "cannot import"),
        ("BertModel", "cannot import"),
        ("no_such_package.Model", "cannot import"),
        ("collections.OrderedDict", "must be a transformers model class"),
        (nn.Linear, "must be a transformers model class"),
    ],
)
def test_a_class_that_is_none(asked: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        load(saved(tmp_path, HuggingFaceModel(tiny.bert())), asked)


# ---------------------------------------------------------------------------------------------------- what is refused


def content(**more: Any) -> dict[str, Any]:
    model = HuggingFaceModel(tiny.bert())
    state = {"model": dict(model.state_dict()), "integrations": {"huggingface": model.get_metadata()}}
    return {"state": {**state, **more}}


def test_a_file_does_not_choose_what_is_imported() -> None:
    checkpoint = content()
    config = checkpoint["state"]["integrations"]["huggingface"]["model"]["config"]
    for name in ("os.system", "transformersx.Model", "tests.models.tiny.bert", ""):
        config["class"] = name
        with pytest.raises(ValueError, match="is not imported only because a file names it"):
            get_hf_model_from_composer_state_dict(checkpoint)
    config["class"] = "transformers.set_seed"
    with pytest.raises(ValueError, match="must be a transformers model class"):
        get_hf_model_from_composer_state_dict(checkpoint)


def test_weights_that_are_not_those_of_the_class() -> None:
    checkpoint = content()
    weights: dict[str, Tensor] = checkpoint["state"]["model"]
    weights["model.more"] = weights.pop("model.bert.embeddings.LayerNorm.bias")
    with pytest.raises(ValueError, match=r"lacks bert\.embeddings\.LayerNorm\.bias; the model lacks more"):
        get_hf_model_from_composer_state_dict(checkpoint)
    del checkpoint["state"]["model"]
    with pytest.raises(ValueError, match="does not contain the model's weights"):
        get_hf_model_from_composer_state_dict(checkpoint)


def test_checkpoints_of_other_models(tmp_path: Path) -> None:
    plain = saved(tmp_path, nn.Linear(1, 1))  # type: ignore[arg-type]
    for call in (load, lambda path: write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "out")):
        with pytest.raises(ValueError, match="does not have the configuration of a Hugging Face model"):
            call(plain)
    checkpoint = content()
    checkpoint["state"]["integrations"]["huggingface"]["model"]["config"]["content"]["model_type"] = "bertt"
    with pytest.raises(ValueError, match="of type 'bertt', which is unknown to transformers"):
        get_hf_config_from_composer_state_dict(checkpoint)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.pt")


# ---------------------------------------------------------------------------------------------------------- parts of it


def test_parts_of_a_checkpoint(tmp_path: Path) -> None:
    model = HuggingFaceModel(tiny.bert("ForSequenceClassification", num_labels=3), tiny.tokenizer())
    checkpoint = read_checkpoint(saved(tmp_path, model))
    config = get_hf_config_from_composer_state_dict(checkpoint, {"hidden_dropout_prob": 0.5})
    assert (config.num_labels, config.hidden_dropout_prob, config.id2label[2]) == (3, 0.5, "LABEL_2")
    assert get_peft_config_from_composer_state_dict(checkpoint) is None
    words = get_hf_tokenizer_from_composer_state_dict(checkpoint, tokenizer_save_dir=tmp_path / "words")
    assert (tmp_path / "words" / "tokenizer.json").is_file()
    described = checkpoint["state"]["integrations"]["huggingface"]
    other = HuggingFaceModel.load_huggingface_tokenizer_from_saved_state(described)
    assert other.get_vocab() == words.get_vocab()
    assert other.name_or_path == ""
    assert same(HuggingFaceModel.load_huggingface_model_from_saved_state(described, checkpoint), model.model)
    assert HuggingFaceModel.load_huggingface_tokenizer_from_saved_state({}) is None


def test_the_tokenizer_is_made_into_files_once(tmp_path: Path) -> None:
    model = HuggingFaceModel(tiny.gpt2(vocab_size=32), tiny.tokenizer())
    calls: list[str] = []
    write = model.tokenizer.save_pretrained
    model.tokenizer.save_pretrained = lambda folder: (calls.append(folder), write(folder))
    first = model.get_metadata()
    first["tokenizer"].clear()  # whoever saves may edit what it is given
    assert model.get_metadata()["tokenizer"]
    assert len(calls) == 1
    model.tokenizer.add_tokens(["house boat"])
    assert "house boat" in str(model.get_metadata()["tokenizer"])
    assert len(calls) == 2
    saved(tmp_path, model, ignore_keys=["state/integrations/huggingface/tokenizer/*"])
    assert len(load(saved(tmp_path, model))[1]) == 25


def files(folder: Path) -> dict[str, bytes]:
    """Their content but for that of the weights, whose header is in no order."""
    return {file.name: b"" if file.suffix == ".safetensors" else file.read_bytes() for file in folder.iterdir()}


def test_a_folder_that_from_pretrained_reads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = HuggingFaceModel(tiny.gpt2(), tiny.tokenizer())
    path = saved(tmp_path, model)
    (tmp_path / "empty").mkdir()
    convert_checkpoint(path, tmp_path / "converted")
    for name in ("empty", "new"):
        write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / name)
        assert files(tmp_path / name) == files(tmp_path / "converted")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert same(again, model.model)
        assert again.lm_head.weight is again.transformer.wte.weight
        words = AutoTokenizer.from_pretrained(tmp_path / name)
        assert words("the cat")["input_ids"] == tiny.tokenizer()("the cat")["input_ids"]
    with pytest.raises(FileExistsError, match="is not empty"):
        write_huggingface_pretrained_from_composer_checkpoint(path, tmp_path / "new")
    # And back, to go on with training.
    convert_checkpoint(tmp_path / "new", tmp_path / "back.pt")
    assert same(load(tmp_path / "back.pt")[0], model.model)
