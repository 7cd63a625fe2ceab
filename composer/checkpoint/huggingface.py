"""Convert checkpoints to and from Hugging Face model folders (``config.json``, weights, tokenizer)."""

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

__all__ = ["huggingface_metadata", "read_pretrained", "read_tokenizer", "write_pretrained", "write_tokenizer"]

# HuggingFaceModel has the model as this attribute.
_PREFIX = "model."
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_GENERATION = "generation_config"
# Files that do not belong to the tokenizer.
_OF_MODEL = ("config", _GENERATION, "model.safetensors.index", "adapter_config", "preprocessor_config")


def read_pretrained(folder: Path) -> dict[str, Any]:
    """Read a model folder as a weights-only checkpoint.

    Weights are read from ``model.safetensors``, from the files that ``model.safetensors.index.json`` names, or from
    ``pytorch_model.bin``; no code from the folder is run.

    Args:
        folder: The folder; must have a ``config.json``.

    Raises:
        ValueError: It is not a Hugging Face model folder.
        DamagedCheckpointError: A file is corrupted.

    >>> _ = (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    >>> write_safetensors({"pooler.bias": torch.zeros(1)}, tmp_path / "model.safetensors")
    >>> read_pretrained(tmp_path)["state"]["model"]
    {'model.pooler.bias': tensor([0.])}
    """
    if not (folder / _CONFIG).is_file():
        raise ValueError(f"{str(folder)!r} is not a Hugging Face model folder: it has no {_CONFIG}.")
    config = _json(folder / _CONFIG)
    with file_format.damage_of(repr(str(folder / _CONFIG)), "its content"):
        architecture = next(iter(config.get("architectures") or ()), "AutoModel")
    described: dict[str, Any] = {
        "model": {"config": {"file_extension": ".json", "content": config, "class": f"transformers.{architecture}"}}
    }
    if (folder / f"{_GENERATION}.json").is_file():
        described["model"][_GENERATION] = _file_entry(folder / f"{_GENERATION}.json")
    if texts := read_tokenizer(folder):
        described["tokenizer"] = texts
    weights = {_PREFIX + name: value for name, value in _read_weights(folder).items()}
    return {"state": {"model": weights, "integrations": {"huggingface": described}}}


def write_pretrained(state: dict[str, Any], folder: Path) -> None:
    """Write a model folder atomically: weights, configuration and tokenizer.

    A checkpoint that has only adapters, as models with PEFT save them, becomes an adapter folder, with the
    configuration of the model in addition to that of the adapters.

    Args:
        state: The entry ``"state"`` of a checkpoint.
        folder: The destination; must not exist, or be empty.

    Raises:
        ValueError: The checkpoint does not have the configuration of a Hugging Face model, or has adapters together
            with the weights that they modify.

    >>> described = {"huggingface": {"model": {"config": {"content": {"model_type": "bert"}}}}}
    >>> state = {"model": {"model.pooler.bias": torch.zeros(1)}, "integrations": described}
    >>> write_pretrained(state, tmp_path / "bert")
    >>> sorted(path.name for path in (tmp_path / "bert").iterdir())
    ['config.json', 'model.safetensors']
    """
    described = huggingface_metadata(state)
    files: dict[str, dict[str, Any]] = {"config": described["model"]["config"]}
    if "peft_config" in described["model"]:
        weights = _adapters(described["model"], state["model"])
        files["adapter_config"], name = described["model"]["peft_config"], "adapter_model.safetensors"
    else:
        weights, name = {name.removeprefix(_PREFIX): value for name, value in state["model"].items()}, _WEIGHTS
        if _GENERATION in described["model"]:
            files[_GENERATION] = described["model"][_GENERATION]
    with _atomic_folder(folder) as begun:
        for stem, file in files.items():
            _write_file_entry(begun, stem, {"file_extension": ".json", "content": file["content"]})
        write_tokenizer(described.get("tokenizer") or {}, begun)
        write_safetensors(weights, begun / name)


