"""Secrets are masked in texts, values and exceptions, whatever is around them; what is no secret stays as it is."""

from __future__ import annotations

import argparse
import pickle
import string
import traceback
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer._secrets.masking import MASK, is_masked, mask_error, mask_text, mask_values, secrets_in

CANARY = "cAn4ry-Hunter2"

TEXTS = [
    # URIs
    ("sftp://me:{}@host:22/run/ep1.pt", "sftp://me:***@host:22/run/ep1.pt"),
    ("cannot read 'sftp://me:{}@host/x': refused", "cannot read 'sftp://me:***@host/x': refused"),
    ("sftp://me:p@{}@host/x@1", "sftp://me:***@host/x@1"),
    ("sftp://me:pa/{}@host/x", "sftp://me:***@host/x"),
    ("sftp:/me:{}@host/x", "sftp:/me:***@host/x"),
    ("https://{}@host/x", "https://***@host/x"),
    ("https://{}:@host/x", "https://***:@host/x"),
    ("https://{}:x-oauth-basic@host", "https://***:***@host"),
    ("redis://:{}@host:1/0", "redis://:***@host:1/0"),
    ("unknown+scheme://me:{}@[::1]:80", "unknown+scheme://me:***@[::1]:80"),
    ("/me:{}@bucket/run", "/me:***@bucket/run"),
    ("me:{}@host", "me:***@host"),
    ("https://host/x?token={}&part=1", "https://host/x?token=***&part=1"),
    ("https://host/x?sv=1&sig={}", "https://host/x?sv=1&sig=***"),
    ("s3://b/k?X-Amz-Credential={0}&X-Amz-Signature={0}", "s3://b/k?X-Amz-Credential=***&X-Amz-Signature=***"),
    ("https://host/#access_token={}", "https://host/#access_token=***"),
    ("https://hooks.slack.com/services/T0/B0/{}", "https://hooks.slack.com/services/***"),
    # what is named
    ("Logger(api_key='{}', x=1)", "Logger(api_key='***', x=1)"),
    ("{{'hf_token': '{}', 'x': 1}}", "{'hf_token': '***', 'x': 1}"),
    ('{{"password": "{}"}}', '{"password": "***"}'),
    ("{{'key': b'{}'}}", "{'key': b'***'}"),
    ("AccountName=me;AccountKey={}==;Suffix=x", "AccountName=me;AccountKey=***;Suffix=x"),
    ("export HF_TOKEN={}", "export HF_TOKEN=***"),
    ("train.py --api_key {} --lr 1", "train.py --api_key *** --lr 1"),
    ("train.py --api-key={} --lr 1", "train.py --api-key=*** --lr 1"),
    ("['--token', '{}']", "['--token', '***']"),
    ("lr: 1\napi_key: {}\nx: 2", "lr: 1\napi_key: ***\nx: 2"),
    ("Authorization: Bearer {}", "Authorization: ***"),
    ("{{'Authorization': 'Basic {}'}}", "{'Authorization': '***'}"),
    ("[('Authorization', '{}')]", "[('Authorization', '***')]"),
    ("sent Bearer {}", "sent Bearer ***"),
    ("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
     "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----"),
    ("https://host/x?session={}&part=1", "https://host/x?session=***&part=1"),
    ("https://api.telegram.org/bot123:{}/sendMessage", "https://api.telegram.org/bot***/sendMessage"),
    # what would be half masked
    ("password=ab {}", "password=***"),
    ("login with password=ab, {} user=me", "login with password=*** user=me"),
    ("--password=ab,{} --lr 1", "--password=*** --lr 1"),
    ("Client(password=SecretStr('{}'), port=1)", "Client(password=***, port=1)"),
    ("password=('{}', 1)", "password=***"),
    ("credentials={{'x': '{}', 'y': (1, 2)}} and so on", "credentials=*** and so on"),
    ("api_key=\\\"{}\\\"", "api_key=\\\"***\\\""),
    ("{{\\\"api_key\\\": \\\"{}\\\"}}", "{\\\"api_key\\\": \\\"***\\\"}"),
    ("{{'password': ('{}',), 'x': 1}}", "{'password': ***, 'x': 1}"),
    ("{{'tokens': 1, 'hf_token': ['{}']}}", "{'tokens': 1, 'hf_token': ['***']}"),
    ("{{'password': SecretStr('{}')}}", "{'password': ***}"),
    ("api_key = {}", "api_key = ***"),
    ("token = '{}'", "token = '***'"),
    ("password='{}", "password=***"),
    ("{{api_key: {}}}", "{api_key: ***}"),
    ("{{lr: 1, api_key: {}, x: 2}}", "{lr: 1, api_key: ***, x: 2}"),
    ("API key: {}", "API key: ***"),
    ("refused API key: {} as unknown", "refused API key: *** as unknown"),
    ("<password>{}</password>", "<password>***</password>"),
    ("<s:apiKey kind='x'>{}</s:apiKey>", "<s:apiKey kind='x'>***</s:apiKey>"),
    ("api_key=${{KEY:-{}}}", "api_key=***"),
]  # fmt: skip
PLAIN = [
    "sftp://me@host:22/run",
    "oci://bucket@namespace/run",
    "abfss://container@account.dfs.core.windows.net/run",
    "hf://datasets/me/data@main/x",
    "http://localhost:5000/a@b",
    "git@github.com:me/code.git",
    "mailto:me@host",
    "/data/key/token/ep1.pt",
    "MixUp(alpha=0.2, input_key='input_ids', target_key='labels')",
    "Tokenizer(pad_token='<pad>', tokenizer_name='bert', max_tokens=5)",
    "{'keys': ['a'], 'input_key': 'image', 'num_tokens': 3}",
    "Unexpected key(s) in state_dict: 'a.b'",
    "key: 'x' is not there",
    "KeyError: 'lr'",
    "must be one of 'password', 'key', 'token'",
    "api_key=${WANDB_API_KEY}",
    "--tokenizer bert --max_tokens 5",
    "at 12:30@home",
    "by --callbacks.0.conf.api_key VALUE on the command line",
    "callbacks.0.headers.Authorization: the secret was masked when this was saved",
    "api_key: the secret is missing",
    "a key = value pair",
    "if token == 'x'",
    "Sort(key='image', first_pass='train', hash_key='x', n=1)",
    "password=None, x=1",
    "",
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=[text for text, _ in TEXTS])
def test_texts(text: str, expected: str) -> None:
    masked = mask_text(text.format(CANARY))
    assert masked == expected
    assert mask_text(masked) == masked
    around = mask_text(f"before\n{text.format(CANARY)}\nafter")
    assert CANARY not in around
    assert around.startswith("before\n")
    assert around.endswith("\nafter")


