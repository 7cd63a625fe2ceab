"""Runs from YAML files and the command line: a file is a call of :class:`.Trainer`, written down."""

from __future__ import annotations

from composer.hparams.build import trainer_from_config
from composer.hparams.command_line import trainer_from_args
from composer.hparams.config_tree import ConfigError

__all__ = ["ConfigError", "trainer_from_args", "trainer_from_config"]
