"""SlackLogger: post metrics, hyperparameters and traces to a Slack channel."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._lazy import import_extra
from composer._numbers import positive, whole_number
from composer._text import callable_or_none
from composer.core.hooks import replaces
from composer.core.logger import LoggerDestination
from composer.core.time import Time, TimeUnit, ensure_time
from composer.loggers._background import BackgroundWriter, RetryLater
from composer.loggers._format import format_log_data_value

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SlackLogger"]

# Slack rejects messages with more blocks, and blocks with more characters.
_MAX_BLOCKS = 50
_MAX_TEXT = 3000


class SlackLogger(LoggerDestination):
    """Posts metrics, hyperparameters and traces to a Slack channel.

    Logged values are collected and posted in few messages at each interval, at the end of training and when the run is
    closed, by a background thread: training does not wait for Slack. Failed posts are retried; messages that Slack
    rejects are reported like other logger errors. Only rank 0 posts.

    The token belongs to an app with the scope ``chat:write`` that is a member of the channel.

    Args:
        include_keys: Patterns of the names to post, such as ``"loss/*"``; if empty, all names.
        formatter_func: Creates the blocks of a message from values by name: called as
            ``formatter_func(data, step=...)`` for metrics and ``formatter_func(data, header=...)`` otherwise; by
            default a section with one line per value. See https://api.slack.com/reference/block-kit/blocks.
        log_interval: How often to post, in batches or epochs; a plain number is epochs.
        max_logs_per_message: Maximum number of blocks per message, at most 50.
        slack_logging_api_key: The token; defaults to the environment variable ``SLACK_LOGGING_API_KEY``.
        channel_id: The channel; defaults to the environment variable ``SLACK_LOGGING_CHANNEL_ID``.

    Raises:
        MissingConditionalImportError: The package ``slack_sdk`` is not installed.
        TypeError: ``include_keys`` is a single string.
        ValueError: The token or the channel is missing, or a number is out of range.

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
            raise TypeError(f"include_keys must be a list of patterns; got {include_keys!r}. Pass [{include_keys!r}].")
        interval = ensure_time(log_interval, TimeUnit.EPOCH, "log_interval", (TimeUnit.BATCH, TimeUnit.EPOCH))
        max_logs_per_message = whole_number("max_logs_per_message", max_logs_per_message, minimum=None)
        if not 1 <= max_logs_per_message <= _MAX_BLOCKS:
            raise ValueError(f"max_logs_per_message must be between 1 and 50; got {max_logs_per_message!r}.")
        self.include_keys = tuple(include_keys)
        self.formatter_func = callable_or_none("formatter_func", formatter_func) or _section
        self.log_interval = Time(positive("log_interval", interval.value), interval.unit)
        self.max_logs_per_message = max_logs_per_message
        token = _setting("slack_logging_api_key", slack_logging_api_key, "SLACK_LOGGING_API_KEY")
        self.channel_id = _setting("channel_id", channel_id, "SLACK_LOGGING_CHANNEL_ID")
        self.blocks: list[dict[str, Any]] = []
        self._is_active = dist.get_global_rank() == 0
        self.client = slack_sdk.WebClient(token=token)
        self._rejected: type[Exception] = slack_sdk.errors.SlackApiError
        self._writer: BackgroundWriter[list[dict[str, Any]]] = BackgroundWriter(
            "SlackLogger", self._post, capacity=1000, max_batch=1
        )

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank posts."""
        return self._is_active

    @property
    def __keeps_traces__(self) -> bool:
        """Whether to post algorithm traces: only if ``include_keys`` is given."""
        return bool(self.include_keys) or replaces(self, SlackLogger, "log_traces")

    def __due__(self, state: State) -> bool:
        """Return whether to post after this batch."""
        every = self.log_interval
        is_in_batches = every.unit is TimeUnit.BATCH
        return self._is_active and is_in_batches and state.timestamp.count(TimeUnit.BATCH) % every.value == 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Collect metrics."""
        self._collect(metrics, step=step)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Collect hyperparameters."""
        self._collect(hyperparameters, header="Hyperparameters")

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Collect algorithm traces."""
        self._collect(traces, header="Traces")

    def batch_end(self, state: State, logger: Logger) -> None:
        """Post collected values, if due."""
        if self.__due__(state):
            self._send()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Post collected values, if due."""
        every = self.log_interval
        if every.unit is TimeUnit.EPOCH and state.timestamp.count(TimeUnit.EPOCH) % every.value == 0:
            self._send()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Post values logged after the last interval."""
        self._send()

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Post the metrics of an evaluation outside of training."""
        self._send()

    def close(self, state: State, logger: Logger) -> None:
        """Post the rest, within a minute."""
        try:
            self._send()
        finally:
            self._writer.close()

    def _collect(self, values: dict[str, Any], **context: Any) -> None:
        """Format the values whose names match ``include_keys`` as blocks."""
        selected = {
            name: value
            for name, value in values.items()
            if not self.include_keys or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include_keys)
        }
        if selected and self._is_active:
            self.blocks += self.formatter_func(selected, **context)

    def _send(self) -> None:
        """Pass collected blocks to the thread, as messages."""
        blocks, self.blocks, size = self.blocks, [], self.max_logs_per_message
        messages = [blocks[begin : begin + size] for begin in range(0, len(blocks), size)]
        if messages:
            self._writer.put(*messages)

    def _post(self, messages: list[list[dict[str, Any]]]) -> None:
        """Post messages; runs in the thread."""
        for blocks in messages:
            try:
                self.client.chat_postMessage(channel=self.channel_id, text="Training", blocks=blocks)
            except self._rejected as error:
                response: Any = getattr(error, "response", None)
                if response.status_code == 429 or response.status_code >= 500:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    raise RetryLater(float(headers.get("retry-after", 1)), str(error)) from error
                raise


def _setting(argument: str, value: str | None, variable: str) -> str:
    """Return an argument, or else the value of an environment variable."""
    value = value or os.environ.get(variable)
    if not value:
        raise ValueError(f"SlackLogger requires {argument}: pass it, or set the environment variable {variable}.")
    return value


def _section(data: dict[str, Any], step: int | None = None, header: str | None = None) -> list[dict[str, Any]]:
    """Format values as sections with one line per value."""
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
