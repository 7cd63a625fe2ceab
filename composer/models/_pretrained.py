"""Models and tokenizers of transformers from checkpoints, and their folders."""

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
    """Return the model of transformers in a checkpoint, with its weights, and its tokenizer, None if it has none.

    See :meth:`.HuggingFaceModel.hf_from_composer_checkpoint`.
    """
    with _local(checkpoint_path, local_checkpoint_save_location) as path:
        content = read_checkpoint(path)
    model = get_hf_model_from_composer_state_dict(content, model_instantiation_class, model_config_kwargs)
    return model, get_hf_tokenizer_from_composer_state_dict(content, trust_remote_code)


def write_huggingface_pretrained_from_composer_checkpoint(
    checkpoint_path: Path | str,
    output_folder: Path | str,
    local_checkpoint_save_location: Path | str | None = None,
) -> None:
    """Write the folder of a model that ``from_pretrained`` reads: weights, configuration and tokenizer.

    The weights are written as safetensors. Of a checkpoint with adapters it is the folder of the adapters, for
    ``peft.PeftModel.from_pretrained(model, folder)``. If the checkpoint has the weights that they change as well,
    ``HuggingFaceModel.hf_from_composer_checkpoint(path)[0].merge_and_unload()`` makes one model of both.

    Args:
        checkpoint_path: A path or URI of a checkpoint of a :class:`.HuggingFaceModel`, a file or a folder.
        output_folder: Where to; must not be there, or be empty.
        local_checkpoint_save_location: Where to keep a copy of a checkpoint that is elsewhere.

    Raises:
        FileExistsError: There is something in the output folder.
        FileNotFoundError: There is no checkpoint.
        ValueError: The checkpoint does not have the configuration of a Hugging Face model.

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
        raise FileExistsError(f"output_folder={str(folder)!r} is not empty. Pass another name.")
    with _local(checkpoint_path, local_checkpoint_save_location) as path:
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
        config_overrides: Values that are to be others, by name.

    Raises:
        ValueError: The checkpoint does not have it, or transformers does not know the kind of model.
        MissingConditionalImportError: The package transformers is not installed.

    >>> described = {"model": {"config": {"content": {"model_type": "bert", "hidden_size": 8}}}}
    >>> checkpoint = {"state": {"integrations": {"huggingface": described}}}
    >>> config = get_hf_config_from_composer_state_dict(checkpoint, {"num_hidden_layers": 1})
    >>> type(config).__name__, config.hidden_size, config.num_hidden_layers
    ('BertConfig', 8, 1)
    """
    transformers: Any = import_extra("transformers", "nlp", "The configuration of a Hugging Face model")
    content = {**huggingface_metadata(state_dict["state"])["model"]["config"]["content"], **(config_overrides or {})}
    kind = content.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise ValueError(
            f"The checkpoint is of a model of the type {kind!r}, which transformers does not know. Import what "
            f"registers it with AutoConfig.register first."
        )
    return transformers.CONFIG_MAPPING[kind].from_dict(content)


def get_peft_config_from_composer_state_dict(state_dict: Mapping[str, Any]) -> Any:
    """Return the configuration of the adapters in a checkpoint, a ``PeftConfig``; None if it has none.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.

    Raises:
        ValueError: The checkpoint does not have the configuration of a Hugging Face model.
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
    """Return the tokenizer in a checkpoint; None if it has none.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.
        trust_remote_code: Whether the tokenizer may be of a class whose code is fetched from the hub, and run.
        tokenizer_save_dir: Where its files are to stay; None is a folder that goes when they are read.

    Raises:
        ValueError: The checkpoint does not have a Hugging Face model.
        MissingConditionalImportError: The package transformers is not installed.

    >>> described = {"model": {"config": {"content": {"model_type": "bert"}}}}
    >>> get_hf_tokenizer_from_composer_state_dict({"state": {"integrations": {"huggingface": described}}})
    """
    return tokenizer_from(huggingface_metadata(state_dict["state"]), trust_remote_code, tokenizer_save_dir)


def tokenizer_from(
    described: Mapping[str, Any], trust_remote_code: bool = False, tokenizer_save_dir: Path | str | None = None
) -> Any:
    """Return the tokenizer of what a checkpoint says of a Hugging Face model; None if there is none.

    Args:
        described: The part ``"integrations"/"huggingface"`` of a checkpoint.
        trust_remote_code: Whether code from the hub may run.
        tokenizer_save_dir: Where its files are to stay.
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
    # The folder may be gone; where the tokenizer came from first can still be asked for by name.
    tokenizer.name_or_path = files.get("tokenizer_config", {}).get("content", {}).get("name_or_path", "")
    return tokenizer


