"""Small models, data and recording callbacks, for tests that run training loops."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from composer import Callback, ComposerModel, Trainer, trees
from composer.core import Event, LoggerDestination, State
from composer.models import ComposerClassifier

FEATURES = 4
CLASSES = 3


class Regression(ComposerModel):
    """A linear model of batches ``(x, y)`` with the mean squared error."""

    def __init__(self, metrics: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1, dtype=dtype)
        self.metrics_wanted = metrics

    def forward(self, batch):
        return self.linear(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])

    def get_metrics(self, is_train):
        if not self.metrics_wanted:
            return {}
        from torchmetrics import MeanSquaredError  # takes seconds, in each process that imports this module

        return {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch, outputs, metric):
        metric.update(outputs, batch[1])


class TwoLayers(ComposerModel):
    """A network with matrices and vectors; Muon is for the former only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, batch):
        return self.second(torch.tanh(self.first(batch[0])))

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])

    def optimizers(self) -> list[torch.optim.Optimizer]:
        matrices = [p for p in self.parameters() if p.ndim == 2]
        vectors = [p for p in self.parameters() if p.ndim != 2]
        return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(vectors, lr=0.01)]


def regression_data(num_batches: int = 4, batch_size: int = 2, seed: int = 1, dtype=torch.float32) -> list[Any]:
    """Batches (x, y) of a noisy linear function."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(num_batches):
        x = torch.randn(batch_size, FEATURES, generator=generator, dtype=torch.float64)
        noise = torch.randn(batch_size, 1, generator=generator, dtype=torch.float64)
        batches.append((x.to(dtype), (x.sum(1, keepdim=True) + 0.1 * noise).to(dtype)))
    return batches


def classifier() -> ComposerClassifier:
    """A linear classifier, with the accuracy as metric."""
    return ComposerClassifier(nn.Linear(FEATURES, CLASSES), num_classes=CLASSES)


def labeled_data(num_batches: int = 4, batch_size: int = 2, seed: int = 1) -> list[Any]:
    """Batches (x, class)."""
    generator = torch.Generator().manual_seed(seed)
    size = (num_batches, batch_size)
    x = torch.randn(*size, FEATURES, generator=generator)
    y = torch.randint(CLASSES, size, generator=generator)
    return list(zip(x, y, strict=True))


class Unsized:
    """Data without a length."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches


class Onward:
    """Each epoch has the next three batches of a stream, which are their numbers."""

    def __init__(self) -> None:
        self.place = 0

    def batch(self, number: int) -> Any:
        return torch.tensor(number)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.place += 1
            yield self.batch(self.place)
            if self.place % 3 == 0:
                return

    def state_dict(self) -> Any:
        return {"place": self.place}

    def load_state_dict(self, state: Any) -> None:
        self.place = state["place"]


def trainer_of(model: ComposerModel | None = None, data: Any = None, lr: float = 0.1, **arguments: Any) -> Trainer:
    """A trainer without a display, with SGD, of a linear model and four batches unless other ones are given."""
    model = Regression() if model is None else model
    arguments.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=lr))
    arguments.setdefault("max_duration", "1ep")
    data = regression_data() if data is None else data
    return Trainer(model=model, train_dataloader=data, progress_bar=False, **arguments)


def weights(trainer: Trainer) -> torch.Tensor:
    """All parameters as one vector."""
    return weights_of(trainer.state.model)


def weights_of(model: nn.Module) -> torch.Tensor:
    """All parameters of a model as one vector, copied."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def without_ledger(names: Iterable[str]) -> list[str]:
    """The names in a checkpoint folder, sorted, without the ledger, which is in each."""
    return sorted(name for name in names if not name.endswith("ledger.jsonl"))


class Recorder(Callback):
    """Record every event in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def run_event(self, event, state, logger):
        self.events.append(event)


class At(Callback):
    """Call a function ``(state) -> anything`` at an event, and keep its results."""

    def __init__(self, event: str, function: Any) -> None:
        self.event, self.function, self.found = Event(event), function, []

    def run_event(self, event, state: State, logger):
        if event is self.event:
            self.found.append(self.function(state))


class Lives(Callback):
    """Track with weak references the batches, outputs, losses, gradients and model of a run, to find leaks."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, weakref.ref[Any]]] = []

    def fit_start(self, state, logger):
        self.note(model=state.model)

    def after_forward(self, state, logger):
        self.note(batch=state.batch, outputs=state.outputs)

    def after_backward(self, state, logger):
        self.note(loss=state.loss, gradients=[p.grad for p in state.model.parameters()])

    def eval_after_forward(self, state, logger):
        self.note(eval_batch=state.batch, eval_outputs=state.outputs)

    def fit_end(self, state, logger):
        self.note(parameters=list(state.model.parameters()), buffers=list(state.model.buffers()))

    def note(self, **things: Any) -> None:
        """Add what is to be freed: tensors in containers, or objects."""
        for name, thing in things.items():
            for leaf in trees.leaves(thing):
                if isinstance(leaf, (torch.Tensor, nn.Module, Trainer, State)):
                    self._seen.append((name, weakref.ref(leaf)))

    def left(self) -> list[str]:
        """The kinds of what is still there."""
        assert len(self._seen) > 8
        if any(thing() is not None for _, thing in self._seen):
            gc.collect()  # takes long where many modules are loaded
        return sorted({name for name, thing in self._seen if thing() is not None})


class Received(LoggerDestination):
    """Keeps all that is delivered: ``(step, metrics)`` and ``(kind, step)`` of tables and images."""

    def __init__(self, flush_interval: int = 1) -> None:
        self.__flush_interval__ = flush_interval
        self.metrics: list[tuple[int | None, dict[str, Any]]] = []
        self.others: list[tuple[str, int | None]] = []
        self.hyperparameters: dict[str, Any] = {}
        self.suspended = 0
        self.closed = 0

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def log_hyperparameters(self, hyperparameters):
        self.hyperparameters.update(hyperparameters)

    def log_table(self, columns, rows, name="Table", step=None):
        self.others.append(("table", step))

    def log_images(self, images, name="Images", channels_last=False, step=None, *args):
        self.others.append(("images", step))

    def __suspend__(self):
        self.suspended += 1

    def close(self, state, logger):
        self.closed += 1

    def series(self, name: str) -> list[tuple[int | None, Any]]:
        """The steps and values of one metric, tensors as numbers or lists."""
        found = [(step, metrics[name]) for step, metrics in self.metrics if name in metrics]
        return [(step, value.tolist() if isinstance(value, torch.Tensor) else value) for step, value in found]
