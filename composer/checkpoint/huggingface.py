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

from composer.checkpoint import archive
from composer.checkpoint.safetensors_files import read_safetensors, write_safetensors

__all__ = ["read_folder", "write_folder"]

# The model inside ours has this name there.
_PREFIX = "model."
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
# What is not a file of the tokenizer.
_OF_MODEL = ("config", "generation_config", "model.safetensors.index", "adapter_config", "preprocessor_config")


def read_folder(folder: Path) -> dict[str, Any]:
    """Read the folder of a model in the form of a checkpoint of weights.

    Weights are read from ``model.safetensors``, from the files that ``model.safetensors.index.json`` names, or from
    ``pytorch_model.bin``; no code of the folder is run.

    Args:
        folder: Has a ``config.json``.

    Raises:
        ValueError: It is no such folder.

    >>> _ = (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    >>> write_safetensors({"pooler.bias": torch.zeros(1)}, tmp_path / "model.safetensors")
    >>> read_folder(tmp_path)["state"]["model"]
    {'model.pooler.bias': tensor([0.])}
    """
    if not (folder / _CONFIG).is_file():
        raise ValueError(f"{str(folder)!r} is no folder of a Hugging Face model: it has no {_CONFIG}.")
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    kind = next(iter(config.get("architectures") or ()), "AutoModel")
    described: dict[str, Any] = {
        "model": {"config": {"file_extension": ".json", "content": config, "class": f"transformers.{kind}"}}
    }
    texts = {path.stem: _described(path) for path in sorted(folder.glob("*.*")) if _is_of_tokenizer(path)}
    if texts:
        described["tokenizer"] = texts
    weights = {_PREFIX + name: value for name, value in _read_weights(folder).items()}
    return {"state": {"model": weights, "integrations": {"huggingface": described}}}


def write_folder(state: dict[str, Any], folder: Path) -> None:
    """Write the folder of a model, whole or not at all: its weights, configuration and tokenizer.

    Args:
        state: The part ``"state"`` of a checkpoint.
        folder: Where to; must not be there.

    Raises:
        ValueError: The checkpoint does not have the configuration of a Hugging Face model.

    >>> described = {"huggingface": {"model": {"config": {"content": {"model_type": "bert"}}}}}
    >>> state = {"model": {"model.pooler.bias": torch.zeros(1)}, "integrations": described}
    >>> write_folder(state, tmp_path / "bert")
    >>> sorted(path.name for path in (tmp_path / "bert").iterdir())
    ['config.json', 'model.safetensors']
    """
    described = state.get("integrations", {}).get("huggingface", {})
    config = described.get("model", {}).get("config", {}).get("content")
    if config is None:
        raise ValueError(
            "The checkpoint does not have the configuration of a Hugging Face model, which such a folder needs. "
            "Convert to a '.safetensors' file instead."
        )
    weights = {name.removeprefix(_PREFIX): value for name, value in state["model"].items()}
    with _made_whole(folder) as begun:
        (begun / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name, text in (described.get("tokenizer") or {}).items():
            _write_described(begun, name, text)
        write_safetensors(weights, begun / _WEIGHTS)


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
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return {key: value for name in files for key, value in read_safetensors(folder / _plain(name)).items()}
    if (folder / "pytorch_model.bin").is_file():
        return cast("dict[str, Tensor]", archive.read(folder / "pytorch_model.bin"))
    raise ValueError(f"{str(folder)!r} has no weights: neither {_WEIGHTS} nor {index.name} nor pytorch_model.bin.")


def _is_of_tokenizer(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".model", ".jinja") and path.stem not in _OF_MODEL and path.is_file()


def _described(path: Path) -> dict[str, Any]:
    """A file as checkpoints hold it."""
    if path.suffix == ".json":
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    elif path.suffix == ".model":
        content = path.read_bytes()
    else:
        text = path.read_text(encoding="utf-8")
        content = text.split("\n") if path.suffix == ".txt" else text
    return {"file_extension": path.suffix, "content": content}


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
