"""Names that users of other libraries type (Lightning, Hugging Face, Keras, fastai), and the answer to each.

One table for each kind of name: arguments and methods of the trainer, classes, short names of callbacks and loggers.
The lookups are in ``_name_hints``. Both are imported when a name is not found, and at no other time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ARGUMENTS", "CLASSES", "MEMBERS", "MODEL_MEMBERS", "SHORT_NAMES"]

_BATCH: Final = "DataLoader(dataset, batch_size=<?>) as {}_dataloader"
_MICROBATCH: Final = "device_train_microbatch_size=, the number of samples in a microbatch"
_PARALLEL: Final = "parallelism_config= or deepspeed_config=, and start the script with composer -n 8 train.py"
_LAUNCH: Final = "the launcher: composer -n 8 train.py"
_METRICS: Final = "ComposerModel.get_metrics(is_train) and update_metric"
_OPTIMIZER: Final = "optimizers=torch.optim.AdamW(model.parameters(), lr=...)"
_SCHEDULE: Final = "schedulers=composer.optim.LinearWithWarmupScheduler(...)"
_CLIP: Final = "algorithms=[GradientClipping('norm', <1.0>)]"
_EPOCHS: Final = "max_duration='<10>ep'"

# Arguments of Trainer and Trainer.fit. In angle brackets: a number to show where the user gave none.
ARGUMENTS: Final[Mapping[str, str]] = {
    # How long.
    **dict.fromkeys(("max_epochs", "epochs", "num_epochs", "num_train_epochs", "n_epoch", "n_epochs"), _EPOCHS),
    **dict.fromkeys(("max_steps", "num_steps", "steps", "max_iters", "num_training_steps"), "max_duration='<1000>ba'"),
    "max_time": "max_duration='1h30m'",
    **dict.fromkeys(("limit_train_batches", "steps_per_epoch"), "train_subset_num_batches=<?>"),
    **dict.fromkeys(("limit_val_batches", "validation_steps"), "eval_subset_num_batches=<?>"),
    "overfit": "overfit_batches",
    "fast_dev_run": "dry_run=True",
    "num_sanity_val_steps": "eval_batches_before_fit=<?>",
    "initial_epoch": "load_path or autoresume=True, which restore the epoch",
    # Data.
    "batch_size": _BATCH.format("train"),
    "per_device_train_batch_size": _BATCH.format("train"),
    "train_batch_size": _BATCH.format("train"),
    "per_device_eval_batch_size": _BATCH.format("eval"),
    "eval_batch_size": _BATCH.format("eval"),
    "train_dataset": _BATCH.format("train"),
    "eval_dataset": _BATCH.format("eval"),
    "val_dataset": _BATCH.format("eval"),
    "data_collator": "DataLoader(dataset, collate_fn=...) as train_dataloader",
    "dataloader_num_workers": "DataLoader(dataset, num_workers=...) as train_dataloader",
    "shuffle": "DataLoader(dataset, shuffle=True) as train_dataloader",
    "datamodule": "train_dataloader and eval_dataloader",
    "dls": "train_dataloader and eval_dataloader",
    "data": "train_dataloader",
    "x": "train_dataloader",
    "dataloader": "train_dataloader",
    "train_loader": "train_dataloader",
    "train_dataloaders": "train_dataloader",
    "train_data": "train_dataloader",
    "test_dataloader": "eval_dataloader",
    "test_loader": "eval_dataloader",
    "val_loader": "eval_dataloader",
    "val_dataloader": "eval_dataloader",
    "val_dataloaders": "eval_dataloader",
    "eval_loader": "eval_dataloader",
    "valid_loader": "eval_dataloader",
    "validation_data": "eval_dataloader",
    "validation_split": "torch.utils.data.random_split, and eval_dataloader",
    # Evaluation.
    "check_val_every_n_epoch": "eval_interval='<1>ep'",
    "validate_every_n_epochs": "eval_interval='<1>ep'",
    "validation_freq": "eval_interval='<1>ep'",
    **dict.fromkeys(("eval_strategy", "evaluation_strategy"), "eval_interval='1ep' or eval_interval='500ba'"),
    **dict.fromkeys(("eval_steps", "eval_every", "validate_every_n_batches"), "eval_interval='<100>ba'"),
    "val_check_interval": "eval_interval='<100>ba'",
    "metrics": _METRICS,
    "compute_metrics": _METRICS,
    "load_best_model_at_end": "CheckpointSaver(monitor='eval/<metric>', keep_best=1) and trainer.load_best()",
    "metric_for_best_model": "CheckpointSaver(monitor='eval/<metric>', keep_best=1)",
    # The step.
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum_steps"), _MICROBATCH),
    **dict.fromkeys(("auto_scale_batch_size", "auto_find_batch_size"), "device_train_microbatch_size='auto'"),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm", "clip_grad_norm", "grad_clip_norm", "clipnorm"), _CLIP),
    "gradient_clip_algorithm": "algorithms=[GradientClipping('norm', 1.0)] or GradientClipping('value', 1.0)",
    **dict.fromkeys(("optimizer", "optim", "opt", "opt_func"), "optimizers"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "schedulers"),
    **dict.fromkeys(("learning_rate", "lr"), "optimizers=torch.optim.AdamW(model.parameters(), lr=<?>)"),
    "weight_decay": "optimizers=torch.optim.AdamW(model.parameters(), weight_decay=<?>)",
    **dict.fromkeys(("adam_beta1", "adam_epsilon"), _OPTIMIZER),
    **dict.fromkeys(("lr_scheduler_type", "warmup_steps", "warmup_ratio"), _SCHEDULE),
    **dict.fromkeys(("loss", "loss_fn", "loss_func", "criterion"), "ComposerClassifier(module, loss_fn=...) as model"),
    "auto_lr_find": "trainer.find_lr()",
    "class_weight": "ComposerClassifier(module, loss_fn=...) with the weights in it",
    "args": "arguments of the Trainer itself",
    "model_init": "model",
    "module": "model=ComposerClassifier(module, num_classes=...)",
    "network": "model=ComposerClassifier(network, num_classes=...)",
    "learner": "model",
    # Hardware.
    **dict.fromkeys(("accelerator", "use_cpu", "no_cuda"), "device='gpu' or device='cpu'"),
    **dict.fromkeys(("gpus", "devices", "num_nodes", "num_processes", "tpu_cores"), _LAUNCH),
    **dict.fromkeys(("strategy", "distributed_backend", "plugins", "fsdp"), _PARALLEL),
    "deepspeed": "deepspeed_config",
    "deepspeed_plugin": "deepspeed_config",
    "fsdp_plugin": "parallelism_config={'fsdp': {...}}",
    "mixed_precision": "precision='amp_bf16' or 'amp_fp16'",
    "bf16": "precision='amp_bf16'",
    "fp16": "precision='amp_fp16'",
    "amp": "precision='amp_bf16' or 'amp_fp16'",
    "torch_compile": "compile_config={}",
    "jit_compile": "compile_config={}",
    "deterministic": "deterministic_mode",
    "benchmark": "torch.backends.cudnn.benchmark = True",
    "sync_batchnorm": "torch.nn.SyncBatchNorm.convert_sync_batchnorm(module) on the model",
    "gradient_checkpointing": "parallelism_config={'fsdp': {'activation_checkpointing': True}}",
    # Logging and checkpoints.
    "logger": "loggers",
    "report_to": "loggers=[...], such as loggers='wandb'",
    "log_with": "loggers=[...], such as loggers='wandb'",
    "callback": "callbacks",
    "cbs": "callbacks",
    "verbose": "progress_bar and log_to_console",
    "enable_progress_bar": "progress_bar",
    "disable_tqdm": "progress_bar=False",
    "enable_model_summary": "progress_bar",
    "log_every_n_steps": "console_log_interval='<50>ba' with log_to_console=True",
    "logging_steps": "console_log_interval='<50>ba' with log_to_console=True",
    "default_root_dir": "save_folder",
    "output_dir": "save_folder",
    "logging_dir": "loggers=TensorboardLogger(log_dir=...)",
    "project_dir": "save_folder",
    "path": "save_folder",
    "enable_checkpointing": "save_folder, None of which saves none",
    "save_steps": "save_interval='<500>ba'",
    "save_strategy": "save_interval='1ep' or save_interval='500ba'",
    "save_total_limit": "save_num_checkpoints_to_keep=<?>",
    "save_only_model": "save_weights_only",
    **dict.fromkeys(("ckpt_path", "resume_from_checkpoint", "checkpoint"), "load_path, given to the Trainer"),
    # Arguments that versions before 0.32 had.
    "auto_microbatching": "device_train_microbatch_size='auto'",
    "checkpoint_folder": "save_folder",
    "checkpoint_interval": "save_interval",
    "compute_training_metrics": "ComposerModel.get_metrics(is_train=True), whose metrics are always computed",
    "console_log_level": "log_to_console and console_log_interval",
    "ddp_timeout": "dist_timeout",
    "deepspeed_enabled": "deepspeed_config",
    "eval_batch_split": "Evaluator(..., device_eval_microbatch_size=...)",
    "load_fsdp_monolith_rank0_only": "parallelism_config={'fsdp': {'load_monolith_rank0_only': True}}",
    "load_logger_destination": "load_object_store",
    "load_strict": "load_strict_model_weights",
    "log_level": "python_log_level",
    "save_artifact_name": "save_filename",
    "save_latest_artifact_name": "save_latest_filename",
    "save_latest_format": "save_latest_filename",
    "save_name_format": "save_filename",
}  # fmt: skip

_FIT: Final = "trainer.fit()"
_EVAL: Final = "trainer.eval(), and trainer.state.eval_metric_values"
_VALUES: Final = "trainer.state.eval_metric_values and trainer.state.train_metric_values"
_LOADED: Final = "Trainer(load_path=...)"
_SAVED: Final = "trainer.save_checkpoint(name), or torch.save(trainer.state.model.state_dict(), name)"
_LOG: Final = "trainer.logger.log_metrics({'name': value})"
_DISTRIBUTED: Final = "the module composer.utils.dist"
_NOT_NEEDED: Final = "trainer.fit(), which does this; for a loop of your own use composer.functional"

# Methods and attributes of Trainer.
MEMBERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("train", "fit_one_cycle", "fine_tune", "fit_flat_cos", "run", "learn", "fit_generator"), _FIT),
    **dict.fromkeys(("training_step", "train_step", "backward", "compute_loss", "optimizer_step"), _NOT_NEEDED),
    **dict.fromkeys(("clip_grad_norm_", "clip_gradients"), "Trainer(algorithms=[GradientClipping('norm', 1.0)])"),
    **dict.fromkeys(("accumulate", "no_backward_sync"), "Trainer(device_train_microbatch_size=...)"),
    **dict.fromkeys(("autocast",), "Trainer(precision='amp_bf16')"),
    **dict.fromkeys(("test", "evaluate", "validate", "val", "evaluation_loop", "evaluate_generator"), _EVAL),
    **dict.fromkeys(("prediction_loop", "get_preds", "predict_generator", "predict_proba", "inference"),
                    "trainer.predict(dataloader)"),
    **dict.fromkeys(("callback_metrics", "logged_metrics", "progress_bar_metrics", "metrics", "best_metric"), _VALUES),
    **dict.fromkeys(("history", "recorder", "log_history"), "Trainer(loggers=InMemoryLogger()), and its data"),
    **dict.fromkeys(("save_model", "save", "save_pretrained", "save_weights", "save_state"), _SAVED),
    **dict.fromkeys(("load", "load_model", "load_weights", "load_checkpoint", "load_state", "restore"), _LOADED),
    **dict.fromkeys(("load_from_checkpoint", "from_pretrained", "resume_from_checkpoint"), _LOADED),
    "compile": "Trainer(model=..., optimizers=..., compile_config={}), which has these as arguments",
    "summary": "print(trainer.state.model)",
    **dict.fromkeys(("log", "log_metrics", "log_dict", "print"), _LOG),
    **dict.fromkeys(("add_callback", "callbacks", "cbs"), "Trainer(callbacks=...), and trainer.state.callbacks"),
    **dict.fromkeys(("remove_callback", "pop_callback"), "trainer.state.callbacks.remove(callback)"),
    "checkpoint_callback": "CheckpointSaver in Trainer(callbacks=...), and trainer.saved_checkpoints",
    "early_stopping_callback": "EarlyStopper in Trainer(callbacks=...)",
    "best_model_path": "trainer.saved_checkpoints and trainer.load_best()",
    **dict.fromkeys(("loggers",), "trainer.logger.destinations"),
    **dict.fromkeys(("model", "lightning_module", "module", "network"), "trainer.state.model"),
    **dict.fromkeys(("optimizers", "optimizer", "opt"), "trainer.state.optimizers"),
    **dict.fromkeys(("schedulers", "scheduler", "lr_scheduler", "lr_schedulers"), "trainer.state.schedulers"),
    **dict.fromkeys(("train_dataloader", "get_train_dataloader"), "trainer.state.train_dataloader"),
    **dict.fromkeys(("eval_dataloader", "val_dataloaders", "evaluators", "get_eval_dataloader"),
                    "trainer.state.evaluators"),
    **dict.fromkeys(("current_epoch", "epoch"), "trainer.state.timestamp.epoch"),
    **dict.fromkeys(("global_step", "step", "iteration", "num_steps"), "trainer.state.timestamp.batch"),
    **dict.fromkeys(("max_epochs", "max_steps", "max_duration", "num_training_batches"), "trainer.state.max_duration"),
    "should_stop": "trainer.state.stop_training()",
    **dict.fromkeys(("stop", "stop_training"), "trainer.state.stop_training()"),
    "interrupted": "trainer.state.stop",
    "run_name": "trainer.state.run_name",
    "args": "the arguments of the Trainer itself",
    **dict.fromkeys(("device", "precision", "callbacks_", "seed", "algorithms", "profiler", "timestamp"),
                    "trainer.state, which has it"),
    **dict.fromkeys(("is_global_zero", "global_rank", "local_rank", "world_size", "num_processes"), _DISTRIBUTED),
    **dict.fromkeys(("is_main_process", "wait_for_everyone", "gather", "is_world_process_zero"), _DISTRIBUTED),
    **dict.fromkeys(("barrier", "broadcast", "all_gather", "all_reduce", "launch"), _DISTRIBUTED),
    **dict.fromkeys(("prepare", "setup", "setup_dataloaders"), "Trainer(model=..., train_dataloader=...)"),
    **dict.fromkeys(("tune", "lr_find", "tuner"), "trainer.find_lr()"),
    "hyperparameter_search": "a loop over Trainer(...)",
    **dict.fromkeys(("push_to_hub", "create_model_card"), "HuggingFaceModel.model.push_to_hub(...)"),
    "export": "trainer.export_for_inference(save_format, save_path)",
}  # fmt: skip

# Methods and attributes of models.
MODEL_MEMBERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("log", "log_dict"), "self.logger.log_metrics({'name': value})"),
    **dict.fromkeys(("trainer", "current_epoch", "global_step", "hparams"), "a Callback, whose methods get the state"),
    "save_hyperparameters": "Trainer(auto_log_hparams=True)",
    "device": "the device of the batch: batch[0].device",
    "manual_backward": "the loss that loss() returns, which the trainer differentiates",
    "optimizers": "Trainer(optimizers=...), and state.optimizers in a Callback",
    "lr_schedulers": "Trainer(schedulers=...), and state.schedulers in a Callback",
    "compute_loss": "loss(outputs, batch)",
    "compiled_loss": "loss(outputs, batch)",
}

# Classes, by the class that does their work here, or a sentence's end about what does: one with a space in it.
CLASSES: Final[Mapping[str, str]] = {
    # Callbacks.
    **dict.fromkeys(("EarlyStopping", "EarlyStoppingCallback", "EarlyStop"), "EarlyStopper"),
    **dict.fromkeys(("ModelCheckpoint", "SaveModelCallback", "Checkpoint", "BackupAndRestore"), "CheckpointSaver"),
    **dict.fromkeys(("LearningRateMonitor", "LrMonitor", "LRMonitorCallback"), "LRMonitor"),
    **dict.fromkeys(("DeviceStatsMonitor", "GPUStatsMonitor"), "SystemMetricsMonitor"),
    **dict.fromkeys(("StochasticWeightAveraging", "WeightAveraging", "SwapEMAWeights"), "SWA"),
    **dict.fromkeys(("EMACallback", "EMAWeightAveraging", "ExponentialMovingAverage", "ModelEMA"), "EMA"),
    **dict.fromkeys(("GradientAccumulationScheduler", "GradientAccumulation"),
                    "Trainer(device_train_microbatch_size=...) for it"),
    **dict.fromkeys(("TerminateOnNaN", "TerminateOnNaNCallback", "NanMonitor"), "NaNMonitor"),
    **dict.fromkeys(("Timer", "Throughput", "ThroughputMonitor"), "SpeedMonitor"),
    **dict.fromkeys(("BackboneFinetuning", "BaseFinetuning"), "LayerFreezing"),
    **dict.fromkeys(("ReduceLROnPlateau", "ReduceLROnPlateauScheduler", "ReduceOnPlateau"), "ReduceOnPlateauScheduler"),
    **dict.fromkeys(("LearningRateScheduler", "LambdaCallback"), "Callback"),
    **dict.fromkeys(("TrainerCallback", "LightningCallback"), "Callback"),
    **dict.fromkeys(("TQDMProgressBar", "RichProgressBar", "ProgressBar", "ProgressCallback", "ProgbarLogger"),
                    "ProgressBarLogger"),
    **dict.fromkeys(("PrinterCallback",), "ConsoleLogger"),
    **dict.fromkeys(("ModelSummary", "RichModelSummary"), "print(trainer.state.model) for it"),
    **dict.fromkeys(("BatchSizeFinder",), "Trainer(device_train_microbatch_size='auto') for it"),
    **dict.fromkeys(("LearningRateFinder", "LRFinder"), "trainer.find_lr() for it"),
    **dict.fromkeys(("MemoryMonitorCallback",), "MemoryMonitor"),
    "ModelPruning": "torch.nn.utils.prune for it",
    "History": "InMemoryLogger",
    # Loggers.
    **dict.fromkeys(("WandbLogger", "WandbCallback", "WandbMetricsLogger", "WANDBLogger", "WeightsAndBiasesLogger"),
                    "WandBLogger"),
    **dict.fromkeys(("CSVLoggerCallback", "CsvLogger"), "CSVLogger"),
    **dict.fromkeys(("TensorBoardLogger", "TensorBoard", "TensorBoardCallback"), "TensorboardLogger"),
    **dict.fromkeys(("MLflowLogger", "MLflowCallback", "MlflowLogger"), "MLFlowLogger"),
    **dict.fromkeys(("CometLogger", "CometCallback"), "CometMLLogger"),
    **dict.fromkeys(("NeptuneCallback",), "NeptuneLogger"),
    **dict.fromkeys(("JSONLogger", "JsonLogger", "JSONLLogger"), "JSONLinesLogger"),
    # Models.
    **dict.fromkeys(("LightningModule", "Model", "KerasModel", "Module", "PreTrainedModel", "TorchModel"),
                    "ComposerModel"),
    **dict.fromkeys(("Classifier", "ClassifierModel", "Sequential"), "ComposerClassifier"),
    **dict.fromkeys(("HFModel", "AutoModel", "TransformersModel"), "HuggingFaceModel"),
    # Data and evaluation.
    **dict.fromkeys(("LightningDataModule", "DataModule", "DataLoaders", "DataBunch"), "DataSpec"),
    **dict.fromkeys(("DataLoader",), "torch.utils.data.DataLoader for it"),
    # The trainer.
    **dict.fromkeys(("Fabric", "Accelerator", "Learner", "Lightning", "LightningTrainer", "Seq2SeqTrainer",
                     "SFTTrainer"), "Trainer"),
    **dict.fromkeys(("TrainingArguments", "Seq2SeqTrainingArguments"), "the arguments of Trainer"),
    **dict.fromkeys(("TrainerState", "TrainState"), "State"),
    "seed_everything": "Trainer(seed=...) for it",
    "set_seed": "Trainer(seed=...) for it",
    # Algorithms.
    **dict.fromkeys(("Mixup", "MixUpCallback", "RandomMixup"), "MixUp"),
    **dict.fromkeys(("Cutmix", "RandomCutmix"), "CutMix"),
    **dict.fromkeys(("RandomErasing", "Cutout"), "CutOut"),
    **dict.fromkeys(("ClipGradNorm", "GradientClip", "GradClip", "GradientClipCallback", "GradClipping"),
                    "GradientClipping"),
    **dict.fromkeys(("LabelSmoothingCrossEntropy", "LabelSmoother"), "LabelSmoothing"),
    **dict.fromkeys(("DropPath",), "StochasticDepth"),
    **dict.fromkeys(("SAMOptimizer", "SharpnessAwareMinimization"), "SAM"),
    "MixedPrecision": "Trainer(precision='amp_bf16') for it",
    # Optimizers and schedules that are torch's.
    **{name: f"torch.optim.{name}" for name in
       ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop", "SGD",
        "SparseAdam")},
    "Muon": "MuonAdamW",
    **{name: f"torch.optim.lr_scheduler.{name}" for name in
       ("CosineAnnealingLR", "CyclicLR", "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR", "StepLR",
        "SequentialLR", "CosineAnnealingWarmRestarts")},
    **dict.fromkeys(("get_cosine_schedule_with_warmup",), "CosineAnnealingWithWarmupScheduler"),
    **dict.fromkeys(("get_linear_schedule_with_warmup",), "LinearWithWarmupScheduler"),
    **dict.fromkeys(("get_constant_schedule_with_warmup",), "ConstantWithWarmupScheduler"),
    **dict.fromkeys(("CosineScheduler", "CosineSchedule", "CosineDecay", "CosineLR"), "CosineAnnealingScheduler"),
    **dict.fromkeys(("WarmupScheduler", "Warmup"), "WithWarmup"),
    "ExponentialDecay": "ExponentialScheduler",
    # Metrics.
    **dict.fromkeys(("Accuracy", "MulticlassAccuracy", "F1Score", "AUROC", "Recall", "MeanSquaredError"),
                    "the class of this name in torchmetrics"),
    "Perplexity": "LanguagePerplexity",
}  # fmt: skip

# Short names, as in loggers="comet", that are no name of ours without "Logger", "Callback" or "Monitor" at its end.
SHORT_NAMES: Final[Mapping[str, str]] = {
    "comet": "CometMLLogger",
    "jsonl": "JSONLinesLogger",
    "json": "JSONLinesLogger",
    "weightsandbiases": "WandBLogger",
    "tqdm": "ProgressBarLogger",
    "memory": "MemoryMonitor",
    "clip": "GradientClipping",
    "gradclip": "GradientClipping",
    "earlystop": "EarlyStopper",
    "checkpoint": "CheckpointSaver",
    "lr": "LRMonitor",
}
