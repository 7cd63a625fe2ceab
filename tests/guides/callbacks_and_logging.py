"""Watching a run: callbacks, ours and one's own, and loggers."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import Callback, State, Trainer
from composer.callbacks import CheckpointSaver, EarlyStopper, LRMonitor, MemoryMonitor, SpeedMonitor
from composer.core import Event
from composer.loggers import FileLogger, InMemoryLogger, Logger, LoggerDestination
from composer.models import mnist_model


class EpochMonitor(Callback):
    def epoch_end(self, state: State, logger: Logger):
        logger.log_metrics({"epoch": int(state.timestamp.epoch)})


class EventCounter(Callback):
    def __init__(self):
        self.counts = {}

    def run_event(self, event: Event, state: State, logger: Logger):
        self.counts[event] = self.counts.get(event, 0) + 1


class DictionaryLogger(LoggerDestination):
    def __init__(self):
        self.data = {}

    def log_metrics(self, metrics, step=None):
        for name, metric in metrics.items():
            self.data.setdefault(name, []).append((metric, step))


transform = transforms.ToTensor()
train_dataloader = DataLoader(datasets.MNIST("data", train=True, transform=transform), batch_size=128, shuffle=True)
eval_dataloader = DataLoader(datasets.MNIST("data", train=False, transform=transform), batch_size=128)

model = mnist_model()
in_memory, own = InMemoryLogger(), DictionaryLogger()
counter = EventCounter()
trainer = Trainer(
    model=model,
    train_dataloader=train_dataloader,
    eval_dataloader=eval_dataloader,
    optimizers=torch.optim.Adam(model.parameters(), lr=1e-3),
    max_duration="3ep",
    run_name="watched",
    callbacks=[
        EpochMonitor(),
        counter,
        LRMonitor(),
        SpeedMonitor(window_size=2),
        MemoryMonitor(),
        EarlyStopper(monitor="MulticlassAccuracy", dataloader_label="eval", patience="2ep"),
        CheckpointSaver(folder="{run_name}/checkpoints", save_interval="1ep", num_checkpoints_to_keep=1),
    ],
    loggers=[in_memory, own, FileLogger(filename="{run_name}/logs-rank{rank}.txt", buffer_size=1)],
    progress_bar=False,
    log_to_console=True,
    console_log_interval="1ep",
)
trainer.fit()
trainer.close()

assert [int(value) for value, _ in own.data["epoch"]] == [1, 2, 3]
assert counter.counts[Event.BATCH_END] == 12
assert "lr-Adam/group0" in in_memory.data
assert len(list(Path("watched/checkpoints").glob("ep*.pt"))) == 1
assert "MulticlassAccuracy" in Path("watched/logs-rank0.txt").read_text()
