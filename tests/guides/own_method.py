"""A method of one's own: an event, a state, an edit."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import Trainer
from composer.core import Algorithm, Event, State
from composer.loggers import Logger
from composer.models import mnist_model


def colout_batch(images: torch.Tensor, p_row: float, p_col: float) -> torch.Tensor:
    """Drop some rows and columns of the images."""
    row_size, col_size = images.shape[2], images.shape[3]
    kept_row_idx = sorted(torch.randperm(row_size)[: int((1 - p_row) * row_size)].tolist())
    kept_col_idx = sorted(torch.randperm(col_size)[: int((1 - p_col) * col_size)].tolist())
    return images[:, :, kept_row_idx, :][:, :, :, kept_col_idx]


class ColOut(Algorithm):
    def __init__(self, p_row=0.15, p_col=0.15):
        self.p_row = p_row
        self.p_col = p_col

    def match(self, event, state):
        """When to run: once a batch is loaded."""
        return event == Event.AFTER_DATALOADER

    def apply(self, event, state, logger):
        inputs, labels = state.batch
        new_inputs = colout_batch(inputs, p_row=self.p_row, p_col=self.p_col)
        state.batch = (new_inputs, labels)
        logger.log_metrics({"colout/rows": new_inputs.shape[2]})


class LayerwiseDecay(Algorithm):
    """Another: with state, annotations, and a method at two events."""

    def __init__(self, factor: float):
        self.factor = factor
        self.times = 0

    def match(self, event: Event, state: State) -> bool:
        return event in [Event.INIT, Event.BATCH_END]

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        if event == Event.INIT:
            assert state.model is not None
            return None
        self.times += 1
        with torch.no_grad():
            state.model.module.fc2.weight.mul_(self.factor)
        return self.times


transform = transforms.ToTensor()
train_dataloader = DataLoader(datasets.MNIST("data", train=True, transform=transform), batch_size=128, shuffle=True)
eval_dataloader = DataLoader(datasets.MNIST("data", train=False, transform=transform), batch_size=128)

decay = LayerwiseDecay(0.999)
trainer = Trainer(
    model=mnist_model(),
    train_dataloader=train_dataloader,
    eval_dataloader=eval_dataloader,
    max_duration="1ep",
    algorithms=[ColOut(), decay],
    seed=17,
)
trainer.fit()
assert decay.times == int(trainer.state.timestamp.batch) == 4
