"""A training loop that fires events and logs numbers, without a model to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from composer.core import Engine, Logger, LoggerDestination, State
from composer.core.phase import Phase
from composer.core.timestamp import Timestamp


class Loop:
    """Trains no model: the loss of batch k (from 0) is 1 / (k + 1), the accuracy of an evaluation 0.5."""

    def __init__(
        self,
        destinations: Sequence[LoggerDestination],
        max_duration: str = "2ep",
        length: int | None = 4,
        eval_length: int | None = 2,
        eval_every: int | None = None,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self.state = State(torch.nn.Linear(1, 1), max_duration=max_duration, run_name="test", callbacks=destinations)
        self.state.train_phase.length = self.length = length
        self.eval_length, self.eval_every, self.tick = eval_length, eval_every, tick
        self.logger = Logger(self.state, destinations, on_error="raise")
        self.engine = Engine(self.state, self.logger)
        self.fire = self.engine.run_event

    def init(self) -> Loop:
        self.fire("init")
        return self

    def fit(self, batches_in_epoch: int = 4) -> Loop:
        state = self.state
        self.logger.deferred = True
        self.fire("fit_start")
        while not state.finished:
            if state.timestamp.batch_in_epoch.value == 0:
                self.fire("epoch_start")
            while state.timestamp.batch_in_epoch.value < batches_in_epoch and not state.finished:
                self.batch()
            if state.timestamp.batch_in_epoch.value == batches_in_epoch:
                state.timestamp = state.timestamp.to_next_epoch()
                self.logger.flush()
                self.fire("epoch_end")
                if self.eval_every is None and self.eval_length != 0:
                    self.evaluate()
        self.logger.flush()
        self.fire("fit_end")
        self.logger.deferred = False
        return self

    def batch(self) -> None:
        state = self.state
        step = state.timestamp.batch.value
        self.logger.log_metrics({"loss/train/total": torch.tensor(1 / (step + 1)), "time/batch": step})
        self.tick()
        state.timestamp = state.timestamp.to_next_batch(samples=8)
        if self.logger.poll():
            self.logger.deliver()
        self.fire("batch_end")
        if self.eval_every is not None and (step + 1) % self.eval_every == 0:
            self.evaluate()

    def evaluate(self, label: str = "eval") -> Loop:
        state = self.state
        state.phase = phase = state.eval_phase
        phase.label, phase.length = label, self.eval_length
        self._pass(phase, "eval", 2 if self.eval_length is None else self.eval_length)
        self.logger.log_metrics({f"metrics/{label}/Accuracy": torch.tensor(0.5)})
        self.logger.flush()
        self.fire("eval_end")
        state.phase = state.train_phase
        return self

    def predict(self) -> Loop:
        state = self.state
        state.phase = state.predict_phase
        state.predict_phase.length = 3
        self._pass(state.predict_phase, "predict", 3)
        self.fire("predict_end")
        state.phase = state.train_phase
        return self

    def _pass(self, phase: Phase, loop_name: str, batches: int) -> None:
        phase.timestamp = Timestamp()
        self.fire(f"{loop_name}_start")
        for _ in range(batches):
            self.tick()
            phase.timestamp = phase.timestamp.to_next_batch(samples=8)
            self.fire(f"{loop_name}_batch_end")

    def close(self) -> None:
        self.engine.close()
