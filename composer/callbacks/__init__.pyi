"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.callbacks.activation_monitor import ActivationMonitor
from composer.callbacks.callback_timer import CallbackTimer
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.callbacks.dataloader_monitor import DataloaderMonitor
from composer.callbacks.early_stopper import EarlyStopper
from composer.callbacks.export_for_inference import ExportForInferenceCallback
from composer.callbacks.free_outputs import FreeOutputs
from composer.callbacks.garbage_collector import GarbageCollector
from composer.callbacks.generate import Generate
from composer.callbacks.gradient_noise_scale import GradientNoiseScale
from composer.callbacks.health_checker import HealthChecker
from composer.callbacks.image_visualizer import ImageVisualizer
from composer.callbacks.lm_eval_harness import LMEvalHarness
from composer.callbacks.load_checkpoint import LoadCheckpoint
from composer.callbacks.lr_monitor import LRMonitor
from composer.callbacks.memory_monitor import MemoryMonitor
from composer.callbacks.memory_snapshot import MemorySnapshot
from composer.callbacks.mlperf import MLPerfCallback
from composer.callbacks.nan_monitor import NaNMonitor
from composer.callbacks.oom_observer import OOMObserver
from composer.callbacks.optimizer_monitor import OptimizerMonitor
from composer.callbacks.recompile_monitor import RecompileMonitor
from composer.callbacks.runtime_estimator import RuntimeEstimator
from composer.callbacks.slow_rank_monitor import SlowRankMonitor
from composer.callbacks.speed_monitor import SpeedMonitor
from composer.callbacks.spike_recorder import SpikeRecorder
from composer.callbacks.system_metrics_monitor import SystemMetricsMonitor
from composer.callbacks.threshold_stopper import ThresholdStopper

__all__ = [
    "ActivationMonitor",
    "CallbackTimer",
    "CheckpointSaver",
    "DataloaderMonitor",
    "EarlyStopper",
    "ExportForInferenceCallback",
    "FreeOutputs",
    "GarbageCollector",
    "Generate",
    "GradientNoiseScale",
    "HealthChecker",
    "ImageVisualizer",
    "LMEvalHarness",
    "LRMonitor",
    "LoadCheckpoint",
    "MLPerfCallback",
    "MemoryMonitor",
    "MemorySnapshot",
    "NaNMonitor",
    "OOMObserver",
    "OptimizerMonitor",
    "RecompileMonitor",
    "RuntimeEstimator",
    "SlowRankMonitor",
    "SpeedMonitor",
    "SpikeRecorder",
    "SystemMetricsMonitor",
    "ThresholdStopper",
]
