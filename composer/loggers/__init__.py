"""Logger destinations: the terminal, memory, files and experiment trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer._lazy import attach

if TYPE_CHECKING:
    from composer.core.logger import Logger as Logger
    from composer.core.logger import LoggerDestination as LoggerDestination
    from composer.loggers.cometml_logger import CometMLLogger as CometMLLogger
    from composer.loggers.console_logger import ConsoleLogger as ConsoleLogger
    from composer.loggers.csv_logger import CSVLogger as CSVLogger
    from composer.loggers.file_logger import FileLogger as FileLogger
    from composer.loggers.html_report import HTMLReport as HTMLReport
    from composer.loggers.in_memory_logger import InMemoryLogger as InMemoryLogger
    from composer.loggers.json_lines_logger import JSONLinesLogger as JSONLinesLogger
    from composer.loggers.mlflow_logger import MLFlowLogger as MLFlowLogger
    from composer.loggers.mosaicml_logger import MosaicMLLogger as MosaicMLLogger
    from composer.loggers.neptune_logger import NeptuneLogger as NeptuneLogger
    from composer.loggers.progress_bar_logger import ProgressBarLogger as ProgressBarLogger
    from composer.loggers.remote_uploader_downloader import RemoteUploaderDownloader as RemoteUploaderDownloader
    from composer.loggers.slack_logger import SlackLogger as SlackLogger
    from composer.loggers.tensorboard_logger import TensorboardLogger as TensorboardLogger
    from composer.loggers.trackio_logger import TrackioLogger as TrackioLogger
    from composer.loggers.wandb_logger import WandBLogger as WandBLogger

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CSVLogger": "composer.loggers.csv_logger",
        "CometMLLogger": "composer.loggers.cometml_logger",
        "ConsoleLogger": "composer.loggers.console_logger",
        "FileLogger": "composer.loggers.file_logger",
        "HTMLReport": "composer.loggers.html_report",
        "InMemoryLogger": "composer.loggers.in_memory_logger",
        "JSONLinesLogger": "composer.loggers.json_lines_logger",
        "Logger": "composer.core.logger",
        "LoggerDestination": "composer.core.logger",
        "MLFlowLogger": "composer.loggers.mlflow_logger",
        "MosaicMLLogger": "composer.loggers.mosaicml_logger",
        "NeptuneLogger": "composer.loggers.neptune_logger",
        "ProgressBarLogger": "composer.loggers.progress_bar_logger",
        "RemoteUploaderDownloader": "composer.loggers.remote_uploader_downloader",
        "SlackLogger": "composer.loggers.slack_logger",
        "TensorboardLogger": "composer.loggers.tensorboard_logger",
        "TrackioLogger": "composer.loggers.trackio_logger",
        "WandBLogger": "composer.loggers.wandb_logger",
    },
)
