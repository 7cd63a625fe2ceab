"""Errors and warnings when an algorithm, callback or logger is registered."""

from __future__ import annotations

import importlib
import inspect
import warnings
from unittest import mock

import pytest

import composer.algorithms
import composer.callbacks
import composer.loggers
from composer.core import Algorithm, Callback, Engine, Event, LoggerDestination
from composer.core.hooks import Hooks
from composer.core.listener_check import check_listener
from composer.warnings import ComposerWarning
from tests.common import trainer_of
from tests.core.test_engine import state_of

BASES = [Callback, Algorithm, LoggerDestination]


def with_methods(base, **methods):
    return type("Mine", (base,), methods)


def messages(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_listener(kind())
    return [str(entry.message) for entry in caught]


def anything(self, *given): ...


def library_classes():
    for package in (composer.algorithms, composer.callbacks, composer.loggers):
        for name in package.__all__:
            kind = getattr(package, name)
            if inspect.isclass(kind) and issubclass(kind, tuple(BASES)):
                yield kind
    for name in ("json_trace_handler", "torch_profiler", "system_profiler"):
        for kind in vars(importlib.import_module(f"composer.profiler.{name}")).values():
            if inspect.isclass(kind) and issubclass(kind, Callback):
                yield kind


@pytest.mark.parametrize(
    "kind", sorted(set(library_classes()), key=lambda kind: kind.__qualname__), ids=lambda kind: kind.__name__
)
def test_library_listeners_are_valid(kind):
    class Mine(kind):
        """A subclass, which was not checked yet; whatever its arguments are, all of its hooks are looked at."""

        __listens__ = Hooks.__listens__

    listener = object.__new__(Mine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_listener(listener)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("name", "event"), [("on_epoch_end", "epoch_end"), ("after_backwards", "after_backward"), ("EpochEnd", "epoch_end")]
)
def test_unknown_hook_warns_once_per_class(base, name, event):
    kind = with_methods(base, **{name: lambda self, state, logger: None})
    (message,) = messages(kind)
    assert message.startswith(
        f"Mine.{name} is never called. Composer's event is {event}: write {event}(self, state, logger)."
    )
    assert messages(kind) == []


@pytest.mark.parametrize("argument", ["callbacks", "loggers", "algorithms"])
def test_checked_at_every_entry_point(argument):
    base = {"callbacks": Callback, "loggers": LoggerDestination, "algorithms": Algorithm}[argument]

    def make():
        return with_methods(base, on_epoch_end=anything)()

    with pytest.warns(ComposerWarning, match=r"Mine\.on_epoch_end is never called"):
        trainer = trainer_of(**{argument: [make()]})
    trainer.close()
    kind = "algorithms" if base is Algorithm else "callbacks"
    with pytest.warns(ComposerWarning, match=r"Mine\.on_epoch_end is never called"):
        Engine(state_of(), **{kind: make()})
    state = state_of()
    engine = Engine(state)
    with pytest.warns(ComposerWarning, match=r"Mine\.on_epoch_end is never called"):
        getattr(state, kind).append(make())
    assert not engine.closed


def test_warning_as_error_is_raised():
    kind = with_methods(Callback, on_epoch_end=anything)
    for _ in range(2):
        with pytest.raises(ComposerWarning, match="on_epoch_end"):
            check_listener(kind())


@pytest.mark.parametrize(
    ("base", "written", "meant"),
    [
        (Callback, "run_events", "run_event(self, event, state, logger)"),
        (Callback, "postclose", "post_close(self)"),
        (Callback, "load_statedict", "load_state_dict(self, state)"),
        (Algorithm, "requires_on_load", "required_on_load()"),
        (LoggerDestination, "log_metric", "log_metrics(self, metrics, step)"),
        (LoggerDestination, "log_hyperparams", "log_hyperparameters(self, hyperparameters)"),
        (LoggerDestination, "log_image", "log_images("),
        (LoggerDestination, "logMetrics", "log_metrics("),
    ],
)
def test_other_methods(base, written, meant):
    (message,) = messages(with_methods(base, **{written: anything}))
    assert message.startswith(f"Mine.{written} is never called. Did you mean {meant}")


def test_attributes():
    assert messages(with_methods(Algorithm, find_unused_parameter=True, size=3, on_top=True)) == [
        "Mine.find_unused_parameter has no effect. Did you mean 'find_unused_parameters'?"
    ]


def test_no_false_alarm():
    class Mine(Callback):
        """What ordinary callbacks are made of."""

        batch_size = 3
        on_top = True

        def __init__(self):
            self.on_done = []
            self.epoch_ends = 0

        def epoch_end(self, state, logger):
            self.after_save("x")
            self.on_stop()

        def after_save(self, path): ...
        def on_stop(self): ...
        def _on_hidden(self): ...
        def on_epoch_end(self): ...
        def epoch_name(self, state): ...
        def fit(self, state, logger): ...
        def evaluate(self, state, logger): ...
        def log_metrics(self, metrics): ...
        def closed(self): ...
        def end_epoch(self, number): ...

        @property
        def on_time(self):
            return True

    # The hook for which on_epoch_end stands is there too: the class serves two libraries.
    assert messages(Mine) == []


def test_subclass_of_a_library_class():
    class Mine(composer.callbacks.EarlyStopper):
        def on_eval_end(self, state, logger): ...

    (message,) = messages(lambda: object.__new__(Mine))
    assert "Mine.on_eval_end" in message


def test_instance_methods():
    callback = Callback()
    callback.after_backwards = lambda state, logger: None
    with pytest.warns(ComposerWarning, match=r"Callback\.after_backwards is never called"):
        Engine(state_of(), callbacks=callback)
    callback = Callback()
    callback.epoch_end = lambda state: None
    with pytest.raises(TypeError, match=r"Callback\.epoch_end\(state\) cannot be called"):
        Engine(state_of(), callbacks=callback)
    mine = Callback()
    mine.epoch_end = mock.Mock()
    engine = Engine(state_of(), callbacks=mine)
    engine.run_event("epoch_end")
    mine.epoch_end.assert_called_once_with(engine.state, engine.logger)


def test_a_mock_is_accepted():
    Engine(state_of(), callbacks=mock.Mock(spec=Callback))


@pytest.mark.parametrize("event", list(Event))
@pytest.mark.parametrize("base", BASES)
def test_parameters_of_hooks_are_checked_when_registered(base, event):
    name = event.value
    for right in (
        lambda self, state, logger: None,
        lambda self, *given: None,
        lambda self, state, _: None,
        lambda self, state, logger, more=None: None,
        lambda self, s, l: None,  # noqa: E741
        staticmethod(lambda state, logger: None),
    ):
        check_listener(with_methods(base, **{name: right})())
    for wrong in (
        lambda self: None,
        lambda self, state: None,
        lambda self, logger, state: None,
        lambda self, event, state: None,
        lambda self, state, logger, more: None,
        lambda self, *, state, logger: None,
    ):
        with pytest.raises(TypeError, match=rf"cannot be called: write it as {name}\(self, state, logger\)\."):
            check_listener(with_methods(base, **{name: wrong})())


def test_hooks_that_would_do_nothing():
    async def coroutine(self, state, logger): ...

    def generator(self, state, logger):
        yield

    for function, what in ((coroutine, "a coroutine"), (generator, "a generator")):
        with pytest.raises(TypeError, match=f"{what} .* calling it would do nothing: write a plain epoch_end"):
            check_listener(with_methods(Callback, epoch_end=function)())
    with pytest.raises(TypeError, match=r"Mine\.epoch_end is 3, but it must be a method.* Rename the attribute"):
        check_listener(with_methods(Callback, epoch_end=3)())


@pytest.mark.parametrize(
    ("base", "name", "form"),
    [
        (Callback, "close", "close(self, state, logger)"),
        (Callback, "run_event", "run_event(self, event, state, logger)"),
        (Callback, "load_state_dict", "load_state_dict(self, state)"),
        (LoggerDestination, "log_metrics", "log_metrics(self, metrics, step)"),
        (LoggerDestination, "__due__", "__due__(self, state)"),
    ],
)
def test_parameters_of_other_methods(base, name, form):
    with pytest.raises(TypeError, match="cannot be called") as caught:
        check_listener(with_methods(base, **{name: lambda self: None})())
    assert str(caught.value).endswith(f"write it as {form}.")


def test_custom_dispatch_is_not_checked():
    class ByEvent(Callback):
        def run_event(self, event, state, logger):
            if event is Event.EPOCH_END:
                self.epoch_end(state)

        def epoch_end(self, state): ...

    class ByMatch(Algorithm):
        def match(self, event, state):
            return event is Event.EPOCH_END

        def apply(self, event, state, logger):
            self.epoch_end(state)

        def epoch_end(self, state): ...

    assert messages(ByEvent) == messages(ByMatch) == []
