"""Load Hugging Face models, configurations and tokenizers from Composer checkpoints, and export them to folders."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor, nn

from composer import dist
from composer._lazy import import_extra
from composer._text import first_of
from composer.checkpoint.huggingface import huggingface_metadata, write_pretrained, write_tokenizer
from composer.checkpoint.load import read_checkpoint
from composer.models._adapters import filter_state_dict_peft, with_adapters
from composer.storage.downloads import fetched
from composer.warnings import ComposerWarning

__all__ = [
    "get_hf_config_from_composer_state_dict",
    "get_hf_model_from_composer_state_dict",
    "get_hf_tokenizer_from_composer_state_dict",
    "get_peft_config_from_composer_state_dict",
    "hf_from_composer_checkpoint",
    "tokenizer_from",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

_INNER = "model."


def hf_from_composer_checkpoint(
    checkpoint_path: Path | str,
    model_instantiation_class: type | str | None = None,
    model_config_kwargs: Mapping[str, Any] | None = None,
    local_checkpoint_save_location: Path | str | None = None,
    trust_remote_code: bool = False,
) -> tuple[nn.Module, Any]:
    """Return the transformers model in a checkpoint, with its weights, and its tokenizer or None.

    See :meth:`.HuggingFaceModel.hf_from_composer_checkpoint`.
    """
    with _local_checkpoint(checkpoint_path, local_checkpoint_save_location) as path:
        content = read_checkpoint(path)
    model = get_hf_model_from_composer_state_dict(content, model_instantiation_class, model_config_kwargs)
    return model, get_hf_tokenizer_from_composer_state_dict(content, trust_remote_code)


def write_huggingface_pretrained_from_composer_checkpoint(
    checkpoint_path: Path | str,
    output_folder: Path | str,
    local_checkpoint_save_location: Path | str | None = None,
) -> None:
    """Export a checkpoint to a folder for ``from_pretrained``: weights, configuration and tokenizer.

    The weights are written as safetensors. For a checkpoint with adapters, the folder contains the adapters, for
    ``peft.PeftModel.from_pretrained(model, folder)``. If the checkpoint also has the base weights,
    ``HuggingFaceModel.hf_from_composer_checkpoint(path)[0].merge_and_unload()`` merges the adapters into them.

    Args:
        checkpoint_path: Path or URI of a checkpoint of a :class:`.HuggingFaceModel`, a file or a folder.
        output_folder: Folder to write; must not exist, or be empty.
        local_checkpoint_save_location: Path at which to keep a copy of a remote checkpoint.

    Raises:
        FileExistsError: The output folder is not empty.
        FileNotFoundError: The checkpoint does not exist.
        ValueError: The checkpoint does not contain the configuration of a Hugging Face model.

    >>> from composer.checkpoint import file_format
    >>> described = {"model": {"config": {"content": {"model_type": "bert"}}}}
    >>> state = {"model": {"model.bias": torch.zeros(1)}, "integrations": {"huggingface": described}}
    >>> file_format.write({"state": state}, tmp_path / "ep1.pt")
    >>> write_huggingface_pretrained_from_composer_checkpoint(tmp_path / "ep1.pt", tmp_path / "bert")
    >>> sorted(path.name for path in (tmp_path / "bert").iterdir())
    ['config.json', 'model.safetensors']
    """
    folder = Path(output_folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"output_folder={str(folder)!r} is not empty. Choose another folder.")
    with _local_checkpoint(checkpoint_path, local_checkpoint_save_location) as path:
        content = read_checkpoint(path)
        state = content["state"]
        described = huggingface_metadata(state)
        if "peft_config" in described["model"]:
            state = {**state, "model": _adapters_in(described["model"], state["model"])}
        write_pretrained(state, folder)


def get_hf_config_from_composer_state_dict(
    state_dict: Mapping[str, Any], config_overrides: Mapping[str, Any] | None = None
) -> Any:
    """Return the configuration of the model in a checkpoint, a ``PretrainedConfig``.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.
        config_overrides: Values that override the configuration, by name.

    Raises:
        ValueError: The checkpoint has no configuration, or the model type is unknown to transformers.
        MissingConditionalImportError: The package transformers is not installed.

    >>> described = {"model": {"config": {"content": {"model_type": "bert", "hidden_size": 8}}}}
    >>> checkpoint = {"state": {"integrations": {"huggingface": described}}}
    >>> config = get_hf_config_from_composer_state_dict(checkpoint, {"num_hidden_layers": 1})
    >>> type(config).__name__, config.hidden_size, config.num_hidden_layers
    ('BertConfig', 8, 1)
    """
    transformers: Any = import_extra("transformers", "nlp", "The configuration of a Hugging Face model")
    content = {**huggingface_metadata(state_dict["state"])["model"]["config"]["content"], **(config_overrides or {})}
    model_type = content.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise ValueError(
            f"The checkpoint contains a model of type {model_type!r}, which is unknown to transformers. First import "
            f"the module that registers it with AutoConfig.register."
        )
    return transformers.CONFIG_MAPPING[model_type].from_dict(content)


def get_peft_config_from_composer_state_dict(state_dict: Mapping[str, Any]) -> Any:
    """Return the configuration of the adapters in a checkpoint, a ``PeftConfig``, or None.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.

    Raises:
        ValueError: The checkpoint does not contain the configuration of a Hugging Face model.
        MissingConditionalImportError: The package peft is not installed.

    >>> described = {"model": {"config": {"content": {"model_type": "bert"}}}}
    >>> get_peft_config_from_composer_state_dict({"state": {"integrations": {"huggingface": described}}})
    """
    described = huggingface_metadata(state_dict["state"])["model"].get("peft_config")
    if described is None:
        return None
    peft: Any = import_extra("peft", "peft", "The configuration of adapters")
    return peft.get_peft_config(dict(described["content"]))


def get_hf_tokenizer_from_composer_state_dict(
    state_dict: Mapping[str, Any], trust_remote_code: bool = False, tokenizer_save_dir: Path | str | None = None
) -> Any:
    """Return the tokenizer in a checkpoint, or None.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.
        trust_remote_code: Whether to allow tokenizer classes whose code is downloaded from the hub and run.
        tokenizer_save_dir: Folder in which to keep the tokenizer files; None for a temporary folder.

    Raises:
        ValueError: The checkpoint does not contain a Hugging Face model.
        MissingConditionalImportError: The package transformers is not installed.

    >>> described = {"model": {"config": {"content": {"model_type": "bert"}}}}
    >>> get_hf_tokenizer_from_composer_state_dict({"state": {"integrations": {"huggingface": described}}})
    """
    return tokenizer_from(huggingface_metadata(state_dict["state"]), trust_remote_code, tokenizer_save_dir)


def tokenizer_from(
    described: Mapping[str, Any], trust_remote_code: bool = False, tokenizer_save_dir: Path | str | None = None
) -> Any:
    """Return the tokenizer from the Hugging Face metadata of a checkpoint, or None.

    Args:
        described: The entry ``"integrations"/"huggingface"`` of a checkpoint.
        trust_remote_code: Whether code from the hub may run.
        tokenizer_save_dir: Folder in which to keep the tokenizer files.
    """
    files: dict[str, Any] = described.get("tokenizer") or {}
    if not files:
        return None
    transformers: Any = import_extra("transformers", "nlp", "The tokenizer in a checkpoint")
    with contextlib.ExitStack() as stack:
        if tokenizer_save_dir is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="composer-")))
        else:
            folder = Path(tokenizer_save_dir)
            folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(files, folder)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    # The folder may be temporary; keep the name of the original tokenizer.
    tokenizer.name_or_path = files.get("tokenizer_config", {}).get("content", {}).get("name_or_path", "")
    return tokenizer


def get_hf_model_from_composer_state_dict(
    state_dict: Mapping[str, Any],
    model_instantiation_class: type | str | None = None,
    model_config_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return the transformers model in a checkpoint, with its weights, on the CPU and in evaluation mode.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.
        model_instantiation_class: A transformers model class or auto class, or its dotted name; None for the saved
            class.
        model_config_kwargs: Values that override the saved configuration.

    Raises:
        ValueError: The checkpoint lacks the configuration or weights of the model, or the class is not valid.
        MissingConditionalImportError: The package transformers, or peft for a model with adapters, is not installed.

    >>> from transformers import BertConfig, BertModel
    >>> from composer.models import HuggingFaceModel
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = HuggingFaceModel(BertModel(BertConfig(vocab_size=10, **sizes)))
    >>> integrations = {"huggingface": model.get_metadata()}
    >>> checkpoint = {"state": {"model": model.state_dict(), "integrations": integrations}}
    >>> again = get_hf_model_from_composer_state_dict(checkpoint)
    >>> bool(
    ...     (again.embeddings.word_embeddings.weight == model.model.embeddings.word_embeddings.weight).all()
    ... )
    True
    """
    state = state_dict["state"]
    described = huggingface_metadata(state)
    config = get_hf_config_from_composer_state_dict(state_dict, model_config_kwargs)
    model_class = _resolve_model_class(model_instantiation_class, described, config)
    if "model" not in state:
        raise ValueError("The checkpoint does not contain the model's weights.")
    weights = {name.removeprefix(_INNER): value for name, value in state["model"].items()}
    peft_config = get_peft_config_from_composer_state_dict(state_dict)
    if peft_config is None:
        # Another class or other sizes are meant for further training; the saved model must match exactly.
        strict = model_instantiation_class is None and not model_config_kwargs
        model = _load_pretrained(model_class, config, weights, strict=strict)
    elif _has_only_adapters(state):
        raise ValueError(
            "The checkpoint contains adapters without the base weights. Export them to a folder with "
            "write_huggingface_pretrained_from_composer_checkpoint, and load it with "
            "peft.PeftModel.from_pretrained(model, folder); or train with should_save_peft_only=False."
        )
    else:
        model = with_adapters(model_class(config), peft_config)
        model.load_state_dict(weights)
        model.to(_dtype(weights)).eval()
    if saved := described["model"].get("generation_config"):
        transformers: Any = import_extra("transformers", "nlp", "A Hugging Face model")
        cast(Any, model).generation_config = transformers.GenerationConfig.from_dict(saved["content"])
    return model