@pytest.mark.parametrize("text", PLAIN)
def test_texts_without_secrets_stay(text: str) -> None:
    assert mask_text(text) == text
    assert not is_masked(text)


@pytest.mark.parametrize(
    "token", ["hf_", "ghp_", "github_pat_", "glpat-", "sk-", "xoxb-", "npm_", "AIza"], ids=lambda start: start
)
def test_tokens_that_are_known_by_their_shape(token: str) -> None:
    assert mask_text(f"got {token}{'a1B2' * 8}!") == "got ***!"


_PASSWORDS = st.text(string.ascii_letters + string.digits + "!$%&*()_+-.,;~@:", min_size=1, max_size=20)


@given(_PASSWORDS, st.sampled_from(["sftp", "https", "memory", "s3", "ssh", "x-y+z"]))
def test_no_password_of_a_uri_is_left(password: str, scheme: str) -> None:
    masked = mask_text(f"{scheme}://me:{password}@host/run")
    assert masked.endswith(f"{MASK}@host/run")
    assert masked.startswith(f"{scheme}://")
    assert mask_text(masked) == masked


@given(st.recursive(st.just(CANARY), lambda inner: st.one_of(
    st.lists(inner, min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["a", "loggers", "init_args", "x_y"]), inner, min_size=1, max_size=3),
    st.tuples(inner, st.integers()),
)))  # fmt: skip
def test_no_secret_is_left_at_any_depth(values: Any) -> None:
    assert CANARY not in repr(mask_values({"credentials": values, "seed": 1}))
    assert mask_values({"seed": values}) == {"seed": values}


