"""The table of import paths of MosaicML Composer 0.32 that :mod:`composer._older_homes` makes aliases of.

A value says where names are now: modules that are searched in order, and ``old=module:new`` for a name that is called
otherwise. A module with an empty value has its own names only. All of them have what :data:`PUBLIC` has besides, as the
modules of the predecessor had imported much of that for themselves, and scripts import it from there.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ABSENT", "HOMES", "PACKAGES", "PUBLIC"]

PUBLIC: Final = (
    "composer",
    "composer.core",
    "composer.utils",
    "composer.utils.dist",
    "composer.utils.device",
    "composer.loggers",
    "composer.devices",
    "composer.optim",
    "composer.models",
    "composer.callbacks",
    "composer.distributed",
    "composer.metrics",
    "composer.loss",
    "composer.loss.utils",
    "composer.profiler",
    "composer.algorithms.utils",
    "composer.algorithms.warnings",
    "composer.checkpoint",
    "composer.trainer.options",
)

# Method -> where the layers and helpers are that stood beside it.
_METHODS = {
    "alibi": "",
    "augmix": "",
    "blurpool": "composer.nn.blurpool",
    "channels_last": "",
    "colout": "",
    "cutmix": "",
    "cutout": "",
    "ema": "",
    "factorize": "composer.nn.factorized composer.nn.low_rank",
    "gated_linear_units": "composer.nn.gated_linear",
    "ghost_batchnorm": "composer.nn.ghost_batchnorm",
    "gradient_clipping": "",
    "gyro_dropout": "composer.nn.gyro_dropout",
    "label_smoothing": "",
    "layer_freezing": "",
    "low_precision_groupnorm": "composer.nn.low_precision_norm",
    "low_precision_layernorm": "composer.nn.low_precision_norm",
    "mixup": "",
    "no_op_model": "",
    "progressive_resizing": "",
    "randaugment": "",
    "sam": "",
    "selective_backprop": "",
    "seq_length_warmup": "",
    "squeeze_excite": "composer.nn.squeeze_excite",
    "stochastic_depth": "composer.nn.stochastic_depth",
    "swa": "",
    "weight_standardization": "",
}

# Modules with a file here, in which scripts find what the predecessor's had imported.
_WITH_FILES = """
    algorithms.utils.augmentation_common algorithms.utils.augmentation_primitives callbacks.activation_monitor
    callbacks.checkpoint_saver callbacks.early_stopper callbacks.export_for_inference callbacks.free_outputs
    callbacks.garbage_collector callbacks.generate callbacks.image_visualizer callbacks.load_checkpoint
    callbacks.lr_monitor callbacks.memory_monitor callbacks.memory_snapshot callbacks.mlperf callbacks.nan_monitor
    callbacks.oom_observer callbacks.optimizer_monitor callbacks.runtime_estimator callbacks.speed_monitor
    callbacks.system_metrics_monitor callbacks.threshold_stopper checkpoint.download checkpoint.load checkpoint.save
    checkpoint.state_dict cli.launcher core.algorithm core.callback core.data_spec core.engine core.evaluator core.event
    core.serializable core.time core.types loggers.cometml_logger loggers.console_logger loggers.file_logger
    loggers.in_memory_logger loggers.logger loggers.logger_destination loggers.mlflow_logger loggers.neptune_logger
    loggers.progress_bar_logger loggers.remote_uploader_downloader loggers.slack_logger loggers.tensorboard_logger
    loggers.wandb_logger loss.loss metrics.map metrics.metrics models.base models.huggingface
    models.initializers optim.decoupled_weight_decay profiler.json_trace_handler profiler.marker profiler.profiler
    profiler.profiler_action profiler.profiler_schedule profiler.system_profiler profiler.torch_profiler
    profiler.trace_handler utils.auto_log_hparams utils.batch_helpers utils.checkpoint utils.collect_env utils.dist
    utils.import_helpers utils.inference utils.iter_helpers utils.module_surgery utils.parallelism
    utils.remote_uploader utils.reproducibility utils.retrying utils.warnings