def _resolve_model_class(requested: type | str | None, described: Mapping[str, Any], config: Any) -> Any:
    """Return the model class. A class named by the checkpoint must be in transformers, as importing could run code."""
    transformers: Any = import_extra("transformers", "nlp", "A Hugging Face model")
    name = described["model"]["config"].get("class", "") if requested is None else requested
    if isinstance(name, str):
        if requested is None and not name.startswith("transformers."):
            raise ValueError(
                f"The checkpoint contains a model of the class {name!r}, which is not imported only because a file "
                f"names it. Pass model_instantiation_class={name!r} if you trust it."
            )
        module, _, attribute = name.rpartition(".")
        try:
            model_class = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"model_instantiation_class: cannot import {name!r} ({error}).") from error
    else:
        model_class = name
    if hasattr(model_class, "from_config") and not hasattr(model_class, "base_model_prefix"):  # an auto class
        import torch

        # A checkpoint must not cause remote code to be downloaded and run, nor a prompt that asks for it.
        local = {"trust_remote_code": False} if model_class.__module__.startswith("transformers.") else {}
        with torch.device("meta"):
            return type(model_class.from_config(config, **local))
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise ValueError(f"model_instantiation_class must be a transformers model class, but got {model_class!r}.")
    return model_class


def _load_pretrained(model_class: Any, config: Any, weights: dict[str, Tensor], *, strict: bool) -> nn.Module:
    name = config.name_or_path  # from_pretrained(None) would overwrite it
    with _silence_transformers():
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=weights, dtype=_dtype(weights), output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    model.name_or_path = model.config.name_or_path = name
    sizes = sorted(str(name[0]) for name in report["mismatched_keys"])
    problems = [
        *([f"the checkpoint lacks {first_of(sorted(report['missing_keys']))}"] if report["missing_keys"] else []),
        *([f"the model lacks {first_of(sorted(report['unexpected_keys']))}"] if report["unexpected_keys"] else []),
        *([f"shapes differ for {first_of(sizes)}"] if sizes else []),
    ]
    if problems and strict:
        raise ValueError(f"The weights in the checkpoint do not match {model_class.__name__}: {'; '.join(problems)}.")
    if problems:
        message = f"{model_class.__name__}: not all weights were loaded from the checkpoint: {'; '.join(problems)}."
        warnings.warn(message, ComposerWarning, stacklevel=4)
    return model


