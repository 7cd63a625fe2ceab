"""Saving and loading, under the name that scripts import; see :mod:`composer.checkpoint`."""

from __future__ import annotations

from composer.checkpoint.load import load_checkpoint, safe_torch_load
from composer.checkpoint.save import get_save_filename, save_checkpoint
from composer.core.file_names import PartialFilePath

__all__ = ["PartialFilePath", "get_save_filename", "load_checkpoint", "safe_torch_load", "save_checkpoint"]