"""

_FUNCTIONS = "composer.utils._older_functions"

HOMES: Final[dict[str, str]] = {
    **{f"composer.{name}": "" for name in _WITH_FILES.split()},
    "composer.checkpoint.load": f"composer.checkpoint.dcp_readers is_uri={_FUNCTIONS}:is_uri",
    "composer.cli.launcher": "MOSAICML_PLATFORM_ENV_VAR=composer.loggers.mosaicml_logger:MOSAICML_PLATFORM_ENV_VAR",
    "composer.loggers.mosaicml_logger": "",
    "composer.utils.inference": f"is_model_ddp={_FUNCTIONS}:is_model_ddp",
    **{f"composer.algorithms.{name}": layers for name, layers in _METHODS.items()},
    **{f"composer.algorithms.{n}.{n}": f"composer.algorithms.{n} {layers}".strip() for n, layers in _METHODS.items()},
    "composer.algorithms.alibi.attention_surgery_functions": "composer.algorithms.alibi",
    "composer.algorithms.alibi.attention_surgery_functions._bert": "composer.algorithms.alibi",
    "composer.algorithms.alibi.attention_surgery_functions._gpt2": "composer.algorithms.alibi",
    "composer.algorithms.alibi.attention_surgery_functions.utils": (
        "composer.algorithms.alibi _get_alibi_head_slopes=composer.nn.alibi:alibi_slopes"
    ),
    "composer.algorithms.blurpool.blurpool_layers": (
        "composer.nn.blurpool _default_2d_filter=composer.nn.blurpool:_binomial_filter"
    ),
    "composer.algorithms.factorize.factorize_core": "composer.nn.low_rank",
    "composer.algorithms.factorize.factorize_modules": "composer.nn.factorized composer.nn.low_rank",
    "composer.algorithms.gated_linear_units.gated_linear_unit_layers": (
        "composer.nn.gated_linear BERTGatedFFOutput=composer.nn.gated_linear:GatedLinear"
    ),
    "composer.algorithms.stochastic_depth.stochastic_layers": "composer.nn.stochastic_depth",
    "composer.callbacks.utils": "composer.core.interval",
    "composer.checkpoint.upload": "composer.storage.remote_uploader",
    "composer.core.passes": f"composer.core.order set_filo_order={_FUNCTIONS}:set_filo_order",
    "composer.core.precision": f"composer.precision _validate_precision={_FUNCTIONS}:validate_precision",
    "composer.core.state": f"fsdp_state_dict_type_context={_FUNCTIONS}:fsdp_state_dict_type_context",
    "composer.devices": "",
    "composer.devices.device": f"composer.devices _map_batch={_FUNCTIONS}:map_batch",
    "composer.devices.device_cpu": "composer.devices",
    "composer.devices.device_gpu": "composer.devices",
    "composer.devices.device_hpu": "composer.devices",
    "composer.devices.device_mps": "composer.devices",
    "composer.devices.device_neuron": "composer.devices",
    "composer.devices.device_tpu": "composer.devices",
    "composer.distributed.activation_checkpointing": "composer.distributed.recompute",
    "composer.distributed.dist_strategy": (
        "composer.distributed.ddp composer.distributed.fsdp composer.distributed.tensor composer.distributed.config"
    ),
    "composer.distributed.fsdp2": "composer.distributed.fsdp composer.distributed.mixed_precision",
    "composer.distributed.fsdp2_utils": "composer.distributed.fsdp composer.distributed.wrapping",
    "composer.distributed.meta_safe_apply": "composer.distributed.deferred",
    "composer.distributed.mosaic_parallelism": "composer.distributed.fsdp composer.distributed.mixed_precision",
    "composer.distributed.param_init": "composer.distributed.deferred",
    "composer.distributed.prepare_distributed": "composer.distributed.fsdp composer.distributed.config",
    "composer.distributed.shared_utils": "composer.distributed.fsdp composer.distributed.wrapping",
    "composer.models.huggingface": (
        f"_is_registered_causal_lm={_FUNCTIONS}:is_registered_causal_lm "
        f"_maybe_get_peft_model={_FUNCTIONS}:maybe_get_peft_model"
    ),
    "composer.metrics.nlp": " ".join(
        f"InContextLearning{name}={_FUNCTIONS}:InContextLearningMetric"
        for name in (
            "Metric",
            "CodeEvalAccuracy",
            "LMAccuracy",
            "LMExpectedCalibrationError",
            "MCExpectedCalibrationError",
            "MultipleChoiceAccuracy",
            "QAAccuracy",
        )
    ),
    "composer.models.tasks": "composer.models.classifier",
    "composer.models.tasks.classification": "composer.models.classifier composer.metrics composer.loss",
    "composer.optim.scheduler": (
        "_convert_time=composer.optim.conversion:convert_time "
        "_raise_if_max_duration_exceeds_t_max=composer.optim.conversion:raise_if_max_duration_exceeds_t_max "
        "_raise_if_warmup_and_max_incompatible=composer.optim.conversion:raise_if_warmup_and_max_incompatible "
        "_raise_if_schedule_and_max_incompatible=composer.optim.conversion:raise_if_max_duration_exceeds_t_max"
    ),
    "composer.profiler.json_trace_merger": "composer.profiler.merging",
    "composer.profiler.utils": "composer.profiler._memory_picture composer.profiler.torch_profiler",
    "composer.trainer._patch_pytorch": "",
    "composer.trainer._scale_schedule": ("scale_pytorch_scheduler=composer.optim.torch_schedules:scale_torch_schedule"),
    "composer.trainer._scaler": "",
    "composer.trainer.trainer": (
        "_is_cuda_oom=composer.trainer.out_of_memory:is_out_of_memory "
        f"_scale_max_duration_by_ssr={_FUNCTIONS}:scale_max_duration "
        "Scheduler=composer.trainer.schedules:Scheduler "
        "MOSAICML_PLATFORM_ENV_VAR=composer.loggers.mosaicml_logger:MOSAICML_PLATFORM_ENV_VAR "
        "MOSAICML_ACCESS_TOKEN_ENV_VAR=composer.loggers.mosaicml_logger:MOSAICML_ACCESS_TOKEN_ENV_VAR "
        "scale_pytorch_scheduler=composer.optim.torch_schedules:scale_torch_schedule"
    ),
    "composer.trainer.devices": "composer.devices",
    "composer.utils.compression": "",
    "composer.utils.device": "_is_xla_installed=composer.environment:is_xla_installed",
    "composer.utils.file_helpers": f"is_uri={_FUNCTIONS}:is_uri _get_file=composer.storage.transfer:get_file",
    "composer.utils.fx_utils": "",
    "composer.utils.misc": (
        f"composer.distributed.config composer.algorithms.utils.vision_datasets is_model_ddp={_FUNCTIONS}:is_model_ddp"
    ),
    "composer.utils.object_store": "",
    "composer.utils.object_store.gcs_object_store": "composer.storage.object_stores",
    "composer.utils.object_store.libcloud_object_store": "composer.storage.libcloud",
    "composer.utils.object_store.mlflow_object_store": "",
    "composer.utils.object_store.object_store": "composer.storage.object_store composer.storage.errors",
    "composer.utils.object_store.oci_object_store": "composer.storage.object_stores",
    "composer.utils.object_store.s3_object_store": "composer.storage.object_stores",
    "composer.utils.object_store.sftp_object_store": "composer.storage.object_stores",
    "composer.utils.object_store.uc_object_store": "",
    "composer.utils.object_store.utils": "composer.storage.object_store",
    "composer.utils.string_enum": "",
}
"""Older module -> where its names are now."""

PACKAGES: Final = frozenset(name.rpartition(".")[0] for name in HOMES if name.rpartition(".")[0] in HOMES)
"""Modules of the table that have others below them."""

_COMPRESSION = "Checkpoints are plain .pt files or safetensors, as weights hardly compress."
_FSDP = "Sharding is torch's fully_shard; see FSDPConfig and composer.distributed.parallelize_composer_model."
_VENDOR = "It speaks to one vendor's storage; give a mounted folder, or MLFlowLogger(log_artifacts=True)."

ABSENT: Final[dict[str, str]] = {
    "composer.algorithms.alibi.attention_surgery_functions._bert": "ALiBi is added by attention_surgery of any model.",
    "composer.algorithms.alibi.attention_surgery_functions._gpt2": "ALiBi is added by attention_surgery of any model.",
    "composer.algorithms.stochastic_depth.stochastic_layers": "See composer.nn.stochastic_depth.make_stochastic.",
    "composer.checkpoint.upload": "Give a URI as CheckpointSaver(folder=), or use composer.utils.RemoteUploader.",
    "composer.distributed.activation_checkpointing": "See composer.distributed.recompute.recompute.",
    "composer.distributed.dist_strategy": _FSDP,
    "composer.distributed.fsdp2": _FSDP,
    "composer.distributed.fsdp2_utils": _FSDP,
    "composer.distributed.meta_safe_apply": "Modules on the meta device are moved by torch's Module.to_empty.",
    "composer.distributed.mosaic_parallelism": _FSDP,
    "composer.distributed.param_init": "Weights on the meta device get their values in composer.distributed.deferred.",
    "composer.distributed.prepare_distributed": _FSDP,
    "composer.distributed.shared_utils": _FSDP,
    "composer.trainer._patch_pytorch": "Nothing of torch is patched.",
    "composer.trainer._scaler": "Optimizers with a closure get their gradients unscaled; torch.amp.GradScaler is used.",
    "composer.utils.compression": _COMPRESSION,
    "composer.utils.fx_utils": "torch.fx has passes over graphs: torch.fx.replace_pattern, torch.fx.Interpreter.",
    "composer.utils.object_store.mlflow_object_store": _VENDOR,
    "composer.utils.object_store.uc_object_store": _VENDOR,
    "composer.utils.string_enum": "The standard library has enum.StrEnum.",
}
"""Why names of an older module, or of one name, are not here."""
