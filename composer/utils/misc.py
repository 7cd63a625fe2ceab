"""Small helpers, under the name that scripts import."""

from __future__ import annotations

from composer.core.file_names import partial_format
from composer.core.interval import create_interval_scheduler
from composer.dist.ports import get_free_tcp_port
from composer.distributed.fsdp import is_model_fsdp
from composer.environment import is_notebook
from composer.precision import STR_TO_DTYPE
from composer.trainer.modes import model_eval_mode
from composer.trees import ensure_tuple

__all__ = [
    "STR_TO_DTYPE",
    "create_interval_scheduler",
    "ensure_tuple",
    "get_free_tcp_port",
    "is_model_fsdp",
    "is_notebook",
    "model_eval_mode",
    "partial_format",
]
