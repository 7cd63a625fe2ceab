"""The table of import paths of MosaicML Composer 0.32 that :mod:`composer._compat.import_aliases` makes aliases of.

A value lists where names are now: ``module`` (searched in order), ``module:name``, and ``old=module:new`` for a name
that changed. A module with an empty value has its own names only. Each alias also resolves the names of
:data:`PUBLIC`, since the predecessor's modules imported many of them, and scripts import them from there.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ABSENT", "HOMES", "PACKAGES", "PUBLIC"]

PUBLIC: Final = (
    "composer",
    "composer.core",
    "composer.utils",
    "composer.dist",
    "composer.loggers",
    "composer.devices",
    "composer.optim",
    "composer.models",
    "composer.callbacks",
    "composer.parallel",
    "composer.metrics",
    "composer.loss",
    "composer.loss.utils",
    "composer.profiler",
    "composer.algorithms.utils",
    "composer.warnings",
    "composer.checkpoint",
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
    loggers.in_memory_logger loggers.mlflow_logger loggers.neptune_logger loggers.progress_bar_logger
    loggers.remote_uploader_downloader loggers.slack_logger loggers.tensorboard_logger loggers.wandb_logger loss.loss
    metrics.map models.huggingface models.initializers profiler.json_trace_handler profiler.marker profiler.profiler
    profiler.system_profiler profiler.torch_profiler profiler.trace_handler
"""

_FUNCTIONS = "composer.utils._predecessor_functions"


def _names(module: str, names: str) -> str:
    """Write the entries of several names of one module."""
    return " ".join(f"{module}:{name}" for name in names.split())


def _join(*entries: str) -> str:
    return " ".join(entries)


