"""Profiler: windows, the spans of the loop, markers, and that it changes nothing where it is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from composer import Algorithm, Callback, Engine, Event, State, Trainer
from composer.callbacks import CallbackTimer
from composer.loggers import InMemoryLogger
from composer.profiler import Profiler, ProfilerAction, SystemProfiler, TorchProfiler, TraceHandler, cyclic_schedule
from tests import loop
from tests.common import Unsized, classifier, labeled_data, regression_data, trainer_of, weights
from tests.profiler.traces import PLAIN, profile

SKIP, WARMUP, ACTIVE, SAVE = ProfilerAction


class Watch(TraceHandler):
    """Keeps what is recorded and the windows, as one text."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def process_duration_event(self, name, categories, is_start, timestamp, wall_clock_time_ns):
        self.found.append(f"+{name}" if is_start else f"-{name}")

    def process_chrome_json_trace_file(self, filepath):
        self.found.append(f"file {filepath}")

    def begin_batch(self, action, state):
        self.found.append(f"{action.value} {state.timestamp.batch.value}")

    def save(self, state, logger):
        self.found.append(f"save {state.timestamp.batch.value}")

    def clean_up(self):
        self.found.append("clean")

    @property
    def windows(self) -> list[str]:
        return [entry for entry in self.found if entry[0] not in "+-" and entry != "clean"]


class Act(Algorithm):
    def after_forward(self, state, logger):
        pass


class Idle(Callback):
    def before_forward(self, state, logger):
        pass


def profiler_of(watch: Watch, schedule: Any, **arguments: Any) -> Profiler:
    return Profiler(schedule, watch, **{**PLAIN, **arguments})


def by_batch(*actions: ProfilerAction) -> Any:
    """A schedule that lists what to do in each batch of the run."""
    return lambda state: actions[state.timestamp.batch.value]


# ---------------------------------------------------------------------------------------------------- windows


def test_windows_of_a_schedule() -> None:
    watch = Watch()
    profile(profiler_of(watch, cyclic_schedule(wait=1, warmup=1, active=1)), batches=4, max_duration="2ep")
    epoch = ["skip", "warmup", "active_and_save", "skip"]
    expected = []
    for batch in range(8):
        expected.append(f"{epoch[batch % 4]} {batch}")
        if batch % 4 == 2:
            expected.append(f"save {batch + 1}")
    assert watch.windows == expected
    assert watch.found.count("clean") == 2


@pytest.mark.parametrize(
    ("actions", "saved"),
    [
        ([ACTIVE, ACTIVE, ACTIVE, ACTIVE], ["save 4"]),  # at the end of training
        ([ACTIVE, ACTIVE, SKIP, SKIP], ["save 2"]),  # nobody said that the window ends
        ([ACTIVE, WARMUP, ACTIVE, SKIP], ["save 1", "save 3"]),
        ([SAVE, SAVE, SKIP, SAVE], ["save 1", "save 2", "save 4"]),
        ([SKIP, WARMUP, WARMUP, WARMUP], []),
    ],
)
def test_every_window_is_saved_once(actions, saved) -> None:
    watch = Watch()
    profile(profiler_of(watch, by_batch(*actions)))
    assert [entry for entry in watch.windows if entry.startswith("save")] == saved


def test_the_schedule_may_return_names() -> None:
    watch = Watch()
    profile(profiler_of(watch, lambda state: "skip"), batches=1)
    assert watch.windows == ["skip 0"]
    with pytest.raises(ValueError, match=r"Did you mean 'skip'\?"):
        profile(profiler_of(Watch(), lambda state: "skp"))


def test_data_of_unknown_length() -> None:
    """The loop cannot know that the data is at its end, so the schedule is asked for a batch that never comes."""
    watch = Watch()
    data = Unsized(labeled_data(2))
    profiler = profiler_of(watch, cyclic_schedule(warmup=0, active=3))
    with trainer_of(classifier(), data, profiler=profiler, max_duration="2ep") as trainer:
        trainer.fit()
    starts = [name for name in watch.found if name == "+event/batch"]
    assert len(starts) == 4
    assert [entry for entry in watch.windows if entry.startswith("save")] == ["save 4"]
    check_balance(watch)


