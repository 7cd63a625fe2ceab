"""Send what is logged to a Slack channel."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._lazy import import_extra
from composer._text import positive
from composer.core.hooks import replaces
from composer.core.logger import LoggerDestination
from composer.core.time import Time, TimeUnit
from composer.loggers._background import BackgroundWriter, TryAgain
from composer.loggers._format import format_log_data_value

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SlackLogger"]

# Slack refuses messages with more blocks, and blocks with more characters.
_MAX_BLOCKS = 50
_MAX_TEXT = 3000


class SlackLogger(LoggerDestination):
    """Posts metrics, hyperparameters and traces to a Slack channel.

    What is logged is collected, and posted in few messages at each interval, at the end of the training and when the
    run is closed, by a thread of its own: training does not wait for Slack. Messages that cannot be posted are tried
    again; what Slack refuses is reported as other errors of loggers are. Only the first process posts.

    The token belongs to an app with the scope ``chat:write`` that is a member of the channel.

    Args:
        include_keys: Patterns of the names to post, such as ``"loss/*"``; all names if there are none.
        formatter_func: Makes the blocks of a message, ``formatter_func(data, step=...)`` for metrics and
            ``formatter_func(data, header=...)`` for others, from values by name; by default a section with a line
            for each value. See https://api.slack.com/reference/block-kit/blocks.
        log_interval: How often to post, in batches or epochs; a plain number is epochs.
        max_logs_per_message: How many blocks a message may hold, at most 50.
        slack_logging_api_key: The token; that of the environment variable ``SLACK_LOGGING_API_KEY`` by default.
        channel_id: The channel; that of the environment variable ``SLACK_LOGGING_CHANNEL_ID`` by default.

    Raises:
        MissingConditionalImportError: The package ``slack_sdk`` is not installed.
        TypeError: ``include_keys`` is one string.
        ValueError: There is no token or no channel, or a number is out of its range.

    >>> logger = SlackLogger(["loss/*"], slack_logging_api_key="xoxb-1", channel_id="C1")
    >>> logger.log_metrics({"loss/train/total": 0.5, "time/batch": 3}, step=3)
    >>> logger.blocks
    [{'type': 'section', 'text': {'type': 'mrkdwn', 'text': '*Batch 3*\\nloss/train/total: 0.5000'}}]
    """

    def __init__(
        self,
        include_keys: Sequence[str] = (),
        formatter_func: Callable[..., list[dict[str, Any]]] | None = None,
        log_interval: int | str | Time = "1ba",
        max_logs_per_message: int = 50,
        slack_logging_api_key: str | None = None,
        channel_id: str | None = None,
    ) -> None:
        slack_sdk = import_extra("slack_sdk", "slack", "SlackLogger")
        if isinstance(include_keys, str):
            raise TypeError(f"include_keys must be a list of patterns, but got {include_keys!r}. Give a list of it.")
        interval = Time.from_input(log_interval, TimeUnit.EPOCH)
        if interval.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
            raise ValueError(
                f"log_interval must be in batches or epochs, as '10ba' or '1ep', but got {log_interval!r}."
            )
        if not 1 <= max_logs_per_message <= _MAX_BLOCKS:
            raise ValueError(f"max_logs_per_message must be between 1 and 50, but got {max_logs_per_message!r}.")
        self.include_keys = tuple(include_keys)
        self.formatter_func = _section if formatter_func is None else formatter_func
        self.log_interval = Time(positive("log_interval", interval.value), interval.unit)
        self.max_logs_per_message = max_logs_per_message
        token = _setting("slack_logging_api_key", slack_logging_api_key, "SLACK_LOGGING_API_KEY")
        self.channel_id = _setting("channel_id", channel_id, "SLACK_LOGGING_CHANNEL_ID")
        self.blocks: list[dict[str, Any]] = []
        self._here = dist.get_global_rank() == 0
        self.client = slack_sdk.WebClient(token=token)
        self._refused: type[Exception] = slack_sdk.errors.SlackApiError
        self._writer: BackgroundWriter[list[dict[str, Any]]] = BackgroundWriter(
            "SlackLogger", self._post, capacity=1000, max_batch=1
        )

    @property
    def __logs_here__(self) -> bool:
        """Whether this process logs."""
        return self._here

    @property
    def __keeps_traces__(self) -> bool:
        """Whether what algorithms did is posted: the names to post say so."""
        return bool(self.include_keys) or replaces(self, SlackLogger, "log_traces")

    def __due__(self, state: State) -> bool:
        """Tell whether it is time to post after this batch."""
        every = self.log_interval
        return self._here and every.unit is TimeUnit.BATCH and state.timestamp.count(TimeUnit.BATCH) % every.value == 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Collect metrics."""
        self._collect(metrics, step=step)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Collect hyperparameters."""
        self._collect(hyperparameters, header="Hyperparameters")

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Collect what algorithms did."""
        self._collect(traces, header="Traces")

    def batch_end(self, state: State, logger: Logger) -> None:
        """Post what has come, if it is time."""
        if self.__due__(state):
            self._send()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Post what has come, if it is time."""
        every = self.log_interval
        if every.unit is TimeUnit.EPOCH and state.timestamp.count(TimeUnit.EPOCH) % every.value == 0:
            self._send()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Post what came after the last interval."""
        self._send()

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Post the metrics of an evaluation outside of training."""
        self._send()

    def close(self, state: State, logger: Logger) -> None:
        """Post the rest; takes a minute at most."""
        try:
            self._send()
        finally:
            self._writer.close()

    def _collect(self, values: dict[str, Any], **context: Any) -> None:
        """Make blocks of the values that are wanted."""
        wanted = {
            name: value
            for name, value in values.items()
            if not self.include_keys or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include_keys)
        }
        if wanted and self._here:
            self.blocks += self.formatter_func(wanted, **context)

    def _send(self) -> None:
        """Hand what has come to the thread, as messages."""
        blocks, self.blocks, size = self.blocks, [], self.max_logs_per_message
        messages = [blocks[begin : begin + size] for begin in range(0, len(blocks), size)]
        if messages:
            self._writer.put(*messages)

    def _post(self, messages: list[list[dict[str, Any]]]) -> None:
        """Post messages; runs in the thread."""
        for blocks in messages:
            try:
                self.client.chat_postMessage(channel=self.channel_id, text="Training", blocks=blocks)
            except self._refused as error:
                response: Any = getattr(error, "response", None)
                if response.status_code == 429 or response.status_code >= 500:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    raise TryAgain(float(headers.get("retry-after", 1)), str(error)) from error
                raise


def _setting(argument: str, value: str | None, variable: str) -> str:
    """Return an argument, or else what the environment says."""
    value = value or os.environ.get(variable)
    if not value:
        raise ValueError(f"SlackLogger needs {argument}: give it, or set the environment variable {variable}.")
    return value


def _section(data: dict[str, Any], step: int | None = None, header: str | None = None) -> list[dict[str, Any]]:
    """Make a section with a line for each value."""
    if header is None:
        header = "Metrics" if step is None else f"Batch {step}"
    title = f"*{header}*"
    lines = [f"{name}: {format_log_data_value(value)}" for name, value in data.items()]
    texts, text = [], title
    for line in lines:
        line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")[: _MAX_TEXT - len(title) - 1]
        if len(text) + len(line) + 1 > _MAX_TEXT:
            texts.append(text)
            text = title
        text += f"\n{line}"
    return [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in [*texts, text]]
