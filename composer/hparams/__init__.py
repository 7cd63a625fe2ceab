"""Configure runs with YAML files and the command line: a configuration has the arguments of :class:`.Trainer`."""

from __future__ import annotations

from composer.hparams.build import trainer_from_config
from composer.hparams.command_line import trainer_from_args
from composer.hparams.config_tree import ConfigError

__all__ = ["ConfigError", "trainer_from_args", "trainer_from_config"]
