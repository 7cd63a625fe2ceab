from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any

import pytest
import torch

from composer import dist
from composer.loggers import SlackLogger, _background
from composer.warnings import ComposerWarning
from tests.common import Regression, regression_data, trainer_of
from tests.loggers.files import run
from tests.loggers.loop import Loop


class Unsent(SlackLogger):
    """Does not post."""

    def _post(self, messages):
        pass


CASE = {"make": lambda: Unsent(slack_logging_api_key="xoxb-1", channel_id="C1")}


class Slack:
    """A fake Slack server; ``answers`` are returned first, each a status, headers and a body."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.answers: list[tuple[int, dict[str, str], dict[str, Any]]] = []
        self.tokens: set[str] = set()
        slack = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, headers, answer = slack.answers.pop(0) if slack.answers else (200, {}, {"ok": True})
                if answer.get("ok"):
                    assert self.path == "/api/chat.postMessage"
                    slack.tokens.add(self.headers["Authorization"])
                    slack.posts.append(body)
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *args) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def logger(self, *args: Any, **arguments: Any) -> SlackLogger:
        logger = SlackLogger(*args, slack_logging_api_key="xoxb-1", channel_id="C1", **arguments)
        logger.client.base_url = f"http://127.0.0.1:{self.server.server_port}/api/"
        return logger

    def texts(self) -> list[list[str]]:
        return [[block["text"]["text"] for block in post["blocks"]] for post in self.posts]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_background, "_FIRST_PAUSE", 0.001)
    slack = Slack()
    yield slack
    slack.close()


def test_a_run_is_posted(slack: Slack) -> None:
    run(slack.logger(["loss/*", "metrics/eval/*"])).close()
    assert {(post["channel"], post["text"]) for post in slack.posts} == {("C1", "Training")}
    assert slack.tokens == {"Bearer xoxb-1"}
    blocks = [text for texts in slack.texts() for text in texts]
    losses = [text for text in blocks if "loss" in text]
    assert losses == [f"*Batch {k}*\nloss/train/total: {1 / (k + 1):.4f}" for k in range(8)]
    assert sum("metrics/eval/Accuracy: 0.5000" in text for text in blocks) == 2
    assert len(blocks) == 10


def test_the_names_to_post(slack: Slack) -> None:
    loop = Loop([slack.logger(["loss/*", "lr"])]).init()
    loop.logger.log_metrics({"loss/train/total": 0.5, "time/batch": 3})
    loop.logger.log_metrics({"time/batch": 4})
    loop.logger.log_hyperparameters({"lr": 0.1, "seed": 1})
    loop.logger.log_traces({"trace": 1})
    loop.close()
    assert slack.texts() == [["*Batch 0*\nloss/train/total: 0.5000", "*Hyperparameters*\nlr: 0.1000"]]


def test_all_names_and_types_by_default(slack: Slack) -> None:
    logger = slack.logger()
    loop = Loop([logger]).init()
    loop.logger.log_metrics({"a<b": torch.tensor(1), "c & d": "x"})
    loop.logger.log_traces({"trace": 1})
    logger.log_metrics({"e": 1})
    loop.close()
    assert slack.texts() == [["*Batch 0*\na&lt;b: 1\nc &amp; d: x", "*Traces*\ntrace: 1", "*Metrics*\ne: 1"]]


@pytest.mark.parametrize(
    ("interval", "sizes"), [("1ba", [1] * 8), ("3ba", [3, 3, 2]), ("1ep", [4, 4]), (2, [8]), ("1000ba", [8])]
)
def test_the_interval(slack: Slack, interval, sizes: list[int]) -> None:
    run(slack.logger(["loss/*"], log_interval=interval), eval_length=0).close()
    assert [len(texts) for texts in slack.texts()] == sizes


def test_long_messages_are_split(slack: Slack) -> None:
    run(slack.logger(["loss/*"], log_interval="2ep", max_logs_per_message=3), eval_length=0).close()
    assert [len(texts) for texts in slack.texts()] == [3, 3, 2]


def test_long_texts_are_split(slack: Slack) -> None:
    loop = Loop([slack.logger()]).init()
    loop.logger.log_metrics({f"{k}": "x" * 1000 for k in range(5)} | {"long": "y" * 10_000})
    loop.close()
    (texts,) = slack.texts()
    assert len(texts) == 4
    assert all(text.startswith("*Batch 0*\n") and len(text) <= 3000 for text in texts)
    assert sum(text.count("x") for text in texts) == 5000


def test_a_custom_formatter(slack: Slack) -> None:
    def blocks(data, **context):
        return [{"type": "section", "text": {"type": "plain_text", "text": f"{sorted(data)} {context}"}}]

    loop = Loop([slack.logger(formatter_func=blocks)]).init()
    loop.logger.log_metrics({"b": 1, "a": 2}, step=7)
    loop.logger.log_hyperparameters({"lr": 0.1})
    loop.close()
    assert slack.texts() == [["['a', 'b'] {'step': 7}", "['lr'] {'header': 'Hyperparameters'}"]]


def test_rate_limits_lose_nothing(slack: Slack) -> None:
    slack.answers = [
        (429, {"Retry-After": "0"}, {"ok": False, "error": "ratelimited"}),
        (503, {}, {"ok": False, "error": "service_unavailable"}),
    ]
    run(slack.logger(["loss/*"]), eval_length=0).close()
    assert [texts[0].split(" ")[1][0] for texts in slack.texts()] == list("01234567")


def test_rejected_messages_are_reported_once_and_training_continues(slack: Slack) -> None:
    slack.answers = [(200, {}, {"ok": False, "error": "channel_not_found"})] * 2
    logger = slack.logger(["loss/*"])
    trainer = trainer_of(max_duration="2ep", loggers=logger)
    trainer.fit(duration="1ba")
    from slack_sdk.errors import SlackApiError

    with pytest.raises(SlackApiError, match="channel_not_found"):
        logger._writer.flush()
    with pytest.warns(ComposerWarning, match="channel_not_found"):
        trainer.fit(duration="1ba")
        deadline = time.monotonic() + 10
        while logger._writer._error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        trainer.fit(duration="1ba")
    trainer.close()
    assert any("*Batch 2*" in text for texts in slack.texts() for text in texts)


def test_training_does_not_wait_and_closing_is_bounded(slack: Slack, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = slack.logger(["loss/*"])
    gate = threading.Event()
    monkeypatch.setattr(logger.client, "chat_postMessage", lambda **message: gate.wait(10))
    logger._writer.close_timeout = 0.1
    loop = run(logger, eval_length=0)
    with pytest.warns(ComposerWarning, match="SlackLogger could not deliver the last 8 records"):
        logger.close(loop.state, loop.logger)
    gate.set()
    loop.close()


def test_values_are_requested_at_the_interval_only() -> None:
    loop = Loop([Unsent(log_interval="3ba", slack_logging_api_key="x", channel_id="C")], "100ba", length=100).init()
    loop.logger.deferred = True
    due = []
    for _ in range(7):
        loop.batch()
        due.append(loop.logger.destinations[0].__due__(loop.state))
    assert due == [False, False, True, False, False, True, False]
    loop.close()


def test_other_ranks_post_nothing(slack: Slack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    run(slack.logger()).close()
    assert slack.posts == []


def test_in_a_real_run(slack: Slack) -> None:
    with trainer_of(
        Regression(metrics=True),
        max_duration="2ep",
        loggers=slack.logger(["metrics/eval/*", "rank_zero_seed"], log_interval="1ep"),
        eval_dataloader=regression_data(1),
    ) as trainer:
        trainer.fit()
        trainer.eval()
    blocks = [text for texts in slack.texts() for text in texts]
    assert [text.split("\n")[0] for text in blocks] == ["*Hyperparameters*", "*Batch 4*", "*Batch 8*", "*Batch 8*"]
    assert all("metrics/eval/MeanSquaredError" in text for text in blocks[1:])


def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACK_LOGGING_API_KEY", raising=False)
    monkeypatch.delenv("SLACK_LOGGING_CHANNEL_ID", raising=False)
    with pytest.raises(ValueError, match=r"requires slack_logging_api_key: .* variable SLACK_LOGGING_API_KEY"):
        SlackLogger()
    monkeypatch.setenv("SLACK_LOGGING_API_KEY", "xoxb-2")
    with pytest.raises(ValueError, match=r"requires channel_id: .* variable SLACK_LOGGING_CHANNEL_ID"):
        SlackLogger()
    monkeypatch.setenv("SLACK_LOGGING_CHANNEL_ID", "C2")
    assert SlackLogger().channel_id == "C2"
    assert SlackLogger().client.token == "xoxb-2"
    assert SlackLogger(channel_id="C3").channel_id == "C3"
    with pytest.raises(TypeError, match=r"include_keys must be a list of patterns; got 'loss/\*'"):
        SlackLogger("loss/*")
    with pytest.raises(ValueError, match="log_interval must be in batches or epochs"):
        SlackLogger(log_interval="1sp")
    with pytest.raises(ValueError, match="max_logs_per_message must be between 1 and 50; got 51"):
        SlackLogger(max_logs_per_message=51)
