"""Train PyTorch models with methods that compose.

Names are imported on first use, so that ``import composer`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer._at_exit import (
    call_last as _call_last,  # imported first: its exit handler must run after those of scripts
)
from composer._compat.import_aliases import install as _install
from composer._compat.predecessor_installed import warn_of_predecessors
from composer._version import __version__ as __version__

_install()
del _call_last, _install

if TYPE_CHECKING:
    from composer import algorithms as algorithms
    from composer import callbacks as callbacks
    from composer import core as core
    from composer import devices as devices
    from composer import functional as functional
    from composer import loggers as loggers
    from composer import loss as loss
    from composer import metrics as metrics
    from composer import models as models
    from composer import optim as optim
    from composer import trainer as trainer
    from composer import utils as utils
    from composer.core.algorithm import Algorithm as Algorithm
    from composer.core.callback import Callback as Callback
    from composer.core.data_spec import DataSpec as DataSpec
    from composer.core.engine import Engine as Engine
    from composer.core.evaluator import Evaluator as Evaluator
    from composer.core.event import Event as Event
    from composer.core.logger import Logger as Logger
    from composer.core.model import ComposerModel as ComposerModel
    from composer.core.state import State as State
    from composer.core.time import Time as Time
    from composer.core.time import TimeUnit as TimeUnit
    from composer.core.timestamp import Timestamp as Timestamp
    from composer.diagnosis.doctor import doctor as doctor
    from composer.estimation.estimate import estimate as estimate
    from composer.exploration.explore import explore as explore
    from composer.reports.comparison import compare_runs as compare_runs
    from composer.trainer import Trainer as Trainer
    from composer.verification.verify import verify as verify
else:
    from composer._lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "Algorithm": "composer.core.algorithm",
            "Callback": "composer.core.callback",
            "ComposerModel": "composer.core.model",
            "DataSpec": "composer.core.data_spec",
            "Engine": "composer.core.engine",
            "Evaluator": "composer.core.evaluator",
            "Event": "composer.core.event",
            "Logger": "composer.core.logger",
            "State": "composer.core.state",
            "Time": "composer.core.time",
            "TimeUnit": "composer.core.time",
            "Timestamp": "composer.core.timestamp",
            "Trainer": "composer.trainer",
            "__version__": "composer._version",
            "algorithms": "composer.algorithms",
            "callbacks": "composer.callbacks",
            "compare_runs": "composer.reports.comparison",
            "core": "composer.core",
            "devices": "composer.devices",
            "doctor": "composer.diagnosis.doctor",
            "estimate": "composer.estimation.estimate",
            "explore": "composer.exploration.explore",
            "functional": "composer.functional",
            "loggers": "composer.loggers",
            "loss": "composer.loss",
            "metrics": "composer.metrics",
            "models": "composer.models",
            "optim": "composer.optim",
            "trainer": "composer.trainer",
            "utils": "composer.utils",
            "verify": "composer.verification.verify",
        },
    )
    del attach

warn_of_predecessors()
del warn_of_predecessors