def test_training_that_goes_on() -> None:
    watch = Watch()
    trainer = trainer_of(classifier(), labeled_data(2), profiler=profiler_of(watch, by_batch(*[ACTIVE] * 4)))
    trainer.fit()
    trainer.fit(duration="1ep")
    assert [entry for entry in watch.windows if entry.startswith("save")] == ["save 2", "save 4"]
    assert trainer.state.profiler.action is SKIP
    trainer.close()


def test_an_error_ends_without_a_trace() -> None:
    class Fail(Callback):
        def after_loss(self, state, logger):
            raise RuntimeError("no")

    watch = Watch()
    profiler = profiler_of(watch, by_batch(ACTIVE))
    trainer = trainer_of(profiler=profiler, callbacks=Fail())
    with pytest.raises(RuntimeError, match="no"):
        trainer.fit()
    trainer.close()
    assert watch.windows == ["active 0"]
    assert not profiler.is_recording


def test_a_loop_of_ones_own_without_the_events_of_a_loader() -> None:
    watch = Watch()
    state = State(model=nn.Linear(1, 1))
    profiler_of(watch, by_batch(ACTIVE, SAVE)).bind_to_state(state)
    engine = Engine(state)
    for _ in range(2):
        engine.run_event("batch_start")
        state.timestamp = state.timestamp.to_next_batch(samples=1)
        engine.run_event("batch_end")
    assert watch.found == [
        *("active 0", "+event/epoch", "+event/batch", "-event/batch"),
        *("active_and_save 1", "+event/batch", "-event/batch", "-event/epoch", "save 2", "clean"),
    ]


# ---------------------------------------------------------------------------------------------------- spans


def check_balance(watch: Watch) -> None:
    open_spans = []
    for entry in watch.found:
        if entry[0] == "+":
            open_spans.append(entry[1:])
        elif entry[0] == "-":
            assert open_spans.pop() == entry[1:]
    # Not every loop ends its epoch: one of a script may leave it, an error does.
    assert open_spans in ([], ["event/epoch"])


def test_spans_of_a_step() -> None:
    watch = Watch()
    profile(profiler_of(watch, by_batch(SAVE)), batches=1, algorithms=Act(), callbacks=Idle(), loggers=InMemoryLogger())
    spans = [entry for entry in watch.found if entry[0] in "+-" and "InMemoryLogger" not in entry]
    assert spans == [
        *("+event/epoch", "+event/dataloader", "-event/dataloader"),
        *("+event/batch", "+event/train_batch"),
        *("+callback/Idle/before_forward", "-callback/Idle/before_forward"),
        *("+event/forward", "-event/forward"),
        *("+algorithm/Act/after_forward", "-algorithm/Act/after_forward"),
        *("+event/loss", "-event/loss", "+event/backward", "-event/backward"),
        *("-event/train_batch", "-event/batch"),
        *("+callback/Logger/batch_end", "-callback/Logger/batch_end"),
        "-event/epoch",
    ]


def test_evaluation_within_a_window() -> None:
    watch = Watch()
    profile(
        profiler_of(watch, by_batch(ACTIVE, SAVE)),
        batches=2,
        eval_dataloader=labeled_data(1),
        eval_interval="1ba",
    )
    spans = [entry for entry in watch.found if "eval" in entry]
    names = ["eval_all", "eval", "eval_batch", "eval_forward"]
    assert spans == [f"+event/{name}" for name in names] + [f"-event/{name}" for name in reversed(names)]
    check_balance(watch)


