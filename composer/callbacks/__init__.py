"""Built-in callbacks: throughput, memory, gradients, health checks, early stopping and checkpoints, one module each."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ActivationMonitor": "composer.callbacks.activation_monitor",
        "CallbackTimer": "composer.callbacks.callback_timer",
        "CheckpointSaver": "composer.callbacks.checkpoint_saver",
        "DataloaderMonitor": "composer.callbacks.dataloader_monitor",
        "EarlyStopper": "composer.callbacks.early_stopper",
        "ExportForInferenceCallback": "composer.callbacks.export_for_inference",
        "FreeOutputs": "composer.callbacks.free_outputs",
        "GarbageCollector": "composer.callbacks.garbage_collector",
        "Generate": "composer.callbacks.generate",
        "GradientNoiseScale": "composer.callbacks.gradient_noise_scale",
        "HealthChecker": "composer.callbacks.health_checker",
        "ImageVisualizer": "composer.callbacks.image_visualizer",
        "LMEvalHarness": "composer.callbacks.lm_eval_harness",
        "LRMonitor": "composer.callbacks.lr_monitor",
        "LoadCheckpoint": "composer.callbacks.load_checkpoint",
        "MLPerfCallback": "composer.callbacks.mlperf",
        "MemoryMonitor": "composer.callbacks.memory_monitor",
        "MemorySnapshot": "composer.callbacks.memory_snapshot",
        "NaNMonitor": "composer.callbacks.nan_monitor",
        "OOMObserver": "composer.callbacks.oom_observer",
        "OptimizerMonitor": "composer.callbacks.optimizer_monitor",
        "RecompileMonitor": "composer.callbacks.recompile_monitor",
        "RuntimeEstimator": "composer.callbacks.runtime_estimator",
        "SlowRankMonitor": "composer.callbacks.slow_rank_monitor",
        "SpeedMonitor": "composer.callbacks.speed_monitor",
        "SpikeRecorder": "composer.callbacks.spike_recorder",
        "SystemMetricsMonitor": "composer.callbacks.system_metrics_monitor",
        "ThresholdStopper": "composer.callbacks.threshold_stopper",
    },
)
