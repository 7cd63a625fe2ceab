"""A held-out set: programs by an author who knew the page about ``composer doctor``, but not its code.

``EXPECTED`` and ``HEALTHY`` say what a user of the page expects. The doctor is measured on them (``python -m
tests.diagnosis.measure --set fresh``), and is not tuned to them.
"""

from __future__ import annotations

import copy
import io
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset
from torchmetrics import Metric

from composer import Callback, Trainer
from composer.algorithms import EMA, LabelSmoothing
from composer.callbacks import CheckpointSaver, LRMonitor, SpeedMonitor
from composer.core.logger import LoggerDestination
from composer.loggers import CSVLogger
from composer.models import ComposerClassifier, ComposerModel
from tests.diagnosis.held_out import Mean, Tagger, dense, memory, mixer, residual, train

# The cause, and a text that the place must have.
EXPECTED: dict[str, tuple[str, str]] = {
    "files_on_a_slow_disk": ("data", "Archive"),
    "augmenting_with_numpy": ("data", "Blurred"),
    "byte_pair_encoding": ("data", "Merges"),
    "padding_in_the_collate_function": ("data", "pad"),
    "slow_sampler": ("data", "ByDifficulty"),
    "printing_outputs": ("callback", "Prints"),
    "copying_the_model": ("callback", "KeepsWeights"),
    "blocking_tracker": ("logging", "Tracker"),
    "metric_in_python": ("metrics", "Inversions"),
    "evaluating_every_second_batch": ("evaluation", ""),
    "saving_with_a_callback": ("saving", ""),
    "attention_as_a_loop": ("host", "Heads.forward"),
    "recurrent_in_float64": ("compute", "float64"),
    "clipping_in_the_optimizer": ("optimizer", "Clipped"),
    "images_one_by_one": ("host", "microbatches"),
}
HEALTHY = ["recurrent", "patches", "autoencoder", "images_from_workers", "accumulating", "monitored"]


class Heads(nn.Module):
    """Attention, one head and one row of queries at a time."""

    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.mix, self.head = heads, nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        found = []
        for query, key, value in zip(
            *(part.chunk(self.heads, -1) for part in self.mix(inputs).chunk(3, -1)), strict=True
        ):
            rows = [F.softmax(query[:, i : i + 1] @ key.mT, -1) @ value for i in range(query.shape[1])]
            found.append(torch.cat(rows, 1))
        return self.head(torch.cat(found, -1).mean(1))


