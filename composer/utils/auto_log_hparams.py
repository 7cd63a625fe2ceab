"""Hyperparameters of objects, under the name that scripts import."""

from __future__ import annotations

from composer.nested import convert_flat_dict_to_nested_dict, convert_nested_dict_to_flat_dict
from composer.trainer.hparams import extract_hparams

__all__ = ["convert_flat_dict_to_nested_dict", "convert_nested_dict_to_flat_dict", "extract_hparams"]