def _adapters_in(described: Mapping[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the adapter weights, by their names in the checkpoint."""
    names = described.get("adapter_names")
    if names is None:  # written by MosaicML Composer, which supports only LoRA
        config = SimpleNamespace(bias=described["peft_config"]["content"].get("bias", "none"))
        return filter_state_dict_peft(weights, config, remove_adapter_names=False)
    return {name: value for name, value in weights.items() if name in names}


def _has_only_adapters(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint of a model with adapters lacks the base weights."""
    names = huggingface_metadata(cast("dict[str, Any]", state))["model"].get("adapter_names")
    if names is not None:
        return all(name in names for name in state["model"])
    return all("lora_" in name or "bias" in name for name in state["model"])


def _dtype(weights: Mapping[str, Tensor]) -> Any:
    """Return the dtype of the first floating-point weight."""
    return next((value.dtype for value in weights.values() if value.is_floating_point()), None)


@contextlib.contextmanager
def _silence_transformers() -> Generator[None]:
    """Silence the loading report and progress bar of transformers; we report mismatches ourselves."""
    logging: Any = import_extra("transformers.utils.logging", "nlp", "A Hugging Face model")
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _local_checkpoint(path: Path | str, keep: Path | str | None) -> Generator[Path]:
    """Yield a local path of a checkpoint, downloading it if necessary, and keep a copy if requested."""
    with fetched(path, progress_bar=False) as local:
        if keep is not None and dist.get_local_rank() == 0:
            destination = Path(keep)
            destination.parent.mkdir(parents=True, exist_ok=True)
            if local.is_dir():
                shutil.copytree(local, destination)
            else:
                shutil.copyfile(local, destination)
        yield local
