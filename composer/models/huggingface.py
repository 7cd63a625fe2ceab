"""Train Hugging Face `transformers` models: loss, metrics, generation, PEFT adapters, tokenizer and checkpoints."""

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
from composer.models._decoder_inputs import decoder_inputs, require_decoder_inputs
from composer.models._deferred_init import initialize_parameters
from composer.models._metrics import MetricAttributes, metrics_by_name
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


class HuggingFaceModel(MetricAttributes, ComposerModel):
    """Train a `transformers` model on batches that are mappings, as tokenizers and data collators return.

    The model computes its loss from ``batch["labels"]``; batch entries that its forward pass does not accept are
    dropped. If labels are tokens, the loss is the mean over the counted tokens (those that are not -100, and in causal
    models not the first of a sequence), and microbatches are weighted by their number: the gradient is that of the full
    batch, for any microbatch size (gradient accumulation) and any number of ranks.

    Checkpoints contain the configuration and the tokenizer in addition to the weights, in the format of MosaicML
    Composer, so that :meth:`hf_from_composer_checkpoint` restores the model from the file alone.

    Args:
        model: A ``PreTrainedModel``, a ``PeftModel`` of one, or any module with a ``config`` whose forward pass takes
            keyword arguments and returns the loss and the logits in a mapping, a tuple or an object.
        tokenizer: The tokenizer of the data, saved with the model; None for none.
        use_logits: Whether metrics receive the logits instead of all outputs of the model. Evaluation then does not
            compute the loss.
        metrics: Training metrics: a list, named by class, or a dict by name; None for none.
        eval_metrics: Evaluation metrics; None for copies of ``metrics``.
        shift_labels: Whether position i predicts label i + 1, so that metrics receive labels shifted by one; None for
            the default of the model class.
        allow_embedding_resizing: Whether to enlarge the embeddings of a model with fewer tokens than the tokenizer.
        peft_config: Configuration of `peft` adapters to add to the model, whose base weights are frozen: a
            ``PeftConfig`` such as ``LoraConfig``, or a dict of its arguments with ``"peft_type"`` (extra ``peft``).
            Types are case-insensitive.
        should_save_peft_only: Whether the state dict of a model with adapters contains only the adapters.

    Attributes:
        model: The transformers model, with adapters if any.
        tokenizer: The tokenizer, or None.
        config: The configuration of the model.
        train_metrics: Training metrics by name; can be set.
        val_metrics: Evaluation metrics by name; can be set.
        using_peft: Whether the model has adapters.

    Raises:
        TypeError: The model has no ``config``, or the metrics have an unsupported format.
        ValueError: The tokenizer has more tokens than the model, or the type of adapters is not supported.
        MissingConditionalImportError: ``peft_config`` is given and the package is not installed.

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
            expected = "a transformers model, such as AutoModelForCausalLM.from_pretrained(...), or have a config"
            raise TypeError(f"model must be {expected} attribute, but got a {type(model).__name__}.")
        self.saves_embeddings = _transformers.resize_embeddings(underlying, tokenizer, allow_embedding_resizing)
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
        self._are_weights_checked = False
        if self.using_peft:
            save_adapters_only(self)

    def param_init_fn(self, module: nn.Module) -> None:
        """Initialize the weights of a module after the model was created on ``meta`` and sharded (deferred init).

        Args:
            module: A submodule of the model.

        Raises:
            ValueError: The model has no initialization for a weight, or it has adapters, which need trained weights.
        """
        initialize_parameters(self.model, module)

    def forward(self, batch: Batch) -> Any:
        """Return the outputs of the model: a mapping with ``"logits"`` and, if the batch has labels, ``"loss"``.

        Args:
            batch: A mapping; entries that the model's forward pass does not accept are dropped. ``use_cache`` is False
                unless the batch has it: with a cache, transformers models mix documents packed into a row.

        Raises:
            TypeError: The batch is not a mapping.
            ValueError: No entry is an argument of the model's forward pass; or the batch has ``"loss_weights"`` that
                are not one for each label, or (on a device only in the first batch) not 0 or 1, or of labels that are
                not classes, and the model does not take weights; or the model needs decoder inputs, which it does not
                make before labels of weight 0 are ignored.
        """
        if not isinstance(batch, Mapping):
            what = f"mappings, such as {{'input_ids': ...}}, but got a {type(batch).__name__}"
            raise TypeError(f"HuggingFaceModel requires batches that are {what}. Use a collate_fn that returns dicts.")
        batch = cast("Mapping[str, Any]", batch)
        known = self.model_forward_args
        arguments = _transformers.forward_arguments(self.model, batch, known)
        if "loss_weights" in batch and "labels" in arguments and "loss_weights" not in arguments:
            arguments["labels"] = _transformers.weighted_labels(self.model, batch, check=not self._are_weights_checked)
            arguments |= require_decoder_inputs(self.model, batch, known)
            self._are_weights_checked = True  # once: it waits for the device
        return self.model(**_transformers.without_cache(self.model, arguments, known))

    def loss(self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss that the model computed in :meth:`forward`.

        Args:
            outputs: The result of :meth:`forward`.
            batch: The batch.
            *args: Not used; for subclasses.
            **kwargs: Not used; for subclasses.

        Raises:
            ValueError: The outputs have no loss.
        """
        loss = _transformers.loss_of(outputs)
        if loss is None:
            raise ValueError(
                f"{type(self.model).__name__} returned no loss for a batch with the keys {first_of(list(batch))}; "
                f"transformers models compute it if the batch has 'labels'."
            )
        return loss

    def __count_targets__(self, batch: Batch) -> Tensor | None:
        """Return the number of targets over which the loss is averaged, a 0-d tensor; None if these are samples.

        Args:
            batch: A mapping; integer ``"labels"`` are counted. If the model takes ``"loss_weights"``, and there is one
                for each label, their sum is returned.
        """
        takes_weights = self._takes_weights
        return _transformers.count_targets(self.model, batch, takes_weights=takes_weights, shift=self.shift_labels)

    @property
    def _takes_weights(self) -> bool:
        """Whether the forward pass takes ``loss_weights``, rather than ignoring the labels whose weight is 0."""
        return self.model_forward_args is None or "loss_weights" in self.model_forward_args

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> Any:
        """Return the outputs for metrics, without modifying the batch.

        These are the outputs of the model, or with ``use_logits`` its logits, (B, ...), without the class dimension if
        there is only one class. The mode ``batch["mode"] == "icl_task"`` returns logits too. The mode ``"generate"``
        returns generated texts, with the arguments of :meth:`generate` in ``batch["generation_kwargs"]`` and at most
        ``batch["generation_length"]`` tokens if present. The texts start with a space if the tokenizer encodes ``" a"``
        as more than one token.

        Args:
            batch: A mapping.
            outputs: The result of :meth:`forward` in the training step.

        Raises:
            ValueError: Logits are required and the model returns none, or text generation without a tokenizer.
        """
        mode = batch.get("mode")
        if mode == "generate":
            return self._generate_texts(batch)
        if not self.use_logits and mode != "icl_task":
            return self(batch) if outputs is None else outputs
        logits = _transformers.logits_of(self(self._without_labels(batch)) if outputs is None else outputs)
        return logits.squeeze(1) if logits.ndim == 2 and logits.shape[1] == 1 else logits

    def update_metric(self, batch: Batch, outputs: Any, metric: Metric) -> Any:
        """Update a metric with outputs and labels, and also with the batch if the metric has ``needs_batch``.

        Args:
            batch: A mapping with ``"labels"``, which are shifted by one with :attr:`shift_labels`; labels whose
                ``"loss_weights"`` are 0 become -100.
            outputs: The result of :meth:`eval_forward`.
            metric: The metric, changed in place.

        Raises:
            ValueError: The batch has no labels.
        """
        labels: Any = _transformers.metric_labels(self.model, batch, takes_weights=self._takes_weights)
        if labels is None:
            raise ValueError(f"Metrics need 'labels' in the batch, but it has only {first_of(list(batch))}.")
        if isinstance(labels, Tensor) and labels.ndim > 1 and (self.shift_labels or batch.get("mode") == "icl_task"):
            labels = F.pad(labels[..., 1:], (0, 1), value=_transformers.IGNORED)
        if getattr(metric, "needs_batch", False):
            return metric.update(batch=batch, outputs=outputs, labels=labels)
        return metric.update(outputs, labels)

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:
        """Return the metrics by name, not copied; the trainer makes copies.

        Args:
            is_train: Whether to return the training metrics instead of the evaluation metrics.
        """
        name = "train_metrics" if is_train else "val_metrics"
        return metrics_by_name(name, getattr(self, name))

    def generate(self, input_ids: Tensor, **kwargs: Any) -> Any:
        """Generate tokens with ``generate`` of the transformers model.

        The default padding token is the tokenizer's padding token, or else its end-of-sequence token. If the model is
        sharded, all ranks must call this.

        Args:
            input_ids: Prompt tokens, (B, S), padded on the left; moved to the device of the model.
            **kwargs: Arguments of the model's ``generate``; tensors are moved to the device too.

        Raises:
            ValueError: The model does not support generation.
        """
        underlying = maybe_get_underlying_model(self.model)
        if not getattr(underlying, "can_generate", lambda: hasattr(underlying, "generate"))():
            raise ValueError(f"{type(underlying).__name__} cannot generate; use a causal language model, for example.")
        configs = (kwargs.get("generation_config"), getattr(underlying, "generation_config", None))
        if self.tokenizer is not None and all(getattr(config, "pad_token_id", None) is None for config in configs):
            token = self.tokenizer.pad_token_id
            kwargs.setdefault("pad_token_id", self.tokenizer.eos_token_id if token is None else token)
        first = next(self.parameters())
        if is_dtensor(first):
            # Other ranks may generate longer texts, and need this rank's shards until they finish.
            kwargs.setdefault("synced_gpus", dist.get_world_size() > 1)
        else:
            input_ids = input_ids.to(first.device)
            kwargs = {k: v.to(first.device) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        return self.model.generate(input_ids=input_ids, **kwargs)

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata for checkpoints: model configuration, adapter configuration and tokenizer files."""
        described = _transformers.configuration_of(maybe_get_underlying_model(self.model))
        if self.using_peft:
            adapter = _transformers.as_json(self.model.peft_config[self.model.active_adapter].to_dict())
            described["peft_config"] = {**described["config"], "content": adapter}
            names = adapter_names(self.model, self.model.state_dict(), embeddings=self.saves_embeddings)
            described["adapter_names"] = {f"model.{ours}": theirs for ours, theirs in names.items()}
        return {"model": described, "tokenizer": self._tokenizer_as_files()}

    def _tokenizer_as_files(self) -> dict[str, Any]:
        """Return the tokenizer files, cached until tokens are added."""
        if self.tokenizer is None:
            return {}
        known = self._tokenizer_files
        if known is None or known[0] is not self.tokenizer or known[1] != len(self.tokenizer):
            with tempfile.TemporaryDirectory(prefix="composer-") as folder:
                self.tokenizer.save_pretrained(folder)
                files = pickle.dumps(read_tokenizer(Path(folder)))
            known = self._tokenizer_files = (self.tokenizer, len(self.tokenizer), files)
        return pickle.loads(known[2])  # a new copy for each caller, which may modify it

    def _without_labels(self, batch: Batch) -> dict[str, Any]:
        """Return the batch without labels, so that no loss is computed; decoder inputs are made from them if needed."""
        made = decoder_inputs(self.model, batch)
        if made is None:
            return dict(batch)
        return {**{name: value for name, value in batch.items() if name != "labels"}, **made}

    def _generate_texts(self, batch: Batch) -> list[str]:
        """Return the generated continuations of the prompts in a batch."""
        if self.tokenizer is None:
            raise ValueError("batch['mode'] is 'generate', which needs a tokenizer: HuggingFaceModel(tokenizer=...).")
        given = _transformers.generation_arguments(batch)
        tokens = self.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **given)
        if not getattr(self.config, "is_encoder_decoder", False):
            tokens = tokens[:, batch["input_ids"].shape[1] :]
        return _transformers.decode_continuations(self.tokenizer, tokens)

    @staticmethod
    def hf_from_composer_checkpoint(
        checkpoint_path: Path | str,
        model_instantiation_class: type | str | None = None,
        model_config_kwargs: Mapping[str, Any] | None = None,
        local_checkpoint_save_location: Path | str | None = None,
        trust_remote_code: bool = False,
    ) -> tuple[nn.Module, Any]:
        """Return the transformers model in a checkpoint, with its weights, and its tokenizer or None.

        Args:
            checkpoint_path: Path or URI of a checkpoint, a file or a folder; those of MosaicML Composer work too.
            model_instantiation_class: A transformers model class or auto class, or its dotted name; None for the saved
                class. A warning lists missing and unexpected weights of another class.
            model_config_kwargs: Values that override the saved configuration.
            local_checkpoint_save_location: Path at which to keep a copy of a remote checkpoint.
            trust_remote_code: Whether to allow tokenizer classes whose code is downloaded from the hub and run.

        Raises:
            FileNotFoundError: The checkpoint does not exist.
            ValueError: The checkpoint has no Hugging Face model, or its weights do not match the saved class.
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
        """Return the tokenizer in the entry ``["state"]["integrations"]["huggingface"]`` of a checkpoint, or None.

        Args:
            hf_state: That entry.
            trust_remote_code: Whether to allow tokenizer classes whose code is downloaded from the hub and run.
            tokenizer_save_dir: Folder in which to keep the tokenizer files; None for a temporary folder.
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
            hf_state: The entry ``["state"]["integrations"]["huggingface"]`` of the checkpoint.
            loaded_state_dict: The checkpoint.
            model_instantiation_class: The class, see :meth:`hf_from_composer_checkpoint`.
            model_config_kwargs: Values that override the saved configuration.

        Raises:
            ValueError: The checkpoint lacks the configuration or weights of the model.
        """
        state = {**loaded_state_dict["state"], "integrations": {"huggingface": hf_state}}
        return get_hf_model_from_composer_state_dict({"state": state}, model_instantiation_class, model_config_kwargs)
