"""What a run is made of: time, events, the state, the engine, and the base classes that listen to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer.core.algorithm import Algorithm as Algorithm
    from composer.core.algorithm_order import AlgorithmPass as AlgorithmPass
    from composer.core.algorithm_order import Claim as Claim
    from composer.core.algorithm_order import Slot as Slot
    from composer.core.algorithm_order import sort_to_back as sort_to_back
    from composer.core.algorithm_order import sort_to_front as sort_to_front
    from composer.core.algorithm_trace import Trace as Trace
    from composer.core.algorithm_trace import Traces as Traces
    from composer.core.callback import Callback as Callback
    from composer.core.data_spec import DataSpec as DataSpec
    from composer.core.data_spec import ensure_data_spec as ensure_data_spec
    from composer.core.distributed_support import Sharding as Sharding
    from composer.core.engine import Engine as Engine
    from composer.core.evaluator import Evaluator as Evaluator
    from composer.core.evaluator import ensure_evaluator as ensure_evaluator
    from composer.core.event import Event as Event
    from composer.core.hooks import Hooks as Hooks
    from composer.core.logger import Logger as Logger
    from composer.core.logger import LoggerDestination as LoggerDestination
    from composer.core.model import ComposerModel as ComposerModel
    from composer.core.phase import TrainerMode as TrainerMode
    from composer.core.serializable import Serializable as Serializable
    from composer.core.state import State as State
    from composer.core.time import Time as Time
    from composer.core.time import TimeUnit as TimeUnit
    from composer.core.time import ensure_time as ensure_time
    from composer.core.timestamp import Timestamp as Timestamp
    from composer.core.traits import Traits as Traits
    from composer.core.types import JSON as JSON
    from composer.core.types import Batch as Batch
    from composer.core.types import Dataset as Dataset
    from composer.core.types import MemoryFormat as MemoryFormat
    from composer.precision import Precision as Precision
    from composer.precision import get_precision_context as get_precision_context
else:
    from composer._lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "Algorithm": "composer.core.algorithm",
            "AlgorithmPass": "composer.core.algorithm_order",
            "Batch": "composer.core.types",
            "Callback": "composer.core.callback",
            "Claim": "composer.core.algorithm_order",
            "ComposerModel": "composer.core.model",
            "DataSpec": "composer.core.data_spec",
            "Dataset": "composer.core.types",
            "Engine": "composer.core.engine",
            "Evaluator": "composer.core.evaluator",
            "Event": "composer.core.event",
            "Hooks": "composer.core.hooks",
            "JSON": "composer.core.types",
            "Logger": "composer.core.logger",
            "LoggerDestination": "composer.core.logger",
            "MemoryFormat": "composer.core.types",
            "Precision": "composer.precision",
            "Serializable": "composer.core.serializable",
            "Sharding": "composer.core.distributed_support",
            "Slot": "composer.core.algorithm_order",
            "State": "composer.core.state",
            "Time": "composer.core.time",
            "TimeUnit": "composer.core.time",
            "Timestamp": "composer.core.timestamp",
            "Trace": "composer.core.algorithm_trace",
            "Traces": "composer.core.algorithm_trace",
            "TrainerMode": "composer.core.phase",
            "Traits": "composer.core.traits",
            "ensure_data_spec": "composer.core.data_spec",
            "ensure_evaluator": "composer.core.evaluator",
            "ensure_time": "composer.core.time",
            "get_precision_context": "composer.precision",
            "sort_to_back": "composer.core.algorithm_order",
            "sort_to_front": "composer.core.algorithm_order",
        },
    )
    del attach
