"""Models of `transformers` in training: their loss, metrics, adapters, tokenizer and checkpoints."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from composer import dist
from composer._lazy import MissingConditionalImportError
from composer._text import first_of
from composer.checkpoint.huggingface import read_tokenizer
from composer.core.model import ComposerModel
from composer.core.types import Batch
from composer.dist.dtensor import is_dtensor
from composer.models import _pretrained, _transformers
from composer.models._adapters import (
    adapter_names,
    filter_state_dict_peft,
    has_adapters,
    maybe_get_underlying_model,
    peft_installed,
    save_adapters_only,
    with_adapters,
)
from composer.models._deferred_init import give_first_values
from composer.models._metrics import WithMetrics, metrics_by_name
from composer.models._pretrained import (
    get_hf_config_from_composer_state_dict,
    get_hf_model_from_composer_state_dict,
    get_hf_tokenizer_from_composer_state_dict,
    get_peft_config_from_composer_state_dict,
    write_huggingface_pretrained_from_composer_checkpoint,
)

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

__all__ = [
    "HuggingFaceModel",
    "filter_state_dict_peft",
    "get_hf_config_from_composer_state_dict",
    "get_hf_model_from_composer_state_dict",
    "get_hf_tokenizer_from_composer_state_dict",
    "get_peft_config_from_composer_state_dict",
    "maybe_get_underlying_model",
    "peft_installed",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

_IGNORED = -100


class HuggingFaceModel(WithMetrics, ComposerModel):
    """Trains a model of `transformers` on batches that are mappings, such as tokenizers and data collators make.

    The model computes its loss itself, from ``batch["labels"]``; entries of the batch that its forward pass does not
    know are left out. Where labels are tokens the loss is a mean over those that count (those that are not -100, and in
    causal models not the first of a sequence), by whose number the microbatches of a batch are weighted: the gradient
    is that of the whole batch however it is split, and however many processes share it.

    Checkpoints have the configuration and the tokenizer beside the weights, in the form of MosaicML Composer, so that
    :meth:`hf_from_composer_checkpoint` makes the model again from the file alone.

    Args:
        model: A ``PreTrainedModel``, a ``PeftModel`` of one, or any module with a ``config`` whose forward pass takes
            arguments by name and returns, in a mapping, a tuple or an object, the loss and the logits.
        tokenizer: The tokenizer of the data, saved with the model; None leaves it out.
        use_logits: Whether metrics are given the logits rather than all that the model returns. Then evaluation
            computes no loss.
        metrics: Metrics of the training steps: a list, named by their classes, or a dict by name; None for none.
        eval_metrics: Metrics of evaluation; None is copies of ``metrics``.
        shift_labels: Whether place i predicts label i + 1, so that metrics are given labels moved by one; None is what
            the class of the model does.
        allow_embedding_resizing: Whether a model with fewer tokens than the tokenizer gets further embeddings.
        peft_config: Configuration of adapters of `peft` that are put into the model, whose own weights are frozen, such
            as a ``LoraConfig``, or a dict of its arguments with ``"peft_type"`` (extra ``peft``). Types are taken in
            any case.
        should_save_peft_only: Whether, with adapters, the state dict has these alone.

    Attributes:
        model: The model of transformers, with the adapters if there are some.
        tokenizer: The tokenizer, or None.
        config: The configuration of the model.
        train_metrics: Metrics of the training steps by name; can be set.
        val_metrics: Metrics of evaluation by name; can be set.
        using_peft: Whether the model has adapters.

    Raises:
        TypeError: The model has no ``config``, or the metrics are in no known form.
        ValueError: The tokenizer has more tokens than the model, or the adapters are of a kind that is not supported.
        MissingConditionalImportError: There is a ``peft_config``, and the package is not installed.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> config = GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> model = HuggingFaceModel(GPT2LMHeadModel(config), use_logits=True)
    >>> batch = {"input_ids": torch.arange(8).view(2, 4), "labels": torch.arange(8).view(2, 4)}
    >>> model.loss(model(batch), batch).shape, model.eval_forward(batch).shape
    (torch.Size([]), torch.Size([2, 4, 16]))
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        use_logits: bool = False,
        metrics: Sequence[Metric] | Mapping[str, Metric] | Metric | MetricCollection | None = None,
        eval_metrics: Sequence[Metric] | Mapping[str, Metric] | Metric | MetricCollection | None = None,
        shift_labels: bool | None = None,
        allow_embedding_resizing: bool = False,
        peft_config: Any = None,
        should_save_peft_only: bool = True,
    ) -> None:
        super().__init__()
        if peft_config is not None and not peft_installed:
            raise MissingConditionalImportError("peft", "peft", purpose="HuggingFaceModel(peft_config=...)")
        underlying = maybe_get_underlying_model(model)
        if not hasattr(underlying, "config"):
            wanted = "a model of transformers, such as AutoModelForCausalLM.from_pretrained(...), or have a config"
            raise TypeError(f"model must be {wanted} as those have, but got a {type(model).__name__}.")
        self.saves_embeddings = _transformers.fit_embeddings(underlying, tokenizer, allow_embedding_resizing)
        self.model: Any = model if peft_config is None else with_adapters(model, peft_config)
        self.config: Any = underlying.config
        self.tokenizer = tokenizer
        self.use_logits = use_logits
        self.using_peft = has_adapters(self.model)
        self.should_save_peft_only = should_save_peft_only
        self.shift_labels = _transformers.shifts_labels(underlying, shift_labels)
        self.model_forward_args = _transformers.arguments_of(underlying)
        self.train_metrics = metrics_by_name("metrics", metrics)
        self.val_metrics = (
            copy.deepcopy(self.train_metrics) if eval_metrics is None else metrics_by_name("eval_metrics", eval_metrics)
        )
        self._tokenizer_files: tuple[Any, int, bytes] | None = None
        if self.using_peft:
            save_adapters_only(self)

    def param_init_fn(self, module: nn.Module) -> None:
        """Give a module the values of a new model, where it was made on ``meta`` and weights are divided now.

        Args:
            module: A part of the model.

        Raises:
            ValueError: The model does not tell how they are made, or has adapters, which need trained weights.
        """
        give_first_values(self.model, module)

    def forward(self, batch: Batch) -> Any:
        """Return what the model returns for a batch: a mapping with ``"loss"``, if there are labels, and ``"logits"``.

        Args:
            batch: A mapping; entries that the model's forward pass does not know are left out.

        Raises:
            TypeError: The batch is no mapping.
            ValueError: Nothing in it is an argument of the model's forward pass.
        """
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"HuggingFaceModel takes batches that are mappings, such as {{'input_ids': ...}}, but got a "
                f"{type(batch).__name__}. Let the data loader collate dicts."
            )
        batch = cast("Mapping[str, Any]", batch)
        known = self.model_forward_args
        arguments = {name: value for name, value in batch.items() if known is None or name in known}
        if not arguments:
            raise ValueError(
                f"The batch has {first_of(list(batch))}, of which {type(self.model).__name__} takes nothing; it takes "
                f"{first_of(sorted(known or ()))}."
            )
        return self.model(**arguments)

    def loss(self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss that the model has computed.

        Args:
            outputs: What :meth:`forward` returned.
            batch: The batch; its loss is among the outputs.
            *args: For a subclass's own use.
            **kwargs: For a subclass's own use.

        Raises:
            ValueError: There is none.
        """
        loss = _transformers.loss_of(outputs)
        if loss is None:
            raise ValueError(
                f"{type(self.model).__name__} has returned no loss for a batch with {first_of(list(batch))}; models of "
                f"transformers compute it where the batch has 'labels'."
            )
        return loss

    def __count_targets__(self, batch: Batch) -> Tensor | None:
        """Return what the loss of a batch averages over, a 0-d tensor; None where that is samples.

        Args:
            batch: A mapping; ``"labels"`` that are whole numbers are counted.
        """
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return None
        if self.shift_labels and labels.ndim > 1:
            labels = labels[..., 1:]
        return (labels != _IGNORED).sum()

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> Any:
        """Return what metrics are updated with; the batch is left as it is.

        That is what the model returns, or its logits with ``use_logits``, (B, ...), without the dimension of classes
        where there is one. Where ``batch["mode"]`` is ``"icl_task"`` it is logits too, and where it is ``"generate"``
        the texts that the model writes, by the arguments of :meth:`generate` in ``batch["generation_kwargs"]``, of
        ``batch["generation_length"]`` tokens at most where that is there. They begin with a space if the tokenizer
        makes more than one token of ``" a"``.

        Args:
            batch: A mapping.
            outputs: What :meth:`forward` returned in the training step.

        Raises:
            ValueError: Logits are asked for and the model returns none, or a text without a tokenizer.
        """
        mode = batch.get("mode")
        if mode == "generate":
            return self._write(batch)
        if not self.use_logits and mode != "icl_task":
            return self(batch) if outputs is None else outputs
        logits = _transformers.logits_of(self(self._without_labels(batch)) if outputs is None else outputs)
        return logits.squeeze(1) if logits.ndim == 2 and logits.shape[1] == 1 else logits

    def update_metric(self, batch: Batch, outputs: Any, metric: Metric) -> Any:
        """Add a batch to a metric, which is given the outputs and the labels, or the batch too if it ``needs_batch``.

        Args:
            batch: A mapping with ``"labels"``, which a causal model's metrics are given as :attr:`shift_labels` says.
            outputs: What :meth:`eval_forward` returned.
            metric: The metric, changed in place.

        Raises:
            ValueError: The batch has no labels.
        """
        labels: Any = batch.get("labels")
        if labels is None:
            raise ValueError(f"Metrics need 'labels' in the batch, which has {first_of(list(batch))}.")
        if isinstance(labels, Tensor) and labels.ndim > 1 and (self.shift_labels or batch.get("mode") == "icl_task"):
            labels = F.pad(labels[..., 1:], (0, 1), value=_IGNORED)
        if getattr(metric, "needs_batch", False):
            return metric.update(batch=batch, outputs=outputs, labels=labels)
        return metric.update(outputs, labels)

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:
        """Return the metrics by name; the objects themselves, which the trainer copies.

        Args:
            is_train: Whether those of the training steps are asked for, rather than those of evaluation.
        """
        name = "train_metrics" if is_train else "val_metrics"
        return metrics_by_name(name, getattr(self, name))

    def generate(self, input_ids: Tensor, **kwargs: Any) -> Any:
        """Return tokens with which the model goes on from others, as its own ``generate`` does.

        Tokens are padded with the tokenizer's token for padding, or else for the end, where nothing else is said. The
        model may be divided among processes, all of which must call this then.

        Args:
            input_ids: Tokens to go on from, (B, S), padded on the left; brought to the device of the model.
            **kwargs: Arguments of the model's ``generate``; tensors among them are brought to the device too.

        Raises:
            ValueError: The model cannot generate.
        """
        underlying = maybe_get_underlying_model(self.model)
        if not getattr(underlying, "can_generate", lambda: hasattr(underlying, "generate"))():
            raise ValueError(f"{type(underlying).__name__} cannot generate; models for causal language modelling can.")
        told = (kwargs.get("generation_config"), getattr(underlying, "generation_config", None))
        if self.tokenizer is not None and all(getattr(one, "pad_token_id", None) is None for one in told):
            token = self.tokenizer.pad_token_id
            kwargs.setdefault("pad_token_id", self.tokenizer.eos_token_id if token is None else token)
        first = next(self.parameters())
        if is_dtensor(first):
            # Others may have longer texts to write, and need this process's part of the weights for it.
            kwargs.setdefault("synced_gpus", dist.get_world_size() > 1)
        else:
            input_ids = input_ids.to(first.device)
            kwargs = {k: v.to(first.device) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        return self.model.generate(input_ids=input_ids, **kwargs)

    def get_metadata(self) -> dict[str, Any]:
        """Return what checkpoints hold beside the weights: configuration, adapters' configuration and tokenizer."""
        described = _transformers.configuration_of(maybe_get_underlying_model(self.model))
        if self.using_peft:
            adapter = _transformers.as_json(self.model.peft_config[self.model.active_adapter].to_dict())
            described["peft_config"] = {**described["config"], "content": adapter}
            names = adapter_names(self.model, self.model.state_dict(), embeddings=self.saves_embeddings)
            described["adapter_names"] = {f"model.{ours}": theirs for ours, theirs in names.items()}
        return {"model": described, "tokenizer": self._tokenizer_as_files()}

    def _tokenizer_as_files(self) -> dict[str, Any]:
        """The files of the tokenizer, which are made when they are needed first and when tokens were added."""
        if self.tokenizer is None:
            return {}
        known = self._tokenizer_files
        if known is None or known[0] is not self.tokenizer or known[1] != len(self.tokenizer):
            with tempfile.TemporaryDirectory(prefix="composer-") as folder:
                self.tokenizer.save_pretrained(folder)
                files = pickle.dumps(read_tokenizer(Path(folder)))
            known = self._tokenizer_files = (self.tokenizer, len(self.tokenizer), files)
        return pickle.loads(known[2])  # a copy each time: who saves may edit it

    def _without_labels(self, batch: Batch) -> dict[str, Any]:
        """The batch as one from which no loss is computed; a decoder's inputs are made of the labels all the same."""
        given = {name: value for name, value in batch.items() if name != "labels"}
        inputs = {"decoder_input_ids", "decoder_inputs_embeds"}
        if getattr(self.config, "is_encoder_decoder", False) and inputs.isdisjoint(given):
            make = getattr(maybe_get_underlying_model(self.model), "prepare_decoder_input_ids_from_labels", None)
            if make is None:
                return dict(batch)
            given["decoder_input_ids"] = make(labels=batch["labels"])
        return given

    def _write(self, batch: Batch) -> list[str]:
        """The texts with which the model goes on from those of a batch."""
        if self.tokenizer is None:
            raise ValueError("batch['mode'] is 'generate', which needs a tokenizer: HuggingFaceModel(tokenizer=...).")
        given = _transformers.generation_arguments(batch)
        tokens = self.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **given)
        if not getattr(self.config, "is_encoder_decoder", False):
            tokens = tokens[:, batch["input_ids"].shape[1] :]
        return _transformers.texts_of(self.tokenizer, tokens)

    @staticmethod
    def hf_from_composer_checkpoint(
        checkpoint_path: Path | str,
        model_instantiation_class: type | str | None = None,
        model_config_kwargs: Mapping[str, Any] | None = None,
        local_checkpoint_save_location: Path | str | None = None,
        trust_remote_code: bool = False,
    ) -> tuple[nn.Module, Any]:
        """Return the model of transformers in a checkpoint, with its weights, and its tokenizer, None if it has none.

        Args:
            checkpoint_path: A path or URI of a checkpoint, a file or a folder, also one of MosaicML Composer.
            model_instantiation_class: A class of transformers, also one of the ``AutoModel`` kind, or its dotted name;
                None is the class that was saved. Weights that another class lacks, or has beside, a warning tells.
            model_config_kwargs: Values of the configuration that are to be others than those saved.
            local_checkpoint_save_location: Where to keep a copy of a checkpoint that is elsewhere.
            trust_remote_code: Whether the tokenizer may be of a class whose code is fetched from the hub, and run.

        Raises:
            FileNotFoundError: There is no checkpoint.
            ValueError: The checkpoint is of no Hugging Face model, or the weights are not those of the class saved.
        """
        return _pretrained.hf_from_composer_checkpoint(
            checkpoint_path,
            model_instantiation_class,
            model_config_kwargs,
            local_checkpoint_save_location,
            trust_remote_code,
        )

    @staticmethod
    def load_huggingface_tokenizer_from_saved_state(
        hf_state: Mapping[str, Any], trust_remote_code: bool = False, tokenizer_save_dir: Path | str | None = None
    ) -> Any:
        """Return the tokenizer in the part ``["state"]["integrations"]["huggingface"]`` of a checkpoint, or None.

        Args:
            hf_state: That part.
            trust_remote_code: Whether the tokenizer may be of a class whose code is fetched from the hub, and run.
            tokenizer_save_dir: Where its files are to stay; None is a folder that goes when they are read.
        """
        return _pretrained.tokenizer_from(hf_state, trust_remote_code, tokenizer_save_dir)

    @staticmethod
    def load_huggingface_model_from_saved_state(
        hf_state: Mapping[str, Any],
        loaded_state_dict: Mapping[str, Any],
        model_instantiation_class: type | str | None = None,
        model_config_kwargs: Mapping[str, Any] | None = None,
    ) -> nn.Module:
        """Return the model in a checkpoint, with its weights.

        Args:
            hf_state: The part ``["state"]["integrations"]["huggingface"]`` of the checkpoint.
            loaded_state_dict: The checkpoint.
            model_instantiation_class: The class, see :meth:`hf_from_composer_checkpoint`.
            model_config_kwargs: Values of the configuration that are to be others than those saved.

        Raises:
            ValueError: The checkpoint lacks the configuration or weights of the model.
        """
        state = {**loaded_state_dict["state"], "integrations": {"huggingface": hf_state}}
        return get_hf_model_from_composer_state_dict({"state": state}, model_instantiation_class, model_config_kwargs)
