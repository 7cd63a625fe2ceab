"""The acceptance test Signatures: match and apply of user classes may have any parameter order and names."""

from __future__ import annotations

import functools
import itertools
import re

import pytest
import torch

from composer.core import Algorithm, Engine, Event, State
from composer.core.match_and_apply import bind

NAMES = ("event", "state", "logger")
GIVEN = {"event": Event.BATCH_END, "state": "the state", "logger": "the logger"}
SUBSETS = [names for count in range(4) for names in itertools.permutations(NAMES, count)]


def algorithm_with(method: str, signature: str) -> Algorithm:
    """An algorithm of which a method with this signature returns its arguments by name."""
    names = dict.fromkeys(re.findall(r"\w+", re.sub(r"=\s*\w+", "", signature)))
    space: dict = {}
    exec(f"def {method}({signature}):\n    return {{{', '.join(f'{n!r}: {n}' for n in names if n != 'self')}}}", space)
    other = {"apply": "match", "match": "apply"}[method]
    return type("Mine", (Algorithm,), {method: space[method], other: lambda self, *_: True})()


def call(method: str, signature: str):
    return bind(algorithm_with(method, signature), method)(*GIVEN.values())


def as_given(names):
    return {name: GIVEN[name] for name in names}


@pytest.mark.parametrize("method", ["match", "apply"])
@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: "-".join(names) or "none")
class TestNamed:
    def test_any_subset_and_order(self, method, names):
        assert call(method, ", ".join(["self", *names])) == as_given(names)

    def test_with_defaults(self, method, names):
        assert call(method, ", ".join(["self", *(f"{name}=None" for name in names)])) == as_given(names)

    def test_keyword_only(self, method, names):
        if names:
            assert call(method, ", ".join(["self", "*", *names])) == as_given(names)

    def test_positional_only(self, method, names):
        assert call(method, ", ".join(["self", *names, "/"])) == as_given(names)

    def test_a_parameter_with_a_custom_default_keeps_it(self, method, names):
        assert call(method, ", ".join(["self", *names, "verbose=True"])) == {**as_given(names), "verbose": True}
        assert call(method, ", ".join(["self", *names, "*", "verbose=True"])) == {**as_given(names), "verbose": True}
        defaults = [f"{name}=None" for name in names]
        assert call(method, ", ".join(["self", "verbose=True", *defaults])) == {**as_given(names), "verbose": True}

    def test_remaining_arguments_go_to_kwargs(self, method, names):
        got = call(method, ", ".join(["self", *names, "**others"]))
        assert {**got, **got["others"], "others": None} == {**GIVEN, "others": None}

    def test_remaining_arguments_go_to_args(self, method, names):
        expected = [GIVEN[name] for name in NAMES[: 2 if method == "match" else 3] if name not in names]
        got = call(method, ", ".join(["self", *names, "*others"]))
        assert got == {**as_given(names), "others": tuple(expected)}


@pytest.mark.parametrize(
    ("method", "signature", "expected"),
    [
        ("match", "self, e, s", {"e": "event", "s": "state"}),
        ("apply", "self, e, s, log", {"e": "event", "s": "state", "log": "logger"}),
        ("match", "self, _, state", {"_": "event", "state": "state"}),
        ("match", "self, event, _", {"event": "event", "_": "state"}),
        ("match", "self, state, _", {"state": "state", "_": "event"}),
        ("apply", "self, _, state, __", {"_": "event", "state": "state", "__": "logger"}),
        ("apply", "self, state, e, logger", {"state": "state", "e": "event", "logger": "logger"}),
        ("apply", "self, logger, e, s", {"logger": "logger", "e": "event", "s": "state"}),
        ("apply", "self, e, s, log=None", {"e": "event", "s": "state", "log": "logger"}),
        ("match", "self, e, *, state", {"e": "event", "state": "state"}),
        ("apply", "self, e, /, s, logger", {"e": "event", "s": "state", "logger": "logger"}),
    ],
)
def test_other_names_receive_remaining_arguments_in_order(method, signature, expected):
    assert call(method, signature) == {name: GIVEN[source] for name, source in expected.items()}