# Modules whose names have all moved.
_MOVED: Final[dict[str, str]] = {
    "algorithms.warnings": _names("composer.warnings", "NoEffectWarning NotIntendedUseWarning"),
    "core.passes": _join(
        _names("composer.core.algorithm_order", "AlgorithmPass sort_to_back sort_to_front"),
        f"set_filo_order={_FUNCTIONS}:set_filo_order",
    ),
    "core.precision": _join(
        _names("composer.precision", "Precision get_precision_context"),
        f"_validate_precision={_FUNCTIONS}:validate_precision",
    ),
    "distributed": "composer.parallel",
    "loggers.logger": _join(
        _names("composer.core.logger", "Logger"),
        _names("composer.loggers._format", "format_log_data_value"),
    ),
    "loggers.logger_destination": _names("composer.core.logger", "LoggerDestination"),
    "metrics.metrics": _join(
        _names("composer.metrics.classification", "CrossEntropy"),
        _names("composer.metrics.loss_metric", "LossMetric"),
        _names("composer.metrics.segmentation", "Dice MIoU"),
    ),
    "metrics.nlp": _join(
        "composer.metrics.language",
        *(
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
    ),
    "models.base": _names("composer.core.model", "ComposerModel"),
    "models.efficientnetb0": "composer.models.efficientnet",
    "models.tasks": "composer.models.classifier",
    "optim.decoupled_weight_decay": _join(
        "composer.optim.decoupled_adam",
        "composer.optim.decoupled_sgd",
    ),
    "optim.scheduler": _join(
        _names(
            "composer.optim.basic_schedules",
            "ConstantScheduler CosineAnnealingScheduler CosineAnnealingWarmRestartsScheduler ExponentialScheduler "
            "LinearScheduler MultiStepScheduler PolynomialScheduler StepScheduler",
        ),
        _names(
            "composer.optim.sqrt_and_wsd_schedules",
            "InverseSquareRootScheduler OneMinusSqrtScheduler WarmupStableDecayScheduler",
        ),
        _names(
            "composer.optim.warmup_schedules",
            "ConstantWithWarmupScheduler CosineAnnealingWithWarmupScheduler LinearWithWarmupScheduler "
            "MultiStepWithWarmupScheduler PolynomialWithWarmupScheduler WithWarmup",
        ),
        _names("composer.optim.schedule", "ComposerScheduler"),
        _names("composer.optim.sequential_schedule", "SequentialScheduler"),
        _names("composer.optim.reduce_on_plateau", "ReduceOnPlateauScheduler"),
        _names("composer.optim.schedule_assignment", "AssignedSchedule"),
        _names("composer.optim.compiled_schedule", "compile_composer_scheduler"),
        "_convert_time=composer.optim.time_conversion:convert_time",
        "_raise_if_max_duration_exceeds_t_max=composer.optim.time_conversion:raise_if_max_duration_exceeds_t_max",
        "_raise_if_warmup_and_max_incompatible=composer.optim.time_conversion:raise_if_warmup_and_max_incompatible",
        "_raise_if_schedule_and_max_incompatible=composer.optim.time_conversion:raise_if_max_duration_exceeds_t_max",
    ),
    "profiler.profiler_action": _names("composer.profiler.schedule", "ProfilerAction"),
    "profiler.profiler_schedule": _names("composer.profiler.schedule", "cyclic_schedule"),
    "utils.auto_log_hparams": _join(
        _names("composer.nested", "convert_flat_dict_to_nested_dict convert_nested_dict_to_flat_dict"),
        _names("composer.trainer.extract_hparams", "extract_hparams"),
    ),
    "utils.batch_helpers": _names("composer.trees", "batch_get batch_set"),
    "utils.checkpoint": _join(
        _names("composer.checkpoint.load", "load_checkpoint safe_torch_load"),
        _names("composer.checkpoint.save", "get_save_filename save_checkpoint"),
        _names("composer.checkpoint.filters", "glob_filter"),
        _names("composer.core.file_names", "PartialFilePath"),
        f"_COMPOSER_STATES_FILENAME={_FUNCTIONS}:COMPOSER_STATES_FILENAME",
        f"_TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME={_FUNCTIONS}:TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME",
        "_TORCH_DISTRIBUTED_CHECKPOINTS_METADATA_FILENAME=composer.checkpoint.folder_metadata:METADATA",
        "_ensure_valid_checkpoint=composer.checkpoint.user_validation:ensure_valid",
        "_get_checkpoint_validation_function=composer.checkpoint.user_validation:validation_function",
        "_save_checkpoint=composer.checkpoint.save:save_checkpoint",
        "_torch_load_with_validation=composer.checkpoint.load:safe_torch_load",
        "_write_checkpoint_file=composer.checkpoint.file_format:write",
        "DistCPObjectStoreReader=composer.checkpoint.dcp_readers:DistCPObjectStoreReader",
        "FileSystemReaderWithValidation=composer.checkpoint.dcp_readers:FileSystemReaderWithValidation",
        f"is_uri={_FUNCTIONS}:is_uri",
    ),
    "utils.collect_env": _names(
        "composer.environment",
        "configure_excepthook disable_env_report enable_env_report get_composer_env_dict print_env",
    ),
    "utils.device": _join(
        _names("composer.devices", "get_device"),
        _names("composer.environment", "is_hpu_installed is_xla_installed"),
        "_is_xla_installed=composer.environment:is_xla_installed",
    ),
    "utils.dist": "composer.dist",
    "utils.file_helpers": _join(
        _names("composer.checkpoint.folder_conflicts", "ensure_folder_has_no_conflicting_files ensure_folder_is_empty"),
        _names("composer.checkpoint.latest_symlink", "create_symlink_file extract_path_from_symlink"),
        _names(
            "composer.core.file_names",
            "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE FORMAT_NAME_WITH_DIST_TABLE format_name_with_dist "
            "format_name_with_dist_and_time",
        ),
        _names("composer.loggers.remote_uploader_downloader", "maybe_create_remote_uploader_downloader_from_uri"),
        _names(
            "composer.storage.object_store",
            "list_remote_objects maybe_create_object_store_from_uri validate_credentials",
        ),
        _names("composer.storage.downloads", "get_file"),
        _names("composer.storage.uris", "parse_uri"),
        f"is_uri={_FUNCTIONS}:is_uri",
        "_get_file=composer.storage.downloads:get_file",
    ),
    "utils.import_helpers": _names("composer._lazy", "MissingConditionalImportError import_object"),
    "utils.inference": _join(
        "composer.export",
        f"is_model_ddp={_FUNCTIONS}:is_model_ddp",
    ),
    "utils.iter_helpers": _names("composer.trees", "ensure_tuple map_collection"),
    "utils.misc": _join(
        _names("composer.core.file_names", "partial_format"),
        _names("composer.core.interval", "create_interval_scheduler"),
        _names("composer.dist.rendezvous.loopback", "get_free_tcp_port"),
        _names("composer.parallel.fsdp", "is_model_fsdp"),
        _names("composer.environment", "is_notebook"),
        _names("composer.precision", "STR_TO_DTYPE"),
        _names("composer.core.eval_mode", "model_eval_mode"),
        _names("composer.trees", "ensure_tuple"),
        "composer.parallel.config",
        "composer.algorithms.utils.vision_datasets",
        f"is_model_ddp={_FUNCTIONS}:is_model_ddp",
    ),
    "utils.module_surgery": _names(
        "composer.surgery",
        "ReplacementFunction count_module_instances replace_module_classes update_params_in_optimizer",
    ),
    "utils.object_store": _join(
        _names("composer.storage.errors", "ObjectStoreTransientError"),
        _names("composer.storage.libcloud_store", "LibcloudObjectStore"),
        _names("composer.storage.object_store", "ObjectStore build_remote_backend"),
        "composer.storage.object_stores",
    ),
    "utils.parallelism": _names("composer.parallel.config", "FSDP2Config FSDPConfig ParallelismConfig TPConfig"),
    "utils.remote_uploader": "composer.storage.remote_uploader",
    "utils.reproducibility": "composer.rng",
    "utils.retrying": _names("composer.storage.retrying", "retry"),
    "utils.warnings": _names("composer.warnings", "VersionedDeprecationWarning"),
}

HOMES: Final[dict[str, str]] = {
    **{f"composer.{name}": "" for name in _WITH_FILES.split()},
    **{f"composer.{name}": homes for name, homes in _MOVED.items()},
    "composer.core.data_spec": "composer.core.default_split",
    "composer.checkpoint.load": f"composer.checkpoint.dcp_readers is_uri={_FUNCTIONS}:is_uri",
    "composer.cli.launcher": "MOSAICML_PLATFORM_ENV_VAR=composer.loggers.mosaicml_logger:MOSAICML_PLATFORM_ENV_VAR",
    "composer.loggers.mosaicml_logger": "",
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
    "composer.core.state": f"fsdp_state_dict_type_context={_FUNCTIONS}:fsdp_state_dict_type_context",
    "composer.devices": "",
    "composer.devices.device": f"composer.devices _map_batch={_FUNCTIONS}:map_batch",
    "composer.devices.device_cpu": "composer.devices",
    "composer.devices.device_gpu": "composer.devices",
    "composer.devices.device_hpu": "composer.devices",
    "composer.devices.device_mps": "composer.devices",
    "composer.devices.device_neuron": "composer.devices",
    "composer.devices.device_tpu": "composer.devices",
    "composer.distributed.activation_checkpointing": "composer.parallel.activation_checkpointing",
    "composer.distributed.dist_strategy": (
        "composer.parallel.ddp composer.parallel.fsdp composer.parallel.tensor_parallel composer.parallel.config"
    ),
    "composer.distributed.fsdp2": "composer.parallel.fsdp composer.parallel.mixed_precision",
    "composer.distributed.fsdp2_utils": "composer.parallel.fsdp composer.parallel.wrapping",
    "composer.distributed.meta_safe_apply": "composer.parallel.meta_init",
    "composer.distributed.mosaic_parallelism": "composer.parallel.fsdp composer.parallel.mixed_precision",
    "composer.distributed.param_init": "composer.parallel.meta_init",
    "composer.distributed.prepare_distributed": "composer.parallel.fsdp composer.parallel.config",
    "composer.distributed.shared_utils": "composer.parallel.fsdp composer.parallel.wrapping",
    "composer.models.huggingface": (
        f"_is_registered_causal_lm={_FUNCTIONS}:is_registered_causal_lm "
        f"_maybe_get_peft_model={_FUNCTIONS}:maybe_get_peft_model"
    ),
    "composer.models.tasks.classification": "composer.models.classifier composer.metrics composer.loss",
    "composer.profiler.json_trace_merger": "composer.profiler.trace_merging",
    "composer.profiler.utils": "composer.profiler._memory_timeline composer.profiler.torch_profiler",
    "composer.trainer._patch_pytorch": "",
    "composer.trainer._scale_schedule": ("scale_pytorch_scheduler=composer.optim.torch_schedules:scale_torch_schedule"),
    "composer.trainer._scaler": "",
    "composer.trainer.trainer": (
        "_is_cuda_oom=composer.trainer.auto_microbatch.out_of_memory:is_out_of_memory "
        f"_scale_max_duration_by_ssr={_FUNCTIONS}:scale_max_duration "
        "Scheduler=composer.trainer.schedules:Scheduler "
        "MOSAICML_PLATFORM_ENV_VAR=composer.loggers.mosaicml_logger:MOSAICML_PLATFORM_ENV_VAR "
        "MOSAICML_ACCESS_TOKEN_ENV_VAR=composer.loggers.mosaicml_logger:MOSAICML_ACCESS_TOKEN_ENV_VAR "
        "scale_pytorch_scheduler=composer.optim.torch_schedules:scale_torch_schedule"
    ),
    "composer.trainer.devices": "composer.devices",
    "composer.utils.compression": "",
    "composer.utils.fx_utils": "",
    "composer.utils.object_store.gcs_object_store": "composer.storage.object_stores",
    "composer.utils.object_store.libcloud_object_store": "composer.storage.libcloud_store",
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
_FSDP = "Sharding is torch's fully_shard; see FSDPConfig and composer.parallel.parallelize_composer_model."
_VENDOR = "It speaks to one vendor's storage; give a mounted folder, or MLFlowLogger(log_artifacts=True)."

ABSENT: Final[dict[str, str]] = {
    "composer.algorithms.alibi.attention_surgery_functions._bert": "ALiBi is added by attention_surgery of any model.",
    "composer.algorithms.alibi.attention_surgery_functions._gpt2": "ALiBi is added by attention_surgery of any model.",
    "composer.algorithms.stochastic_depth.stochastic_layers": "See composer.nn.stochastic_depth.make_stochastic.",
    "composer.checkpoint.upload": "Pass a URI as CheckpointSaver(folder=), or use composer.utils.RemoteUploader.",
    "composer.distributed.activation_checkpointing": "See "
    "composer.parallel.activation_checkpointing.apply_activation_checkpointing.",
    "composer.distributed.dist_strategy": _FSDP,
    "composer.distributed.fsdp2": _FSDP,
    "composer.distributed.fsdp2_utils": _FSDP,
    "composer.distributed.meta_safe_apply": "Modules on the meta device are moved by torch's Module.to_empty.",
    "composer.distributed.mosaic_parallelism": _FSDP,
    "composer.distributed.param_init": "Weights on the meta device get their values in composer.parallel.meta_init.",
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
