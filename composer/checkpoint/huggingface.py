"""Folders of Hugging Face models, from checkpoints and to them."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from composer.checkpoint import file_format
from composer.checkpoint.safetensors_files import read_safetensors, write_safetensors

__all__ = ["described_model", "read_folder", "read_tokenizer", "write_folder", "write_tokenizer"]

# The model inside ours has this name there.
_PREFIX = "model."
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_GENERATION = "generation_config"
# What is not a file of the tokenizer.
_OF_MODEL = ("config", _GENERATION, "model.safetensors.index", "adapter_config", "preprocessor_config")


def read_folder(folder: Path) -> dict[str, Any]:
    """Read the folder of a model in the form of a checkpoint of weights.

    Weights are read from ``model.safetensors``, from the files that ``model.safetensors.index.json`` names, or from
    ``pytorch_model.bin``; no code of the folder is run.

    Args:
        folder: Has a ``config.json``.

    Raises:
        ValueError: It is no such folder.
        DamagedCheckpointError: A file is not what was written.

    >>> _ = (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    >>> write_safetensors({"pooler.bias": torch.zeros(1)}, tmp_path / "model.safetensors")
    >>> read_folder(tmp_path)["state"]["model"]
    {'model.pooler.bias': tensor([0.])}
    """
    if not (folder / _CONFIG).is_file():
        raise ValueError(f"{str(folder)!r} is no folder of a Hugging Face model: it has no {_CONFIG}.")
    config = _json(folder / _CONFIG)
    with file_format.damage_of(repr(str(folder / _CONFIG)), "its content"):
        kind = next(iter(config.get("architectures") or ()), "AutoModel")
    described: dict[str, Any] = {
        "model": {"config": {"file_extension": ".json", "content": config, "class": f"transformers.{kind}"}}
    }
    if (folder / f"{_GENERATION}.json").is_file():
        described["model"][_GENERATION] = _described(folder / f"{_GENERATION}.json")
    if texts := read_tokenizer(folder):
        described["tokenizer"] = texts
    weights = {_PREFIX + name: value for name, value in _read_weights(folder).items()}
    return {"state": {"model": weights, "integrations": {"huggingface": described}}}


def write_folder(state: dict[str, Any], folder: Path) -> None:
    """Write the folder of a model, whole or not at all: its weights, configuration and tokenizer.

    Of a checkpoint that has adapters alone, as models with PEFT save them, it is the folder of the adapters, with the
    configuration of the model beside that of the adapters.

    Args:
        state: The part ``"state"`` of a checkpoint.
        folder: Where to; must not be there, or be empty.

    Raises:
        ValueError: The checkpoint does not have the configuration of a Hugging Face model, or has adapters beside the
            weights that they change.

    >>> described = {"huggingface": {"model": {"config": {"content": {"model_type": "bert"}}}}}
    >>> state = {"model": {"model.pooler.bias": torch.zeros(1)}, "integrations": described}
    >>> write_folder(state, tmp_path / "bert")
    >>> sorted(path.name for path in (tmp_path / "bert").iterdir())
    ['config.json', 'model.safetensors']
    """
    described = described_model(state)
    files: dict[str, dict[str, Any]] = {"config": described["model"]["config"]}
    if "peft_config" in described["model"]:
        weights = _adapters(described["model"], state["model"])
        files["adapter_config"], name = described["model"]["peft_config"], "adapter_model.safetensors"
    else:
        weights, name = {name.removeprefix(_PREFIX): value for name, value in state["model"].items()}, _WEIGHTS
        if _GENERATION in described["model"]:
            files[_GENERATION] = described["model"][_GENERATION]
    with _made_whole(folder) as begun:
        for stem, file in files.items():
            _write_described(begun, stem, {"file_extension": ".json", "content": file["content"]})
        write_tokenizer(described.get("tokenizer") or {}, begun)
        write_safetensors(weights, begun / name)


def described_model(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of the Hugging Face model in it: ``"model"``, and perhaps ``"tokenizer"``.

    Args:
        state: The part ``"state"`` of a checkpoint.

    Raises:
        ValueError: It says nothing, or not how the model is configured.

    >>> model = {"config": {"content": {"model_type": "bert"}}}
    >>> described_model({"integrations": {"huggingface": {"model": model}}})["model"] is model
    True
    """
    described: dict[str, Any] = state.get("integrations", {}).get("huggingface", {})
    if described.get("model", {}).get("config", {}).get("content") is None:
        raise ValueError(
            "The checkpoint does not have the configuration of a Hugging Face model, as HuggingFaceModel saves it. "
            "Its weights alone can be converted to a '.safetensors' file."
        )
    return described


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return the files of a tokenizer in a folder, as checkpoints hold them: by their names without the end.

    Args:
        folder: The folder; the files of a model in it are left out.

    >>> _ = (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "right"}')
    >>> read_tokenizer(tmp_path)
    {'tokenizer_config': {'file_extension': '.json', 'content': {'padding_side': 'right'}}}
    """
    return {path.stem: _described(path) for path in sorted(folder.glob("*.*")) if _is_of_tokenizer(path)}


def write_tokenizer(files: dict[str, Any], folder: Path) -> None:
    """Write what :func:`read_tokenizer` returned.

    Args:
        files: The files.
        folder: Where to.

    Raises:
        ValueError: A name leads out of the folder.

    >>> write_tokenizer({"vocab": {"file_extension": ".txt", "content": ["a", "b"]}}, tmp_path)
    >>> (tmp_path / "vocab.txt").read_text()
    'a\\nb'
    """
    for name, file in files.items():
        _write_described(folder, name, file)


def _adapters(described: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """The weights of adapters by the names that they have in a folder, which do not say which adapter it is."""
    names: dict[str, str] = described.get("adapter_names") or {
        name: name.replace(".default", "") for name in weights if "lora_" in name or "bias" in name
    }
    if len(names) < len(weights):
        raise ValueError(
            "The checkpoint has adapters beside the weights that they change. "
            "write_huggingface_pretrained_from_composer_checkpoint writes the adapters alone, and "
            "HuggingFaceModel.hf_from_composer_checkpoint(path)[0].merge_and_unload() makes one model of both."
        )
    return {names[name].removeprefix(_PREFIX): value for name, value in weights.items()}


@contextlib.contextmanager
def _made_whole(folder: Path) -> Generator[Path]:
    """Give an empty folder that gets its name when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        begun.chmod(0o755)
        yield begun
        begun.rename(folder)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        raise


def _read_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / f"{_WEIGHTS}.index.json"
    if (folder / _WEIGHTS).is_file():
        return read_safetensors(folder / _WEIGHTS)
    if index.is_file():
        said = _json(index)
        with file_format.damage_of(repr(str(index)), "its list of files"):
            files = sorted({_text(name) for name in said["weight_map"].values()})
        return {key: value for name in files for key, value in read_safetensors(folder / _plain(name)).items()}
    if (folder / "pytorch_model.bin").is_file():
        return cast("dict[str, Tensor]", file_format.read(folder / "pytorch_model.bin"))
    raise ValueError(f"{str(folder)!r} has no weights: neither {_WEIGHTS} nor {index.name} nor pytorch_model.bin.")


def _is_of_tokenizer(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".model", ".jinja") and path.stem not in _OF_MODEL and path.is_file()


def _described(path: Path) -> dict[str, Any]:
    """A file as checkpoints hold it."""
    if path.suffix == ".json":
        content: Any = _json(path)
    elif path.suffix == ".model":
        content = path.read_bytes()
    else:
        with file_format.damage_of(repr(str(path)), "its text"):
            text = path.read_text(encoding="utf-8")
        content = text.split("\n") if path.suffix == ".txt" else text
    return {"file_extension": path.suffix, "content": content}


def _json(path: Path) -> Any:
    with file_format.damage_of(repr(str(path)), "its content"):
        return json.loads(path.read_text(encoding="utf-8"))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no name of a file")
    return value


def _write_described(folder: Path, name: str, text: dict[str, Any]) -> None:
    content = text["content"]
    path = folder / _plain(name + text["file_extension"])
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    if text["file_extension"] == ".json":
        content = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    path.write_text("\n".join(content) if isinstance(content, list) else content, encoding="utf-8")


def _plain(name: str) -> str:
    """A name of a file that stays in its folder; others could be there to overwrite something."""
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no plain name of a file, and is not followed.")
    return name