@pytest.mark.parametrize(("method", "count"), [("match", 2), ("apply", 3)])
def test_only_stars(method, count):
    everything = tuple(GIVEN.values())
    assert call(method, "self, *args") == {"args": everything[:count]}
    assert call(method, "self, **named") == {"named": GIVEN}
    assert call(method, "self, *args, **named") == {"args": everything[:count], "named": {}}
    assert call(method, "self, e, *args") == {"e": GIVEN["event"], "args": everything[1:count]}
    assert call(method, "self, e, *args, logger=None") == {
        "e": GIVEN["event"],
        "args": (GIVEN["state"],),
        "logger": GIVEN["logger"],
    }


def test_default_before_args_stops_positional_passing():
    got = call("apply", "self, event, verbose=True, *args")
    assert got == {"event": GIVEN["event"], "verbose": True, "args": ()}
    got = call("apply", "self, event, verbose=True, state=None, logger=None, /")
    assert got == {"event": GIVEN["event"], "verbose": True, "state": None, "logger": None}


@pytest.mark.parametrize(
    ("method", "signature"),
    [
        ("match", "self, e"),
        ("match", "self, e, s, log"),
        ("match", "self, event, state, logger, more"),
        ("match", "self, event, e, s"),
        ("match", "self, e, s, log, *args"),
        ("match", "self, event, state, *, more"),
        ("apply", "self, e"),
        ("apply", "self, e, s"),
        ("apply", "self, event, s"),
        ("apply", "self, e, s, log, more"),
        ("apply", "self, event, state, logger, more"),
    ],
)
def test_wrong_signature_is_rejected_at_registration(method, signature):
    algorithm = algorithm_with(method, signature)
    forms = {
        "match": "match(self, event, state), match(self, state, event, logger)",
        "apply": "apply(self, event, state, logger), apply(self, state, event, logger)",
    }
    message = (
        f"Mine.{method}({signature.removeprefix('self, ')}) cannot be called: write it as {forms[method]}, or with "
        f"another subset and order of these names."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Engine(State(model=torch.nn.Linear(1, 1)), algorithms=[algorithm])
    engine = Engine(State(model=torch.nn.Linear(1, 1)))
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        engine.state.algorithms.append(algorithm)
    assert engine.state.algorithms == []


def test_static_class_and_wrapped_methods():
    def wrap(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return ("wrapped", function(*args, **kwargs))

        return wrapper

    class Mine(Algorithm):
        @staticmethod
        def match(state, event):
            return state, event

        @classmethod
        def apply(cls, logger, state):
            return cls, logger, state

    class Wrapped(Mine):
        @wrap
        def apply(self, state, event):
            return state, event

    assert bind(Mine(), "match")(*GIVEN.values()) == (GIVEN["state"], GIVEN["event"])
    assert bind(Mine(), "apply")(*GIVEN.values()) == (Mine, GIVEN["logger"], GIVEN["state"])
    assert bind(Wrapped(), "apply")(*GIVEN.values()) == ("wrapped", (GIVEN["state"], GIVEN["event"]))


PUBLISHED = {
    "event, state": ("event, state", "event, state, logger"),
    "state first": ("state, event, logger", "state, event, logger"),
    "mixed": ("event, state", "state, event, logger"),
    "subset": ("event", "state"),
}


@pytest.mark.parametrize(("match", "apply"), PUBLISHED.values(), ids=PUBLISHED)
def test_run_by_the_engine(match, apply):
    space: dict = {}
    exec(
        f"def match(self, {match}):\n    return event == 'after_loss'\n"
        f"def apply(self, {apply}):\n    state.loss = state.loss / 2\n    return 3",
        space,
    )
    halve = type("Halve", (Algorithm,), {"match": space["match"], "apply": space["apply"]})()
    state = State(model=torch.nn.Linear(1, 1))
    state.loss = 8.0
    engine = Engine(state, algorithms=[halve])
    engine.run_event("before_loss")
    engine.run_event("after_loss")
    assert state.loss == 4.0


def test_assigned_to_the_object():
    algorithm, seen = Algorithm(), []
    algorithm.match = lambda event: event is Event.INIT
    algorithm.apply = lambda state, event: seen.append(event)
    engine = Engine(State(model=torch.nn.Linear(1, 1)), algorithms=[algorithm])
    engine.run_event("init")
    engine.run_event("fit_start")
    assert seen == [Event.INIT]