@given(st.text())
def test_any_text(text: str) -> None:
    masked = mask_text(text)
    assert mask_text(masked) == masked
    mask_values({"a": text, "api_key": text})


@dataclass
class Client:
    api_key: str
    port: int = 1


class Session:
    def __init__(self) -> None:
        self.auth_token = CANARY
        self.client = Client(CANARY)


Pair = namedtuple("Pair", "user password")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"api_key": CANARY, "input_key": "image"}, {"api_key": MASK, "input_key": "image"}),
        ({"a": [{"token": CANARY}, 1]}, {"a": [{"token": MASK}, 1]}),
        ({"password": 123456, "use_password": True, "max_tokens": 5},
         {"password": MASK, "use_password": True, "max_tokens": 5}),
        ({"credentials": {"user": "me", "x": [CANARY]}}, {"credentials": {"user": MASK, "x": [MASK]}}),
        ({"keys": {"wandb": CANARY}, "ignore_keys": ["a"]}, {"keys": {"wandb": MASK}, "ignore_keys": ["a"]}),
        ({"argv": ["--api_key", CANARY, "--lr", "1"]}, {"argv": ["--api_key", MASK, "--lr", "1"]}),
        ({"headers": [("Authorization", CANARY)]}, {"headers": [("Authorization", MASK)]}),
        ({"columns": ["key", "token"]}, {"columns": ["key", "token"]}),
        ({"x": Client(CANARY)}, {"x": {"class": "Client", "api_key": MASK, "port": 1}}),
        ({"x": Session()}, {"x": {"class": "Session", "auth_token": MASK,
                                  "client": {"class": "Client", "api_key": MASK, "port": 1}}}),
        ({"x": argparse.Namespace(hf_token=CANARY)}, {"x": {"class": "Namespace", "hf_token": MASK}}),
        ({"x": Path(f"sftp:/me:{CANARY}@host")}, {"x": "sftp:/me:***@host"}),
        ({"key": CANARY.encode()}, {"key": MASK.encode()}),
        ({"token": "${HF_TOKEN}", "key": "$KEY", "auth": ""}, {"token": "${HF_TOKEN}", "key": "$KEY", "auth": ""}),
        ({"api_key": {"class_path": "os.getenv", "args": ["KEY"]}},
         {"api_key": {"class_path": "os.getenv", "args": [MASK]}}),
        ({f"sftp://me:{CANARY}@host": 1}, {"sftp://me:***@host": 1}),
        ({"x": Pair("me", CANARY)}, {"x": Pair("me", MASK)}),
        ({"env": [{"name": "HF_TOKEN", "value": CANARY}, {"name": "LR", "value": "1"}]},
         {"env": [{"name": "HF_TOKEN", "value": MASK}, {"name": "LR", "value": "1"}]}),
        ({"key": "HF_TOKEN", "value": CANARY}, {"key": "HF_TOKEN", "value": MASK}),
        ({"tokens": ["a1" * 10, "word", "antidisestablishmentarianism"]},
         {"tokens": [MASK, "word", "antidisestablishmentarianism"]}),
        ({"keys": ("image", "b2" * 10)}, {"keys": ["image", MASK]}),
        *(({"password": text}, {"password": MASK})
          for text in ["$ecCANARY", "<CANARY>", "[CANARY]", "${K:-CANARY}", "${k}", "${oc.env:K,CANARY}"]),
        ({"password": "${oc.env:K}"}, {"password": "${oc.env:K}"}),
        ({"key": "image", "pass": "train", "hash_key": "x", "storage_key": "y", "hotkey": "z", "first_pass": "train",
          "password_strength_model": "small", "secret_santa": "me", "token": 3},) * 2,
    ],
)  # fmt: skip
def test_values(values: Any, expected: Any) -> None:
    assert mask_values(values) == expected
    assert mask_values(mask_values(values)) == expected


