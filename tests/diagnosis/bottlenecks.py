"""Training programs, each with one planted bottleneck, and the verdict that is right.

Without what is planted, nothing is wrong with a program.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from composer import Algorithm, Callback, Trainer
from composer.callbacks import OptimizerMonitor
from composer.core import Event
from composer.core.logger import LoggerDestination
from composer.loggers import JSONLinesLogger
from composer.models import ComposerClassifier
from tests.diagnosis.parts import BATCH, CLASSES, WIDTH, convolutions, ready, rows, trainer, wide

# The cause, and a text that the place must have.
EXPECTED: dict[str, tuple[str, str]] = {}
RANKS: dict[str, int] = {}
# Where each program is.
PATHS: dict[str, str] = {}


def planted(cause: str, where: str = "", ranks: int = 1) -> Callable[[Callable[[], Trainer]], Callable[[], Trainer]]:
    """Note the right verdict of a program."""

    def note(function: Callable[[], Trainer]) -> Callable[[], Trainer]:
        EXPECTED[function.__name__], RANKS[function.__name__] = (cause, where), ranks
        PATHS[function.__name__] = f"{function.__module__}:{function.__name__}"
        return function

    return note


class _Items(Dataset[tuple[Tensor, int]]):
    """A data set of 1024 samples; a subclass makes them."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.make(index), index % CLASSES

    def make(self, index: int) -> Tensor:
        raise NotImplementedError


class Sleeping(_Items):
    def make(self, index: int) -> Tensor:
        time.sleep(0.0005)
        return torch.randn(WIDTH)


@planted("data", "Sleeping")
def sleeping_dataset() -> Trainer:
    return trainer(data=DataLoader(Sleeping(), BATCH))


class Photographs(_Items):
    def __init__(self) -> None:
        image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 400, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG")
        self.data = buffer.getvalue()

    def make(self, index: int) -> Tensor:
        image = Image.open(io.BytesIO(self.data)).convert("RGB").resize((32, 32))
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


@planted("data", "Photographs")
def decoding_images() -> Trainer:
    return trainer(convolutions(), DataLoader(Photographs(), 32))


@planted("data", "Photographs")
def decoding_images_in_one_worker() -> Trainer:
    return trainer(convolutions(4), DataLoader(Photographs(), 32, num_workers=1, persistent_workers=True))


class Texts(_Items):
    text = "the quick brown fox jumps over the lazy dog " * 20

    def make(self, index: int) -> Tensor:
        words = re.findall(r"\w+", self.text.lower())
        numbers = [sum(map(ord, word)) % 997 for word in words]
        counts = torch.zeros(WIDTH)
        for number in numbers:
            counts[number % WIDTH] += 1
        return counts


@planted("data", "Texts")
def tokenizing() -> Trainer:
    return trainer(data=DataLoader(Texts(), BATCH))


class Compressed(_Items):
    def __init__(self) -> None:
        self.data = gzip.compress(np.random.default_rng(0).normal(size=(40, WIDTH)).astype(np.float32).tobytes())

    def make(self, index: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(gzip.decompress(self.data), np.float32)[:WIDTH].copy())


@planted("data", "Compressed")
def decompressing() -> Trainer:
    return trainer(data=DataLoader(Compressed(), BATCH))


def slow_collate(samples: list[Any]) -> Any:
    inputs = torch.zeros(len(samples), WIDTH)
    for row, (values, _) in enumerate(samples):
        for column in range(WIDTH):
            inputs[row, column] = values[column].item()
    return inputs, torch.tensor([label for _, label in samples])


@planted("data", "slow_collate")
def collating_in_python() -> Trainer:
    return trainer(data=DataLoader(rows(1024), 64, collate_fn=slow_collate))


