"""Which outputs, loss and graph are alive at each event of a run."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from composer import Algorithm, Callback, ComposerModel, Evaluator, Event
from composer.callbacks import FreeOutputs, NaNMonitor, SpeedMonitor
from composer.loggers import InMemoryLogger
from tests.common import At, Regression, regression_data, trainer_of, weights


@pytest.fixture(autouse=True)
def no_collection():
    """Reference counts alone have to free what goes: no cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class _Marked(torch.autograd.Function):
    """The identity, whose node in the graph is noted."""

    @staticmethod
    def forward(ctx, x, live):
        live.add("graph", ctx)
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0], None


class Live:
    """Which outputs, losses and graphs are alive, and the counts at each moment that was looked at."""

    def __init__(self) -> None:
        self._refs: dict[str, list[Any]] = {"graph": [], "outputs": [], "loss": []}
        self.seen: list[tuple[str, int, int, int]] = []

    def add(self, kind: str, thing: Any) -> None:
        self._refs[kind].append(weakref.ref(thing))

    def count(self, kind: str) -> int:
        return sum(ref() is not None for ref in self._refs[kind])

    def look(self, moment: str) -> None:
        self.seen.append((moment, *(self.count(kind) for kind in self._refs)))

    def at(self, moment: str) -> set[tuple[int, int, int]]:
        """The different counts of (graphs, outputs, losses) that were seen at a moment."""
        found = {tuple(counts) for name, *counts in self.seen if name == moment}
        assert found, f"{moment} never came"
        return found  # type: ignore[return-value]


class Watched(ComposerModel):
    """Notes what it makes; some of its outputs do not reach the loss, so that no backward pass frees their graph."""

    def __init__(self, live: Live, kind: str = "tensor") -> None:
        super().__init__()
        self.linear, self.live, self.kind = nn.Linear(4, 1), live, kind
        self.now = "train"

    def forward(self, batch):
        self.live.look(f"{self.now} forward" if not self.training else "forward")
        outputs = _Marked.apply(self.linear(batch[0]), self.live)
        self.live.add("outputs", outputs)
        if self.kind == "tensor":
            return outputs
        unused = _Marked.apply(self.linear(batch[0]).exp(), self.live)
        self.live.add("outputs", unused)
        return {"out": outputs, "parts": [unused, (unused * 2,)]}

    def loss(self, outputs, batch):
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs["out"]
        loss = (outputs - batch[1]).square()
        loss = {"tensor": lambda: loss.mean(), "unreduced": lambda: loss, "nested": lambda: {"a": loss.mean()}}[
            self.kind
        ]()
        self.live.add("loss", loss if isinstance(loss, torch.Tensor) else loss["a"])
        return loss

    def get_metrics(self, is_train: bool = False):
        from torchmetrics import MeanSquaredError

        return {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch, outputs, metric):
        metric.update(outputs if isinstance(outputs, torch.Tensor) else outputs["out"], batch[1])


def watched_run(kind: str, **arguments: Any) -> Live:
    """Train with evaluations, evaluate and predict; return what was alive when the loop itself went on."""
    live = Live()
    model = Watched(live, kind)
    optimizer = arguments.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: live.look("step"))
    arguments = {"callbacks": [SpeedMonitor(), NaNMonitor()], "loggers": InMemoryLogger(), **arguments}
    trainer = trainer_of(
        model,
        regression_data(3, batch_size=4),
        optimizers=optimizer,
        eval_dataloader=Evaluator(label="eval", dataloader=regression_data(2, batch_size=4)),
        eval_interval="1ba",
        max_duration="2ep",
        **arguments,
    )
    model.now = "eval"
    trainer.fit()
    live.look("after fit")
    trainer.eval()
    live.look("after eval")
    model.now = "predict"
    trainer.predict(regression_data(2), return_outputs=False)
    live.look("after predict")
    assert trainer.state.outputs is None
    assert trainer.state.metric_outputs == {}
    return live