def test_values_that_refer_to_themselves() -> None:
    inside: dict[str, Any] = {"token": CANARY}
    inside["me"] = inside
    assert mask_values(inside)["token"] == MASK


def test_objects_without_secrets_are_not_touched() -> None:
    client, values = Client(""), {"a": (1, 2), "b": Path("x")}
    assert mask_values({"client": client})["client"] is client
    assert mask_values(values) == values


def test_what_is_known_is_masked_anywhere() -> None:
    known = secrets_in(
        {"folder": "sftp://me:a%20b%2Fc@host", "loggers": [{"api_key": CANARY}], "pin": {"password": 98765}}
    )
    text = f"{CANARY} a b/c a%20b%2Fc 98765 host"
    assert mask_text(text, known) == "*** *** *** *** host"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("***", True), ("sftp://me:***@host", True), ("https://h?sig=***&x=1", True), ("a***b", False), ("*", False),
     ("state/***/x", False), (None, False), ("layers.***.weight", False)],
)  # fmt: skip
def test_whether_a_value_was_masked(value: object, expected: bool) -> None:
    assert is_masked(value) is expected


class AnswerError(Exception):
    """Makes its text of what it keeps, as those of clients of web servers do."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.request = type("Request", (), {"url": url})()

    def __str__(self) -> str:
        return f"404 at {self.request.url}"


URI = f"sftp://me:{CANARY}@host/x"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(URI), KeyError(URI), OSError(URI), FileNotFoundError(2, "No such file", URI),
        ImportError(URI, name="x"),
        ImportError(URI), OSError(1, "moved", URI, None, URI), SystemExit(URI),
        ValueError({"api_key": CANARY}), AnswerError(URI),
        ExceptionGroup("several", [ValueError(URI)]), UnicodeError(URI), RuntimeError(f"login with {CANARY}"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_exceptions(error: BaseException) -> None:
    kind = type(error)
    error.add_note(f"the upload of {URI}")
    try:
        try:
            raise ConnectionError(URI)
        except ConnectionError as first:
            raise error from first
    except BaseException as raised:
        assert mask_error(raised, secrets_in(URI)) is error
    assert isinstance(error, kind)
    assert type(error).__name__ == kind.__name__
    # Without the lines of this file, in which there is only the name.
    assert CANARY not in "".join(traceback.format_exception(error))
    assert CANARY not in repr(error)


class ManyError(ExceptionGroup):
    def derive(self, excs: Any) -> ManyError:
        return ManyError(self.message, excs)


@pytest.mark.parametrize("kind", [ExceptionGroup, ManyError])
def test_the_message_of_a_group(kind: type[ExceptionGroup[Exception]]) -> None:
    """Which Python does not let change: a group of the same exceptions takes its place."""
    first = ValueError("first")
    group = kind(URI, [first, kind(URI, [KeyError("second")])])
    group.add_note("noted")
    masked = mask_error(group)
    assert type(masked) is kind
    assert masked.exceptions[0] is first
    assert "noted" in masked.__notes__
    assert CANARY not in "".join(traceback.format_exception(masked)) + repr(masked)
    around = RuntimeError("around")
    around.__cause__ = kind(URI, [first])
    assert CANARY not in "".join(traceback.format_exception(mask_error(around)))
    harmless = kind("several", [first])
    assert mask_error(harmless) is harmless


def test_a_masked_exception_of_python_goes_to_another_process() -> None:
    error = mask_error(FileNotFoundError(2, "No such file", URI))
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "[Errno 2] No such file: 'sftp://me:***@host/x'"