def test_loops_with_closures_and_unfinished_spans_balance() -> None:
    watch = Watch()
    state_of = loop.start(nn.Sequential(nn.Linear(2, 1)), max_duration="2ba").state
    profiler_of(watch, by_batch(ACTIVE, SAVE)).bind_to_state(state_of)
    engine = Engine(state_of)
    for event in ("before_dataloader", "before_dataloader", "after_dataloader", "batch_start", "before_train_batch"):
        engine.run_event(event)
    engine.run_event("batch_end")
    check_balance(watch)
    assert watch.found.count("+event/dataloader") == 2


def test_a_failing_handler_ends_its_span() -> None:
    class Fail(Callback):
        def batch_start(self, state, logger):
            raise RuntimeError("no")

    watch, state = Watch(), State(model=nn.Linear(1, 1), callbacks=[Fail()])
    profiler_of(watch, by_batch(ACTIVE)).bind_to_state(state)
    with pytest.raises(RuntimeError, match="no") as raised:
        Engine(state).run_event("batch_start")
    assert raised.value.__notes__ == ["Raised by Fail at the event 'batch_start'."]
    check_balance(watch)


def test_nothing_is_recorded_in_batches_left_alone() -> None:
    watch = Watch()
    profile(profiler_of(watch, lambda state: WARMUP), callbacks=Idle())
    assert not [entry for entry in watch.found if entry[0] in "+-"]


def test_forward_and_loss_that_are_compiled_as_one_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    profile(profiler_of(watch, by_batch(SAVE)), batches=1, compile_config={"backend": "eager"})
    assert "+event/forward_and_loss" in watch.found
    assert not {"+event/forward", "+event/loss"} & set(watch.found)
    check_balance(watch)


def test_another_listener_takes_them_apart() -> None:
    watch = Watch()
    profile(profiler_of(watch, by_batch(SAVE)), batches=1, compile_config={"backend": "eager"}, algorithms=Act())
    assert "+algorithm/Act/after_forward" in watch.found
    check_balance(watch)


def test_other_wrappers_stay_at_work() -> None:
    watch, timer = Watch(), CallbackTimer()
    profile(profiler_of(watch, by_batch(SAVE)), batches=1, callbacks=[timer, Idle()])
    assert timer.costs["Idle", "before_forward"].calls == 1
    assert "+callback/Idle/before_forward" in watch.found


# ---------------------------------------------------------------------------------------------------- training


def test_training_is_the_same_bit_for_bit(tmp_path) -> None:
    def train(**arguments: Any) -> Trainer:
        trainer = trainer_of(classifier(), labeled_data(3), seed=3, max_duration="2ep", **arguments)
        trainer.fit()
        trainer.close()
        return trainer

    torch.manual_seed(0)
    plain = weights(train())
    torch.manual_seed(0)
    profiler = Profiler(
        cyclic_schedule(warmup=1, active=1), Watch(), sys_prof_cpu=True, torch_prof_folder=str(tmp_path)
    )
    assert torch.equal(weights(train(profiler=profiler)), plain)


def test_a_run_has_no_profiler_unless_it_is_given_one() -> None:
    assert State(model=nn.Linear(1, 1)).profiler is None
    trainer = trainer_of()
    assert trainer.state.profiler is None
    assert not trainer.engine.listens(Event.BEFORE_FORWARD)
    trainer.close()


def test_belongs_to_the_run(tmp_path) -> None:
    watch = Watch()
    profiler = Profiler(cyclic_schedule(), [watch], torch_prof_folder=str(tmp_path))
    trainer = trainer_of(profiler=profiler, callbacks=[watch])
    assert trainer.state.profiler is profiler
    kinds = [type(callback) for callback in trainer.state.callbacks]
    assert kinds == [Watch, Profiler, SystemProfiler, TorchProfiler]
    assert profiler.trace_handlers == (watch,)
    trainer.close()


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ({}, {SystemProfiler, TorchProfiler}),
        ({"sys_prof_cpu": False}, {TorchProfiler}),
        ({"torch_prof_profile_memory": False}, {SystemProfiler, TorchProfiler}),
        (PLAIN, set()),
        ({**PLAIN, "torch_prof_with_stack": True}, {TorchProfiler}),
        ({**PLAIN, "sys_prof_net": True}, {SystemProfiler}),
    ],
)
def test_which_profilers_it_brings(arguments, kinds) -> None:
    state = State(model=nn.Linear(1, 1))
    profiler = Profiler(cyclic_schedule(), [], **arguments)
    profiler.bind_to_state(state)
    profiler.bind_to_state(state)  # changes nothing
    assert {type(callback) for callback in state.callbacks} == {Profiler} | kinds
    assert len(state.callbacks) == 1 + len(kinds)