KINDS = ["tensor", "unreduced", "nested"]
WAYS = {
    "plain": {},
    "microbatches": {"device_train_microbatch_size": 2},
    "auto": {"device_train_microbatch_size": "auto"},
    "free outputs": {"callbacks": [FreeOutputs()]},
    "autocast": {"precision": "amp_bf16"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_activations_live_only_between_forward_and_backward(kind: str, way: str) -> None:
    live = watched_run(kind, **WAYS[way])
    for moment in ("forward", "eval forward", "predict forward", "step", "after fit", "after eval", "after predict"):
        assert live.at(moment) == {(0, 0, 0)}, (moment, live.seen)


def test_optimizers_with_closures_keep_nothing_between_evaluations() -> None:
    live = watched_run("tensor", optimizer=torch.optim.LBFGS)
    for moment in ("forward", "eval forward", "after fit"):
        assert live.at(moment) == {(0, 0, 0)}, moment


class EachEvent(Callback):
    """Looks at every event, from outside of the package."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def run_event(self, event: Event, state, logger) -> None:
        self.live.look(event.value)
        if event in (Event.AFTER_TRAIN_BATCH, Event.BATCH_END):
            assert isinstance(state.outputs, torch.Tensor)
            assert not state.outputs.requires_grad
            assert not state.loss.requires_grad
            assert float(state.loss) == pytest.approx(float((state.outputs - state.batch[1]).square().mean()), rel=1e-3)


def test_counts_at_every_event() -> None:
    live = Live()
    model = Watched(live)
    arguments: Any = {"max_duration": "2ep", "eval_interval": "1ba", "callbacks": EachEvent(live)}
    with trainer_of(model, regression_data(3), eval_dataloader=regression_data(2), **arguments) as trainer:
        trainer.fit()
        trainer.predict(regression_data(2), return_outputs=False)
    inside = {
        # graphs, outputs, losses; what listens from outside finds detached tensors, which are others
        "after_forward": {(1, 1, 0)},
        "before_loss": {(1, 1, 0)},
        "after_loss": {(1, 1, 1)},
        "before_backward": {(1, 1, 1)},
        "after_backward": {(1, 1, 1)},
        # without gradients there is no graph, but the node that was made for it
        "eval_after_forward": {(0, 1, 0)},
        "eval_batch_end": {(0, 1, 0)},
        "predict_after_forward": {(0, 1, 0)},
        "predict_batch_end": {(0, 1, 0)},
        "eval_end": {(0, 1, 0)},
        "predict_end": {(0, 1, 0)},
        "eval_batch_start": {(0, 0, 0), (0, 1, 0)},  # of the batch before, until the forward pass
        "predict_batch_start": {(0, 0, 0)},
    }
    for moment in sorted({moment for moment, *_ in live.seen}):
        assert live.at(moment) == inside.get(moment, {(0, 0, 0)}), moment


class Reads(Algorithm):
    """Reads the outputs after the step, written the old way."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def match(self, event, state):
        return event == Event.BATCH_END

    def apply(self, event, state, logger):
        self.found.append(state.outputs is not None)


def test_outputs_are_kept_for_possible_readers() -> None:
    reads = Reads()
    trainer_of(algorithms=reads).fit(duration="2ba")
    assert reads.found == [True, True]
    patched = SpeedMonitor()
    patched.after_train_batch = lambda state, logger: reads.found.append(state.outputs is not None)  # type: ignore[method-assign]
    trainer_of(callbacks=patched).fit(duration="1ba")
    assert reads.found == [True, True, True]


def test_listener_added_later_finds_outputs() -> None:
    trainer, found = trainer_of(), []
    trainer.fit(duration="1ba")
    trainer.state.callbacks.append(At("batch_end", lambda state: found.append(state.outputs is not None)))
    trainer.fit(duration="1ba")
    assert found == [True]


def test_gradients_of_outputs_can_be_read_after_backward() -> None:
    retain = At("after_forward", lambda state: state.outputs.retain_grad())
    read = At("after_backward", lambda state: state.outputs.grad.shape)
    trainer_of(callbacks=[retain, read]).fit(duration="1ba")
    assert read.found == [(2, 1)]


def test_evaluation_within_a_step_does_not_change_it() -> None:
    def evaluate(state) -> None:
        before = (state.outputs, state.loss)
        trainer.eval()
        assert (state.outputs, state.loss) == before

    models = [Regression(), Regression()]
    models[1].load_state_dict(models[0].state_dict())
    data: Any = {"eval_dataloader": regression_data(2), "eval_interval": "100ep"}
    trainer = trainer_of(models[0], callbacks=At("before_backward", evaluate), **data)
    trainer.fit(duration="2ba")
    alone = trainer_of(models[1])
    alone.fit(duration="2ba")
    assert torch.equal(weights(trainer), weights(alone))


def test_leftovers_of_a_failed_step_are_freed_by_the_next_call() -> None:
    live = Live()

    def fail(state) -> None:
        raise RuntimeError("in the middle")

    model = Watched(live)
    trainer = trainer_of(model, callbacks=At("before_backward", fail), eval_dataloader=regression_data(2))
    with pytest.raises(RuntimeError, match="in the middle"):
        trainer.fit(duration="1ba")
    assert trainer.state.outputs is not None  # to look at
    model.now = "eval"
    trainer.eval()
    assert live.at("eval forward") == {(0, 0, 0)}
    assert trainer.state.outputs is None