def huggingface_metadata(state: dict[str, Any]) -> dict[str, Any]:
    """Return the Hugging Face metadata of a checkpoint: ``"model"``, and ``"tokenizer"`` if it has one.

    Args:
        state: The entry ``"state"`` of a checkpoint.

    Raises:
        ValueError: It has no metadata, or not the configuration of the model.

    >>> model = {"config": {"content": {"model_type": "bert"}}}
    >>> huggingface_metadata({"integrations": {"huggingface": {"model": model}}})["model"] is model
    True
    """
    described: dict[str, Any] = state.get("integrations", {}).get("huggingface", {})
    if described.get("model", {}).get("config", {}).get("content") is None:
        raise ValueError(
            "The checkpoint does not have the configuration of a Hugging Face model, as HuggingFaceModel saves it. "
            "Only its weights can be converted, to a '.safetensors' file."
        )
    return described


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return the tokenizer files of a folder as checkpoints store them, by name without extension.

    Args:
        folder: The folder; model files in it are ignored.

    >>> _ = (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "right"}')
    >>> read_tokenizer(tmp_path)
    {'tokenizer_config': {'file_extension': '.json', 'content': {'padding_side': 'right'}}}
    """
    return {path.stem: _file_entry(path) for path in sorted(folder.glob("*.*")) if _is_of_tokenizer(path)}


def write_tokenizer(files: dict[str, Any], folder: Path) -> None:
    """Write what :func:`read_tokenizer` returned.

    Args:
        files: The files.
        folder: The destination.

    Raises:
        ValueError: A name leads out of the folder.

    >>> write_tokenizer({"vocab": {"file_extension": ".txt", "content": ["a", "b"]}}, tmp_path)
    >>> (tmp_path / "vocab.txt").read_text()
    'a\\nb'
    """
    for name, file in files.items():
        _write_file_entry(folder, name, file)


def _adapters(described: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """Return adapter weights by their names in a folder, which omit the name of the adapter."""
    names: dict[str, str] = described.get("adapter_names") or {
        name: name.replace(".default", "") for name in weights if "lora_" in name or "bias" in name
    }
    if len(names) < len(weights):
        raise ValueError(
            "The checkpoint has adapters together with the weights that they modify. "
            "write_huggingface_pretrained_from_composer_checkpoint writes only the adapters, and "
            "HuggingFaceModel.hf_from_composer_checkpoint(path)[0].merge_and_unload() merges both into one model."
        )
    return {names[name].removeprefix(_PREFIX): value for name, value in weights.items()}


@contextlib.contextmanager
def _atomic_folder(folder: Path) -> Generator[Path]:
    """Yield an empty temporary folder, which is renamed to its final name if the block succeeds."""
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
        content = _json(index)
        with file_format.damage_of(repr(str(index)), "its list of files"):
            files = sorted({_text(name) for name in content["weight_map"].values()})
        return {key: value for name in files for key, value in read_safetensors(folder / _plain(name)).items()}
    if (folder / "pytorch_model.bin").is_file():
        return cast("dict[str, Tensor]", file_format.read(folder / "pytorch_model.bin"))
    raise ValueError(f"{str(folder)!r} has no weights: neither {_WEIGHTS} nor {index.name} nor pytorch_model.bin.")


def _is_of_tokenizer(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".model", ".jinja") and path.stem not in _OF_MODEL and path.is_file()


def _file_entry(path: Path) -> dict[str, Any]:
    """Return a file as checkpoints store it."""
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
        raise ValueError(f"{value!r} is not a file name")
    return value


def _write_file_entry(folder: Path, name: str, text: dict[str, Any]) -> None:
    content = text["content"]
    path = folder / _plain(name + text["file_extension"])
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    if text["file_extension"] == ".json":
        content = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    path.write_text("\n".join(content) if isinstance(content, list) else content, encoding="utf-8")


def _plain(name: str) -> str:
    """Return a file name after checking that it stays in its folder, so that no other file is overwritten."""
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not a plain file name, and is not followed.")
    return name
