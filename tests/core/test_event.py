from __future__ import annotations

import inspect
import pickle
import re

import pytest

from composer.core.event import Event
from composer.core.hooks import Hooks

NAMES = [
    "init",
    "before_load",
    "after_load",
    "fit_start",
    "iteration_start",
    "epoch_start",
    "before_dataloader",
    "after_dataloader",
    "batch_start",
    "before_train_batch",
    "before_forward",
    "after_forward",
    "before_loss",
    "after_loss",
    "before_backward",
    "after_backward",
    "after_train_batch",
    "batch_end",
    "batch_checkpoint",
    "epoch_end",
    "epoch_checkpoint",
    "iteration_end",
    "iteration_checkpoint",
    "fit_end",
    "eval_before_all",
    "eval_start",
    "eval_batch_start",
    "eval_before_forward",
    "eval_after_forward",
    "eval_batch_end",
    "eval_end",
    "eval_after_all",
    "eval_standalone_start",
    "eval_standalone_end",
    "predict_start",
    "predict_batch_start",
    "predict_before_forward",
    "predict_after_forward",
    "predict_batch_end",
    "predict_end",
]


def test_all_events():
    assert [event.value for event in Event] == NAMES
    assert len(NAMES) == 40


@pytest.mark.parametrize("name", NAMES)
def test_found_by_value_and_name_in_any_case(name):
    event = Event(name)
    assert event.value == name == str(event)
    assert event == name
    assert event.name == name.upper()
    assert Event(name.upper()) is Event(name.title()) is Event(event) is Event[name.upper()] is event
    assert getattr(Event, name.upper()) is event


@pytest.mark.parametrize(("old", "new"), [("TRAINING_START", "FIT_START"), ("TRAINING_END", "FIT_END")])
def test_old_names(old, new):
    event = Event[new]
    assert Event(old) is Event(old.lower()) is Event(old.title()) is Event[old] is getattr(Event, old) is event
    assert event.name == new


def test_equals_its_string_as_a_key():
    assert {Event.INIT: 1}["init"] == 1


def test_pickles_to_itself():
    assert pickle.loads(pickle.dumps(Event.BATCH_END)) is Event.BATCH_END


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("after_foward", "Unknown event 'after_foward'. Did you mean 'after_forward'?"),
        ("AFTER_FOWARD", "Unknown event 'AFTER_FOWARD'. Did you mean 'after_forward'?"),
        ("xyz", "Unknown event 'xyz'."),
        ("", "Unknown event ''."),
    ],
)
def test_unknown_names(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Event(given)


@pytest.mark.parametrize("given", [3, None, 0.5])
def test_other_types(given):
    message = f"An event must be an Event or a str, not {type(given).__name__}: {given!r}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Event(given)


def test_spans():
    opening = {e.value for e in Event if e.is_before_event}
    closing = {e.value for e in Event if e.is_after_event}
    neither = {"init", "batch_checkpoint", "epoch_checkpoint", "iteration_checkpoint"}
    assert opening == {n for n in NAMES if "before_" in n or n.endswith("_start")}
    assert closing == set(NAMES) - opening - neither


def test_each_span_is_opened_and_closed_once():
    spans: dict[str, list[Event]] = {}
    for event in Event:
        if event.is_before_event or event.is_after_event:
            spans.setdefault(event.canonical_name, []).append(event)
    for span, (first, last) in spans.items():
        assert first.is_before_event, span
        assert last.is_after_event, span


def test_canonical_names():
    assert Event.EVAL_BEFORE_ALL.canonical_name == Event.EVAL_AFTER_ALL.canonical_name == "eval_all"
    assert Event.BEFORE_TRAIN_BATCH.canonical_name == "train_batch"
    assert Event.BATCH_CHECKPOINT.canonical_name == "batch_checkpoint"
    assert Event.INIT.canonical_name == "init"


def test_types():
    assert {e for e in Event if e.is_eval} == {e for e in Event if e.value.split("_")[0] == "eval"}
    assert len([e for e in Event if e.is_eval]) == 10
    assert len([e for e in Event if e.is_predict]) == 6


def test_undo_events_run_last_to_first():
    reverse = {event.value for event in Event if event.runs_last_to_first}
    assert reverse == {
        "after_forward",
        "after_loss",
        "after_backward",
        "after_train_batch",
        "eval_after_forward",
        "eval_after_all",
        "predict_after_forward",
    }


def test_docstring_loop_names_every_event():
    loop = inspect.getdoc(Event)
    assert loop is not None
    missing = [event.name for event in Event if not re.search(rf"\b{event.name}\b", loop)]
    assert not missing


def test_hooks_have_one_documented_method_for_each_event():
    for event in Event:
        method = getattr(Hooks, event.value)
        assert list(inspect.signature(method).parameters) == ["self", "state", "logger"]
        assert method.__doc__
