from __future__ import annotations

import torch

from composer.core import Callback, Engine, Event, State


def engine_of(*callbacks):
    return Engine(State(model=torch.nn.Linear(1, 1)), callbacks=list(callbacks))


class PrintEpoch(Callback):
    def epoch_start(self, state, logger):
        print("Epoch", state.timestamp.epoch.value)


class PrintEpochByEvent(Callback):
    def run_event(self, event, state, logger):
        if event == Event.EPOCH_START:
            print("Epoch", state.timestamp.epoch.value)


def test_both_variants_of_the_published_example_print(capsys):
    for callback in (PrintEpoch(), PrintEpochByEvent()):
        engine = engine_of(callback)
        for event in ("fit_start", "epoch_start", "epoch_end"):
            engine.run_event(event)
        assert capsys.readouterr().out == "Epoch 0\n"


def test_run_event_dispatches_to_the_method(capsys):
    state = State(model=torch.nn.Linear(1, 1))
    PrintEpoch().run_event(Event.EPOCH_START, state, None)
    PrintEpoch().run_event(Event.EPOCH_END, state, None)
    assert capsys.readouterr().out == "Epoch 0\n"


def test_overridden_run_event_receives_every_event():
    seen = []

    class Both(Callback):
        def run_event(self, event, state, logger):
            seen.append(event)
            super().run_event(event, state, logger)

        def batch_end(self, state, logger):
            seen.append("the method")

    engine = engine_of(Both())
    for event in Event:
        engine.run_event(event)
    expected = list(Event)
    expected.insert(expected.index(Event.BATCH_END) + 1, "the method")
    assert seen == expected


def test_instance_methods_and_run_event_are_called():
    by_method, by_event, seen = Callback(), Callback(), []
    by_method.batch_end = lambda state, logger: seen.append("batch_end")
    by_event.run_event = lambda event, state, logger: seen.append(event)
    engine = engine_of(by_method, by_event)
    engine.run_event("batch_end")
    engine.run_event("fit_end")
    assert seen == ["batch_end", Event.BATCH_END, Event.FIT_END]


def test_closing_does_nothing_by_default():
    callback = Callback()
    assert callback.close(None, None) is None
    assert callback.post_close() is None
    assert callback.state_dict() == {}
