"""Convert weights between file formats."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.checkpoint import file_format
from composer.checkpoint.convert import convert_checkpoint
from composer.checkpoint.huggingface import read_pretrained, write_pretrained
from composer.checkpoint.load import read_checkpoint
from composer.checkpoint.safetensors_files import write_safetensors
from tests.checkpoint.content import same

CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8}
TOKENIZER = {
    "vocab": {"file_extension": ".txt", "content": ["[PAD]", "größe", ""]},
    "tokenizer_config": {"file_extension": ".json", "content": {"do_lower_case": True}},
    "spiece": {"file_extension": ".model", "content": b"\x00\x01"},
    "chat_template": {"file_extension": ".jinja", "content": "{{ messages }}\n"},
}


def content(**more: Any) -> dict[str, Any]:
    weight = torch.arange(6.0).reshape(2, 3)
    model = {"model.embedding": weight, "model.head": weight, "model.bias": torch.ones(2)}
    described = {"model": {"config": {"content": CONFIG, "file_extension": ".json", "class": "transformers.BertModel"}}}
    integrations = {"huggingface": {**described, "tokenizer": TOKENIZER}}
    return {"state": {"model": model, "integrations": integrations, "optimizers": {}, **more}, "rng": []}


NAMES = {"checkpoint": "a.pt", "safetensors": "a.safetensors", "folder": "a", "parts": "a.dcp"}


@pytest.mark.parametrize(("before", "after"), list(permutations(NAMES, 2)))
def test_round_trip(before, after, tmp_path) -> None:
    file_format.write(content(), tmp_path / "start.pt")
    source, other = tmp_path / "1" / NAMES[before], tmp_path / "2" / NAMES[after]
    if before == "checkpoint":
        source = tmp_path / "start.pt"
    else:
        convert_checkpoint(tmp_path / "start.pt", source)
    if (before, after) == ("safetensors", "folder"):
        with pytest.raises(ValueError, match="does not have the configuration of a Hugging Face model"):
            convert_checkpoint(source, other)
        assert list((tmp_path / "2").glob("*")) == []
        return
    convert_checkpoint(source, other)
    read = read_pretrained(other) if after == "folder" else read_checkpoint(other)
    assert same(read["state"]["model"], content()["state"]["model"])
    assert read["state"]["model"]["model.head"].data_ptr() == read["state"]["model"]["model.embedding"].data_ptr()
    if {before, after} == {"checkpoint", "parts"}:
        assert same(read, content())
    else:
        assert set(read["state"]) <= {"model", "integrations", "metadata"}
    if "safetensors" not in (before, after):
        assert read["state"]["integrations"] == content()["state"]["integrations"]


def test_folder_is_in_transformers_format(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    integrations = {
        "huggingface": {"model": {"config": {"content": {**config.to_dict(), "architectures": ["BertForMaskedLM"]}}}}
    }
    file_format.write({"state": {"model": weights, "integrations": integrations}}, tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "bert")
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "bert")
    assert same(dict(again.state_dict()), dict(model.state_dict()))
    model.save_pretrained(tmp_path / "saved")
    convert_checkpoint(tmp_path / "saved", tmp_path / "b.pt")
    read = read_checkpoint(tmp_path / "b.pt")["state"]
    assert all(torch.equal(weights[name], value) for name, value in read["model"].items())
    assert read["integrations"]["huggingface"]["model"]["config"]["class"] == "transformers.BertForMaskedLM"


def test_folder_with_multiple_files(tmp_path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write_safetensors({"a": torch.ones(1)}, folder / "model-1.safetensors")
    write_safetensors({"b": torch.zeros(1)}, folder / "model-2.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    assert same(read_pretrained(folder)["state"]["model"], {"model.a": torch.ones(1), "model.b": torch.zeros(1)})
    index.write_text('{"weight_map": {"a": "../many/model-1.safetensors"}}')
    with pytest.raises(ValueError, match="not a plain file name"):
        read_pretrained(folder)


def test_folder_with_pickled_weights(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no weights"):
        read_pretrained(tmp_path)
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert same(read_pretrained(tmp_path)["state"]["model"], {"model.a": torch.ones(1)})
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"not a Hugging Face model folder: it has no config\.json"):
        read_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/b"])
def test_checkpoint_does_not_write_outside_the_folder(name, tmp_path) -> None:
    state = content()["state"]
    state["integrations"]["huggingface"]["tokenizer"] = {name: {"file_extension": ".txt", "content": ["x"]}}
    with pytest.raises(ValueError, match="not a plain file name"):
        write_pretrained(state, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_existing_files_are_kept(tmp_path) -> None:
    file_format.write(content(), tmp_path / "a.pt")
    for name in ("b.safetensors", "folder", "b.dcp"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / name)
        with pytest.raises(FileExistsError, match="already"):
            convert_checkpoint(tmp_path / "a.pt", tmp_path / name)
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.safetensors", overwrite=True)
    with pytest.raises(FileExistsError, match=r"Pass another name.$"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "folder", overwrite=True)
    with pytest.raises(FileExistsError, match=r"Pass another name.$"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.dcp", overwrite=True)


@pytest.mark.parametrize(("source", "destination"), [("a.pt", "b.pt"), ("a.safetensors", "b.safetensors")])
def test_nothing_to_convert(source, destination, tmp_path) -> None:
    with pytest.raises(ValueError, match="have the same format; copy it"):
        convert_checkpoint(tmp_path / source, Path(destination))


def test_a_checkpoint_without_weights(tmp_path) -> None:
    file_format.write({"state": {"timestamp": {}}}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="has no weights"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "a.safetensors")
