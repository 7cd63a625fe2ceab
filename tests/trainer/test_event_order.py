"""EventOrder: the loop written in the docstring of ``Event`` is the loop that runs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import Evaluator, Event, Time
from tests.common import Recorder, Unsized, regression_data, trainer_of

Lines = list[tuple[str, Any]]


def parse(docstring: str) -> dict[str, Lines]:
    """Read the pseudo-code of a docstring: the lines of each block, each with the lines that are indented below it."""
    text = inspect.cleandoc(docstring).partition(".. code-block:: text\n")[2]
    root: Lines = []
    open_blocks = [(-1, root)]
    for line in text.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        while indent <= open_blocks[-1][0]:
            open_blocks.pop()
        children: Lines = []
        open_blocks[-1][1].append((line.strip().removesuffix(":"), children))
        open_blocks.append((indent, children))
    return dict(root)


BLOCKS = parse(Event.__doc__)


class Program:
    """Runs the pseudo-code for given numbers, and collects the events."""

    def __init__(self, total: int, interval: int | None, **repeats: int) -> None:
        """``total`` batches in all; evaluation after each ``interval`` batches, or after each epoch if None."""
        self.total, self.interval, self.repeats = total, interval, repeats
        self.events: list[Event] = []
        self.batch = self.batch_in_epoch = 0
        self.evaluated_at: int | None = None

    def run(self, lines: Lines) -> list[Event]:
        for text, children in lines:
            if text == "for epoch":
                while self.batch < self.total:
                    self.batch_in_epoch = 0
                    self.run(children)
            elif text == "for batch":
                while self.batch < self.total and self.batch_in_epoch < self.repeats["batch"]:
                    self.run(children)
            elif text.startswith("for "):
                for _ in range(self.repeats[text.removeprefix("for ")]):
                    self.run(children)
            elif text == "end of epoch":
                if self.batch_in_epoch == self.repeats["batch"]:
                    self.run(children)
            elif text == "evaluate":
                self.evaluate()
            else:
                self.fire(Event[text])
        return self.events

    def fire(self, event: Event) -> None:
        self.events.append(event)
        if event is Event.BATCH_END:
            self.batch += 1
            self.batch_in_epoch += 1

    def evaluate(self) -> None:
        """Evaluate where it is due: every interval, and at the end of the training if not just done."""
        last = self.events[-1]
        if last is Event.BATCH_END:
            due = self.interval is not None and self.batch % self.interval == 0
        elif last is Event.EPOCH_END:
            due = self.interval is None
        else:
            due = self.evaluated_at != self.batch
        if due and self.repeats["evaluator"]:
            self.evaluated_at = self.batch
            self.run(BLOCKS["evaluate"])


def test_EventOrder_documented_program_is_parsed() -> None:
    assert list(BLOCKS) == ["construct", "fit", "evaluate", "eval", "predict"]

    def names(lines: Lines) -> set[str]:
        return {text for text, _ in lines}.union(*(names(children) for _, children in lines))

    events = {name for lines in BLOCKS.values() for name in names(lines) if name.isupper()}
    assert events == set(Event.__members__) - {
        "TRAINING_START",
        "TRAINING_END",
        "ITERATION_END",
        "ITERATION_CHECKPOINT",
    }


@settings(max_examples=40)
@given(
    batches=st.integers(1, 4),
    epochs=st.integers(1, 3),
    stop_early=st.integers(0, 3),
    microbatches=st.integers(1, 3),
    evaluators=st.integers(0, 2),
    eval_batches=st.integers(1, 2),
    interval=st.none() | st.integers(1, 3),
)
def test_EventOrder_fit(batches, epochs, stop_early, microbatches, evaluators, eval_batches, interval) -> None:
    total = max(1, batches * epochs - stop_early)
    whole = total % batches == 0
    recorder = Recorder()
    trainer = trainer_of(
        data=regression_data(batches, batch_size=microbatches),
        device_train_microbatch_size=1,
        max_duration=f"{total // batches}ep" if whole else f"{total}ba",
        eval_dataloader=[Evaluator(label=f"e{i}", dataloader=regression_data(eval_batches)) for i in range(evaluators)],
        eval_interval="1ep" if interval is None else f"{interval}ba",
        callbacks=recorder,
    )
    repeats = {"batch": batches, "microbatch": microbatches, "evaluator": evaluators, "eval batch": eval_batches}
    assert recorder.events == Program(0, None).run(BLOCKS["construct"])
    recorder.events.clear()
    trainer.fit()
    assert recorder.events == Program(total, interval, **repeats).run(BLOCKS["fit"])

    if evaluators:
        recorder.events.clear()
        trainer.eval()
        assert recorder.events == Program(0, None, **repeats).run(BLOCKS["eval"])


def test_EventOrder_training_that_ends_with_an_epoch_does_not_look_for_a_further_batch() -> None:
    """A maximum in batches is reached by the last batch, one in epochs only when the data are found at their end."""
    recorder = Recorder()
    trainer_of(max_duration="4ba", callbacks=recorder).fit()
    expected = Program(4, None, batch=4, microbatch=1, evaluator=0).run(BLOCKS["construct"] + BLOCKS["fit"])
    found = [i for i, event in enumerate(expected) if event is Event.BEFORE_DATALOADER]
    del expected[found[-1]]
    assert recorder.events == expected


@pytest.mark.parametrize("subset", [-1, 1, 2])
def test_EventOrder_predict(subset: int) -> None:
    recorder = Recorder()
    trainer = trainer_of(callbacks=recorder)
    recorder.events.clear()
    trainer.predict(regression_data(3), subset)
    assert recorder.events == Program(0, None, **{"predict batch": 3 if subset == -1 else subset}).run(
        BLOCKS["predict"]
    )


@pytest.mark.parametrize("data", [regression_data(3), Unsized(regression_data(3))], ids=["sized", "unsized"])
def test_EventOrder_a_fit_that_continues_fires_what_is_missing(data) -> None:
    """Two fits fire the events of one, but for the frame of each."""
    straight, parts = Recorder(), Recorder()
    trainer_of(data=data, max_duration="2ep", callbacks=straight).fit()
    trainer = trainer_of(data=data, max_duration="2ba", callbacks=parts)
    trainer.fit()
    trainer.state.max_duration = "2ep"
    trainer.fit()
    frame = (Event.FIT_START, Event.FIT_END)
    assert [e for e in parts.events if e not in frame] == [e for e in straight.events if e not in frame]
    assert [e for e in parts.events if e in frame] == [*frame, *frame]


def test_EventOrder_a_closure_that_is_called_again_fires_again() -> None:
    import torch

    from tests.common import Regression

    recorder, model = Recorder(), Regression()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=0, tolerance_change=0)
    trainer_of(model, optimizers=optimizer, max_duration="1ba", callbacks=recorder).fit()
    inner = [e for e in recorder.events if e in (Event.BEFORE_TRAIN_BATCH, Event.AFTER_TRAIN_BATCH)]
    assert len(inner) > 2
    assert inner == [Event.BEFORE_TRAIN_BATCH, Event.AFTER_TRAIN_BATCH] * (len(inner) // 2)
    assert recorder.events.count(Event.BATCH_END) == 1


@pytest.mark.parametrize(("length", "ends_after"), [("2ep", [2, 4]), ("20tok", [1, 2, 3, 4])])
def test_EventOrder_iterations(length: str, ends_after: list[int]) -> None:
    """An iteration ends with the epoch that completes it, whether its length is in epochs or in tokens."""
    from composer import DataSpec

    recorder = Recorder()
    data = DataSpec(regression_data(2), get_num_tokens_in_batch=lambda batch: 10)
    trainer = trainer_of(data=data, max_duration="4ep", callbacks=recorder)
    trainer.state._iteration_length = Time.from_timestring(length)
    trainer.fit()
    seen = ("ITERATION_START", "EPOCH_START", "EPOCH_CHECKPOINT", "ITERATION_END", "ITERATION_CHECKPOINT")
    expected, fresh = ["ITERATION_START"], True
    for epoch in (1, 2, 3, 4):
        expected += [] if fresh else ["ITERATION_START"]
        expected += ["EPOCH_START", "EPOCH_CHECKPOINT"]
        fresh = epoch not in ends_after
        expected += [] if fresh else ["ITERATION_END", "ITERATION_CHECKPOINT"]
    assert [e.name for e in recorder.events if e.name in seen] == expected
    assert trainer.state.timestamp.iteration == Time(len(ends_after), "iter")


def test_iteration_length_in_another_unit_raises() -> None:
    trainer = trainer_of()
    with pytest.raises(NotImplementedError, match="_iteration_length='2ba' must be in epochs or tokens"):
        trainer.state._iteration_length = Time(2, "ba")