def test_passes_its_arguments_on() -> None:
    values = {"record_shapes": True, "profile_memory": False, "with_stack": True, "with_flops": False}
    profiler = Profiler(
        cyclic_schedule(),
        [],
        *(False, True, False, True, 0.1),
        torch_prof_folder="f",
        torch_prof_filename="a{rank}",
        torch_prof_remote_file_name="r{rank}",
        torch_prof_overwrite=True,
        torch_prof_use_gzip=True,
        torch_prof_num_traces_to_keep=3,
        **{f"torch_prof_{name}": value for name, value in values.items()},
    )
    state = State(model=nn.Linear(1, 1))
    profiler.bind_to_state(state)
    _, system, traces = state.callbacks
    assert (system.profile_cpu, system.profile_memory, system.profile_disk, system.profile_net) == (0, 1, 0, 1)
    assert system.stats_thread_interval_seconds == 0.1
    assert {name: getattr(traces, name) for name in values} == values
    files = traces.files
    assert (files.folder, files.filename, files.remote_file_name) == ("f", "a{rank}.gz", "r{rank}.gz")
    assert (files.overwrite, files.num_to_keep) == (True, 3)


# ---------------------------------------------------------------------------------------------------- markers


def test_markers_record_under_their_actions() -> None:
    class Mark(Callback):
        def batch_start(self, state, logger):
            with state.profiler.marker("usual"), state.profiler.marker("rare", actions=[SKIP]):
                pass

    watch = Watch()
    profile(profiler_of(watch, by_batch(SKIP, WARMUP, ACTIVE, SAVE)), callbacks=Mark())
    assert watch.found.count("+usual") == 3
    assert watch.found.count("+rare") == 1


def test_a_name_has_one_marker() -> None:
    profiler = profiler_of(Watch(), by_batch(ACTIVE))
    with pytest.raises(RuntimeError, match=r"Pass it to Trainer\(profiler=...\)"):
        profiler.marker("a")
    profiler.bind_to_state(State(model=nn.Linear(1, 1)))
    marker = profiler.marker("a")
    assert profiler.marker("a", categories=["b"], record_instant_on_start=True) is marker
    assert (marker.categories, marker.record_instant_on_start) == (("b",), True)
    with pytest.raises(ValueError, match="Did you mean 'active'"):
        profiler.marker("a", actions=["actve"])


def test_hands_on_traces_of_others() -> None:
    watch = Watch()
    profiler_of(watch, by_batch(ACTIVE)).record_chrome_json_trace_file("x.json")
    assert watch.found == ["file x.json"]


@pytest.mark.parametrize(
    ("schedule", "handlers", "message"),
    [
        (cyclic_schedule, Watch, "got <class .*Watch'>. Create an instance: Watch"),
        (cyclic_schedule, [Idle()], "trace_handlers must be TraceHandler objects"),
        (3, [], r"schedule must be a function \(state\) -> ProfilerAction, but got 3"),
    ],
)
def test_refuses_others(schedule, handlers, message) -> None:
    with pytest.raises(TypeError, match=message):
        Profiler(schedule, handlers)


def test_a_trainer_refuses_what_is_no_profiler() -> None:
    with pytest.raises(TypeError, match=r"profiler must be a composer\.profiler\.Profiler, .* got <object"):
        trainer_of(data=regression_data(), profiler=object())