class Lines(IterableDataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        self.line = json.dumps({"values": [0.123456789] * WIDTH, "other": ["text"] * 200})

    def __iter__(self) -> Any:
        for index in range(4096):
            yield torch.tensor(json.loads(self.line)["values"]), index % CLASSES


@planted("data", "Lines")
def parsing_json() -> Trainer:
    return trainer(data=DataLoader(Lines(), BATCH))


@planted("data")
def workers_that_start_every_epoch() -> Trainer:
    return trainer(data=DataLoader(rows(256), BATCH, num_workers=2), max_duration="50ep")


class ReadsLoss(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        self.last = state.loss.item()


@planted("none")  # on a CPU there is nothing to wait for
def item_every_step() -> Trainer:
    return trainer(callbacks=[ReadsLoss()])


class Sleeps(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        time.sleep(0.02)


@planted("callback", "Sleeps")
def slow_callback() -> Trainer:
    return trainer(callbacks=[Sleeps()])


class Collects(Callback):
    def after_train_batch(self, state: Any, logger: Any) -> None:
        gc.collect()


@planted("callback", "Collects")
def collecting_garbage() -> Trainer:
    return trainer(callbacks=[Collects()])


class Histograms(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        for name, parameter in state.model.named_parameters():
            values = parameter.detach().float().cpu().numpy().ravel()
            self.last = name, np.histogram(values, bins=100), np.percentile(values, [5, 50, 95])


@planted("callback", "Histograms")
def histograms_of_weights() -> Trainer:
    return trainer(callbacks=[Histograms()])


@planted("callback", "ClipsInPython")
def clipping_in_python() -> Trainer:
    return trainer(callbacks=[ClipsInPython()])


class ClipsInPython(Callback):
    def after_train_batch(self, state: Any, logger: Any) -> None:
        norm = 0.0
        for parameter in state.model.parameters():
            for row in parameter.grad.view(-1, parameter.shape[-1]):
                norm += row.norm().item() ** 2
        for parameter in state.model.parameters():
            parameter.grad.mul_(min(1.0, 1.0 / (norm**0.5 + 1e-6)))


@planted("callback", "OptimizerMonitor")
def monitor_of_every_step() -> Trainer:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()) for _ in range(20)])
    net.append(nn.Linear(128, CLASSES))
    return trainer(
        net, ready(128, 128), callbacks=[OptimizerMonitor(batch_log_interval=1)], loggers=[JSONLinesLogger()]
    )


class WritesToDisk(LoggerDestination):
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            with open("metrics.log", "a") as file:  # noqa: PTH123
                file.write(f"{step} {name} {value}\n")
                file.flush()
                os.fsync(file.fileno())


@planted("logging", "WritesToDisk")
def synchronous_logger() -> Trainer:
    return trainer(wide(hidden=256), loggers=[WritesToDisk()])


class LogsEverything(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        logger.log_metrics({f"values/{index}": index * 0.5 for index in range(8000)})


@planted("logging")
def huge_logging() -> Trainer:
    return trainer(callbacks=[LogsEverything()], loggers=[JSONLinesLogger(flush_interval=1)])


class LoopMixUp(Algorithm):
    def match(self, event: Event, state: Any) -> bool:
        return event is Event.AFTER_DATALOADER

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        inputs, targets = state.batch
        mixed = torch.empty_like(inputs)
        for index in range(len(inputs)):
            other = (index * 7) % len(inputs)
            for part in range(0, inputs.shape[1], 32):
                mixed[index, part : part + 32] = (inputs[index, part : part + 32] + inputs[other, part : part + 32]) / 2
        state.batch = mixed, targets


@planted("method", "LoopMixUp")
def method_in_python() -> Trainer:
    return trainer(algorithms=[LoopMixUp()])


@planted("host")
def tiny_batches() -> Trainer:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(12)], nn.Linear(16, CLASSES))
    return trainer(net, ready(4, 16, number=2000))


@planted("host", "microbatches")
def many_microbatches() -> Trainer:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)], nn.Linear(64, CLASSES))
    return trainer(net, ready(64, 64, number=500), device_train_microbatch_size=1)


class Recurrent(nn.Module):
    """A recurrent network as a loop over its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(16, 32), nn.Linear(32, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        state = inputs.new_zeros(len(inputs), 32)
        for step in range(inputs.shape[1]):
            state = self.cell(inputs[:, step], state)
        return self.head(state)


@planted("host", "Recurrent.forward")
def loop_in_the_forward_pass() -> Trainer:
    return trainer(Recurrent(), ready(16, 64, 16))


class LoopLoss(ComposerClassifier):
    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        inputs, targets = batch
        losses = [F.cross_entropy(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(inputs))]
        return torch.stack(losses).mean()


@planted("host", "LoopLoss.loss")
def loop_in_the_loss() -> Trainer:
    return trainer(model=LoopLoss(wide(hidden=128), num_classes=CLASSES))


def check(module: nn.Module, inputs: Any, output: Tensor) -> None:
    values = output.detach().numpy().ravel().tolist()
    assert all(value == value for value in values)


@planted("host", "check")
def hooks_that_check_values() -> Trainer:
    net = wide()
    for module in net:
        module.register_forward_hook(check)
    return trainer(net)


@planted("host", "detect_anomaly")
def anomaly_detection() -> Trainer:
    torch.autograd.set_detect_anomaly(True)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(10)], nn.Linear(128, CLASSES))
    return trainer(net, ready(BATCH, 128))


class LoopAdam(Optimizer):
    """Adam, one row of a parameter at a time."""

    def __init__(self, parameters: Any, lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                for row in range(len(parameter)):
                    gradient, mean, square = parameter.grad[row], state["mean"][row], state["square"][row]
                    mean.mul_(0.9).add_(gradient, alpha=0.1)
                    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                    parameter[row] -= group["lr"] * mean / (square.sqrt() + 1e-8)
        return loss


@planted("optimizer", "LoopAdam")
def optimizer_in_python() -> Trainer:
    net = wide()
    return trainer(net, optimizers=LoopAdam(net.parameters()))


@planted("optimizer", "AdamW")
def optimizer_that_is_not_fused() -> Trainer:
    net = wide()
    return trainer(net, optimizers=torch.optim.AdamW(net.parameters(), 1e-4, foreach=False))


@planted("evaluation")
def evaluating_every_batch() -> Trainer:
    return trainer(eval_dataloader=ready(number=8), eval_interval="1ba")


@planted("saving")
def saving_every_batch() -> Trainer:
    return trainer(save_folder="checkpoints", save_interval="1ba")


@planted("compute", "float64")
def needless_float64() -> Trainer:
    return trainer(wide().double(), ready(dtype=torch.float64))


def slow_transform(batch: Any) -> Any:
    inputs, targets = batch
    return torch.stack([row[torch.randperm(WIDTH)].sort().values.cumsum(0) for row in inputs]), targets


def _transformed(samples: list[Any]) -> Any:
    return slow_transform(default_collate(samples))


@planted("data", "slow_transform")
def transforming_in_the_collate_function() -> Trainer:
    return trainer(wide(hidden=256), DataLoader(rows(2048), BATCH, collate_fn=_transformed))
