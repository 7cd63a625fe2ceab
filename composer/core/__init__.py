"""State, Engine, Event and Time of a run, and the base classes of algorithms, callbacks, loggers and models.

The modules in reading order:

- ``time``, ``timestamp``, ``interval``: durations such as "10ep", training progress, actions every N batches or epochs.
- ``event``, ``hooks``: the events of the training loop, and the hook methods named after them.
- ``state``: model, optimizers, data and progress of a run; ``_state_data``, ``_state_progress``, ``_state_names``,
  ``_state_saved`` and ``state_html`` hold the data, the completed part, the old attribute names, the ``state_dict`` and
  the notebook view; ``phase`` holds what differs between training, evaluation and prediction; ``stop_reason`` records
  why a run stopped early.
- ``algorithm``, ``callback``, ``logger_destination``, ``model``: base classes for extensions; ``serializable`` is the
  checkpoint interface, ``traits`` and ``distributed_support`` declare order, conflicts and support for sharded weights;
  ``replicas`` says which ranks train apart in low-communication training.
- ``engine``: calls the hooks at each event. ``event_plan`` selects them, ``algorithm_order`` sorts algorithms,
  ``match_and_apply`` calls user-defined ``match`` and ``apply``, ``handler_owner`` marks who a handler belongs to,
  ``listener_check``, ``hook_names``, ``unused_methods`` and ``unused_overrides`` detect misspelled hooks,
  ``algorithm_trace`` and ``model_changes`` record what algorithms did, ``watched_list`` detects added callbacks.
- ``logger``: queues metrics for all destinations; ``_log_record`` copies them from the device, ``_snapshot`` copies
  what can be modified later; ``run_notices`` reports run events in one line, ``run_event`` is an event with its time,
  ``metric_names``, ``metric_values`` and ``metric_direction`` find and compare metrics.
- ``data_spec``, ``evaluator``, ``types``: how batches are counted and split, and the evaluation data; ``microbatches``
  splits batches for gradient accumulation, ``user_counts`` checks numbers of samples and tokens, ``default_split`` is
  an alias, ``device_transfer`` copies batches to the device.
- ``epoch_iterators``, ``epoch_iterator``: iterate over an epoch and resume in the middle of it; ``data_sharding`` and
  ``sample_order`` shard samples among ranks, ``random_order`` shuffles, ``sample_indices`` names the samples of a
  batch, ``first_batch_rng`` restores random state, ``loader_workers`` starts and stops DataLoader workers,
  ``infinite_data`` detects data without an end.
- ``eval_mode``: puts a model into evaluation mode, and restores the mode of each module.
- ``name_placeholders``, ``file_names``, ``run_files``, ``run_log_file``, ``checkpoint_folders``: file names such as
  "ep{epoch}.pt", files of earlier runs, and sharded checkpoint folders; ``parameter_size`` counts elements and bytes.
"""

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