def get_hf_model_from_composer_state_dict(
    state_dict: Mapping[str, Any],
    model_instantiation_class: type | str | None = None,
    model_config_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return the model of transformers in a checkpoint, with its weights, on the host and in evaluation mode.

    Args:
        state_dict: A checkpoint, as :func:`.read_checkpoint` returns it.
        model_instantiation_class: A class of transformers, also one of the ``AutoModel`` kind, or its dotted name; None
            is the class that was saved.
        model_config_kwargs: Values of the configuration that are to be others than those saved.

    Raises:
        ValueError: The checkpoint lacks the configuration or weights of the model, or the class is none.
        MissingConditionalImportError: The package transformers is not installed, or peft where there are adapters.

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
    kind = _class_of(model_instantiation_class, described, config)
    if "model" not in state:
        raise ValueError("The checkpoint has no weights; it was saved without them.")
    weights = {name.removeprefix(_INNER): value for name, value in state["model"].items()}
    peft_config = get_peft_config_from_composer_state_dict(state_dict)
    if peft_config is None:
        # Another class, or other sizes, are asked for to train them; what was saved is to be there as it was.
        is_as_saved = model_instantiation_class is None and not model_config_kwargs
        model = _with_weights(kind, config, weights, strict=is_as_saved)
    elif _has_adapters_alone(state):
        raise ValueError(
            "The checkpoint has adapters without the weights that they change. Write them to a folder, with "
            "write_huggingface_pretrained_from_composer_checkpoint, that peft.PeftModel.from_pretrained(model, folder) "
            "reads; or train with should_save_peft_only=False."
        )
    else:
        model = with_adapters(kind(config), peft_config)
        model.load_state_dict(weights)
        model.to(_dtype(weights)).eval()
    if saved := described["model"].get("generation_config"):
        transformers: Any = import_extra("transformers", "nlp", "A Hugging Face model")
        cast(Any, model).generation_config = transformers.GenerationConfig.from_dict(saved["content"])
    return model


def _class_of(asked: type | str | None, described: Mapping[str, Any], config: Any) -> Any:
    """The class of the model; what the checkpoint says is followed into transformers only, as it could run code."""
    transformers: Any = import_extra("transformers", "nlp", "A Hugging Face model")
    name = described["model"]["config"].get("class", "") if asked is None else asked
    if isinstance(name, str):
        if asked is None and not name.startswith("transformers."):
            raise ValueError(
                f"The checkpoint is of a model of the class {name!r}, which is not imported because a file says so. "
                f"Pass model_instantiation_class={name!r} if you trust it."
            )
        module, _, attribute = name.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"model_instantiation_class: there is no class {name!r} ({error}).") from error
    else:
        kind = name
    if hasattr(kind, "from_config") and not hasattr(kind, "base_model_prefix"):  # of the AutoModel kind
        import torch

        # What a file says is no reason to fetch code and run it, nor to ask whether to.
        local = {"trust_remote_code": False} if kind.__module__.startswith("transformers.") else {}
        with torch.device("meta"):
            return type(kind.from_config(config, **local))
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"model_instantiation_class must be a class of models of transformers, but got {kind!r}.")
    return kind


def _with_weights(kind: Any, config: Any, weights: dict[str, Tensor], *, strict: bool) -> nn.Module:
    name = config.name_or_path  # which reading from no place would overwrite
    with _quiet():
        model, report = kind.from_pretrained(
            None, config=config, state_dict=weights, dtype=_dtype(weights), output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    model.name_or_path = model.config.name_or_path = name
    sizes = sorted(str(name[0]) for name in report["mismatched_keys"])
    told = [
        *([f"the checkpoint lacks {first_of(sorted(report['missing_keys']))}"] if report["missing_keys"] else []),
        *([f"the model lacks {first_of(sorted(report['unexpected_keys']))}"] if report["unexpected_keys"] else []),
        *([f"of other sizes are {first_of(sizes)}"] if sizes else []),
    ]
    if told and strict:
        raise ValueError(f"The weights in the checkpoint are not those of {kind.__name__}: {'; '.join(told)}.")
    if told:
        message = f"{kind.__name__} has not all of its weights from the checkpoint: {'; '.join(told)}."
        warnings.warn(message, ComposerWarning, stacklevel=4)
    return model


def _adapters_in(described: Mapping[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of adapters, by their names in the checkpoint."""
    names = described.get("adapter_names")
    if names is None:  # written by the predecessor, which has LoRA only
        config = SimpleNamespace(bias=described["peft_config"]["content"].get("bias", "none"))
        return filter_state_dict_peft(weights, config, remove_adapter_names=False)
    return {name: value for name, value in weights.items() if name in names}


def _has_adapters_alone(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint of a model with adapters lacks the weights that these change."""
    names = huggingface_metadata(cast("dict[str, Any]", state))["model"].get("adapter_names")
    if names is not None:
        return all(name in names for name in state["model"])
    return all("lora_" in name or "bias" in name for name in state["model"])


def _dtype(weights: Mapping[str, Tensor]) -> Any:
    """The dtype of the first weight that is a fraction, as models have one."""
    return next((value.dtype for value in weights.values() if value.is_floating_point()), None)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep transformers from telling what it reads, and what not: we tell that."""
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
def _local(path: Path | str, keep: Path | str | None) -> Generator[Path]:
    """Give the path of a checkpoint on this machine, and leave a copy where it is wanted."""
    with fetched(path, progress_bar=False) as local:
        if keep is not None and dist.get_local_rank() == 0:
            destination = Path(keep)
            destination.parent.mkdir(parents=True, exist_ok=True)
            if local.is_dir():
                shutil.copytree(local, destination)
            else:
                shutil.copyfile(local, destination)
        yield local