class Autoencoder(ComposerModel):
    """A denoising autoencoder that remembers its loss."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, 64), nn.GELU(), nn.Linear(64, width)
        )
        self.last = 0.0

    def forward(self, batch: Any) -> Tensor:
        return self.net(batch[0])

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        value = F.mse_loss(outputs, batch[0])
        self.last = float(value)
        return value


class Archive(Dataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        buffer = io.BytesIO()
        np.save(buffer, np.ones((3, 32, 32), np.float32))
        self.file = buffer.getvalue()

    def __len__(self) -> int:
        return 512

    def read(self, index: int) -> bytes:
        time.sleep(0.003)  # the disk
        return self.file

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(np.load(io.BytesIO(self.read(index)))), index % 5


def files_on_a_slow_disk() -> Trainer:
    return train(residual(16), DataLoader(Archive(), 32, num_workers=1, persistent_workers=True))


class Blurred(Dataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        self.images = np.random.default_rng(1).random((64, 3, 96, 96), dtype=np.float32)

    def __len__(self) -> int:
        return 768

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index % 64]
        spectrum = np.fft.fft2(image)
        spectrum[:, 20:-20] = 0
        image = np.real(np.fft.ifft2(spectrum)).astype(np.float32)
        image = np.rot90(image, index % 4, (1, 2)) + np.random.normal(0, 0.1, image.shape)
        return torch.from_numpy(np.ascontiguousarray(image[:, ::3, ::3], np.float32)), index % 5


def augmenting_with_numpy() -> Trainer:
    return train(residual(8), DataLoader(Blurred(), 48))


class Merges(Dataset[tuple[Tensor, int]]):
    text = "lower newest widest lowest renewed wider slowest " * 6

    def __len__(self) -> int:
        return 640

    def encode(self, text: str) -> list[str]:
        symbols = list(text)
        for _ in range(8):
            pairs = Counter(itertools.pairwise(symbols))
            best = max(pairs, key=pairs.__getitem__)
            merged, position = [], 0
            while position < len(symbols):
                if tuple(symbols[position : position + 2]) == best:
                    merged.append("".join(best))
                    position += 2
                else:
                    merged.append(symbols[position])
                    position += 1
            symbols = merged
        return symbols

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        numbers = [hash(symbol) % 32 for symbol in self.encode(self.text)][:64]
        return F.one_hot(torch.tensor(numbers), 32).float(), index % 5


def byte_pair_encoding() -> Trainer:
    return train(Tagger(48), DataLoader(Merges(), 32))


class _Sentences(Dataset[tuple[list[list[float]], int]]):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[list[list[float]], int]:
        return [[0.5] * 64] * (50 + index % 50), index % 5


def pad(samples: list[tuple[list[list[float]], int]]) -> tuple[Tensor, Tensor]:
    longest = max(len(words) for words, _ in samples)
    rows = []
    for words, _ in samples:
        row = []
        for position in range(longest):
            word = words[position] if position < len(words) else [0.0] * 64
            row.append([min(1.0, value) for value in word])
        rows.append(row)
    return torch.tensor(rows), torch.tensor([label for _, label in samples])


def padding_in_the_collate_function() -> Trainer:
    return train(nn.Sequential(Mean(), dense()), DataLoader(_Sentences(), 32, collate_fn=pad))


class ByDifficulty(Sampler[int]):
    """Asks for the hardest sample that was not seen yet."""

    def __init__(self, number: int) -> None:
        self.scores = torch.rand(number)

    def __len__(self) -> int:
        return 1024

    def __iter__(self) -> Iterator[int]:
        scores = self.scores.clone()
        for _ in range(1024):
            hardest = int(scores.argsort(descending=True)[0])
            scores[hardest] = -1.0
            yield hardest


def slow_sampler() -> Trainer:
    data = TensorDataset(torch.randn(20_000, 64), torch.randint(5, (20_000,)))
    return train(dense(512), DataLoader(data, 64, sampler=ByDifficulty(20_000)))


class Prints(Callback):
    def after_forward(self, state: Any, logger: Any) -> None:
        text = str(state.outputs.detach().cpu().tolist())
        print(text[:20], len(text), file=io.StringIO())


def printing_outputs() -> Trainer:
    return train(Autoencoder(), memory(768), callbacks=[Prints()])


class KeepsWeights(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        self.best = copy.deepcopy(state.model), copy.deepcopy(state.optimizers[0].state_dict())


def copying_the_model() -> Trainer:
    net = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 5))
    return train(net, memory(64, batch=8), callbacks=[KeepsWeights()])


class Tracker(LoggerDestination):
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        time.sleep(0.008 * len(metrics))  # a request


def blocking_tracker() -> Trainer:
    return train(mixer(16), memory(3, 16, 16, batch=32), loggers=[Tracker()], callbacks=[LRMonitor()])


class Inversions(Metric):
    """Counts pairs of samples in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("wrong", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("pairs", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        scores, labels = preds.detach().amax(1).tolist(), target.tolist()
        for i, label in enumerate(labels):
            for j in range(i):
                self.pairs += 1
                self.wrong += int((scores[i] > scores[j]) != (label > labels[j]))

    def compute(self) -> Tensor:
        return self.wrong / self.pairs


def metric_in_python() -> Trainer:
    model = ComposerClassifier(dense(512), num_classes=5, train_metrics=Inversions())
    return train(model, memory(64))


def evaluating_every_second_batch() -> Trainer:
    return train(residual(16), memory(3, 16, 16), eval_dataloader=memory(3, 16, 16), eval_interval="2ba")


def saving_with_a_callback() -> Trainer:
    net = nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 5))
    return train(net, memory(64, batch=16), callbacks=[CheckpointSaver("kept", save_interval="1ba")])


def attention_as_a_loop() -> Trainer:
    return train(Heads(), memory(40, 48, batch=8))


def recurrent_in_float64() -> Trainer:
    return train(Tagger(192).double(), memory(24, 32, dtype=torch.float64))


class Clipped(SGD):
    """Clips each row of each gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure else None
        for group in self.param_groups:
            for parameter in group["params"]:
                for row in parameter.grad.reshape(len(parameter), -1):
                    if row.norm() > 0.01:
                        row.mul_(0.01 / row.norm())
        super().step()
        return loss


def clipping_in_the_optimizer() -> Trainer:
    net = mixer(16)
    return train(net, memory(3, 16, 16, batch=16), optimizers=Clipped(net.parameters(), 0.1))


def images_one_by_one() -> Trainer:
    return train(residual(8), memory(3, 8, 8, batch=48), device_train_microbatch_size=1)


def recurrent() -> Trainer:
    return train(Tagger(192), memory(24, 32))


def patches() -> Trainer:
    return train(mixer(), memory(3, 32, 32, batch=32), algorithms=[LabelSmoothing(0.1), EMA("5ba")])


def autoencoder() -> Trainer:
    return train(Autoencoder(), memory(768, batch=128))


def images_from_workers() -> Trainer:
    return train(residual(48), memory(3, 32, 32, batch=32, num_workers=1, persistent_workers=True))


def accumulating() -> Trainer:
    return train(
        residual(),
        memory(3, 32, 32),
        device_train_microbatch_size=32,
        eval_dataloader=memory(3, 32, 32),
        save_folder="epochs",
        eval_interval="1ep",
    )


def monitored() -> Trainer:
    net = Tagger(192)
    return train(
        net,
        memory(24, 32),
        optimizers=SGD(net.parameters(), 0.1, momentum=0.9),
        loggers=[CSVLogger()],
        callbacks=[SpeedMonitor(), LRMonitor()],
        progress_bar=True,
    )
