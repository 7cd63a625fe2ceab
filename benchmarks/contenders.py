"""The same training run in each library (raw PyTorch, composer, Lightning, Accelerate), as its users write it.

Every contender gets the same model, optimizer and batches. ``full`` adds the features of a typical run: a progress bar,
a schedule with a step per batch, an accuracy metric and three callbacks at the end of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks import environment

NUM_CALLBACKS = 3
SETTINGS = ("bare", "full")


class Batches(Dataset[Any]):
    """Yield prepared batches, and mark the start and end of the timed section.

    Prefetching loops shift both marks equally, so the time between them is that of ``steps`` steps.

    Args:
        batches: Repeated as often as needed.
        steps: Number of steps between the marks.
        warmup: Number of warmup steps.
        mark: Called at both marks.
        tail: Number of steps after.
    """

    def __init__(self, batches: list[Any], steps: int, warmup: int, mark: Callable[[], object], tail: int = 10) -> None:
        self.batches = batches
        self.marks = (warmup, warmup + steps)
        self.mark = mark
        self.length = warmup + steps + tail

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index in self.marks:
            self.mark()
        return self.batches[index % len(self.batches)]


def make_loader(*args: Any, **kwargs: Any) -> DataLoader[Any]:
    """Return a torch ``DataLoader`` of :class:`Batches`.

    Args:
        *args: For :class:`Batches`.
        **kwargs: For :class:`Batches`.
    """
    return DataLoader(Batches(*args, **kwargs), batch_size=None)


@dataclass
class Task:
    """What to train.

    Attributes:
        loader: The batches, (inputs, class indices), on the device.
        module: Maps inputs to logits.
        full: Whether with progress bar, schedule, metric and callbacks.
        num_classes: Number of classes.
        device: "cpu" or "cuda".
        seen: Counts the calls of the callbacks.
    """

    loader: Any
    module: nn.Module
    full: bool = False
    num_classes: int = 10
    device: str = "cpu"
    seen: list[int] = field(default_factory=lambda: [0])

    @property
    def batch_size(self) -> int:
        return len(self.loader.dataset.batches[0][0])

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.01)

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Linear decay, as large models are trained with."""
        total = len(self.loader)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

    def metric(self) -> Any:
        from torchmetrics.classification import MulticlassAccuracy

        return MulticlassAccuracy(num_classes=self.num_classes, average="micro").to(self.device)

    def count(self) -> None:
        self.seen[0] += 1


def train_raw(task: Task) -> None:
    """The hand-written loop to which overhead is relative; the same in both settings.

    Gradients are released before the forward pass, for minimal memory.
    """
    model = task.module.to(task.device)
    optimizer = task.optimizer(model)
    for inputs, target in task.loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()


def train_by_hand(task: Task) -> None:
    """The hand-written loop with the features of ``full``: their cost without any library."""
    from tqdm import tqdm

    model = task.module.to(task.device)
    optimizer = task.optimizer(model)
    scheduler = task.schedule(optimizer)
    accuracy = task.metric()
    callbacks = [task.count] * NUM_CALLBACKS
    for inputs, target in tqdm(task.loader):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        accuracy.update(outputs.detach(), target)
        for callback in callbacks:
            callback()


def train_composer(task: Task, default_metric: bool = False) -> None:
    """This library or MosaicML Composer, with identical code: whichever ``composer`` is installed.

    Args:
        task: What to train.
        default_metric: Whether to leave the metric to the library.
    """
    from composer import Callback, Trainer
    from composer.models import ComposerClassifier

    class Model(ComposerClassifier):
        def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
            if not is_train or not task.full:
                return {}
            return super().get_metrics(is_train) if default_metric else {"MulticlassAccuracy": task.metric()}

    class Count(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            task.count()

    model = Model(task.module, num_classes=task.num_classes, loss_fn=F.cross_entropy)
    optimizer = task.optimizer(model)
    trainer = Trainer(
        model=model,
        train_dataloader=task.loader,
        max_duration="1ep",
        optimizers=optimizer,
        device_train_microbatch_size=task.batch_size,  # MosaicML Composer requires it if the loader has no batch size
        schedulers=task.schedule(optimizer) if task.full else None,
        step_schedulers_every_batch=True if task.full else None,
        callbacks=[Count() for _ in range(NUM_CALLBACKS)] if task.full else [],
        progress_bar=task.full,
        device="gpu" if task.device == "cuda" else task.device,
        precision="fp32",
        seed=1,
    )
    trainer.fit()
    trainer.close()


def train_composer_by_default(task: Task) -> None:
    """This library with the metric that its classifier has when none is given, rather than torchmetrics'."""
    train_composer(task, default_metric=True)


def train_accelerate(task: Task) -> None:
    """Accelerate, with a hand-written loop."""
    from accelerate import Accelerator
    from accelerate.utils import tqdm

    accelerator = Accelerator(cpu=task.device == "cpu")
    optimizer = task.optimizer(task.module)
    model, optimizer, loader = accelerator.prepare(task.module, optimizer, task.loader)
    scheduler = accelerator.prepare(task.schedule(optimizer.optimizer)) if task.full else None
    accuracy = task.metric() if task.full else None
    callbacks = [task.count] * NUM_CALLBACKS if task.full else []
    for inputs, target in tqdm(loader) if task.full else loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, target)
        accelerator.backward(loss)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if accuracy is not None:
            accuracy.update(outputs.detach(), target)
        for callback in callbacks:
            callback()
    accelerator.free_memory()


def train_lightning(task: Task) -> None:
    """Lightning; bare is its own barebones mode."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.module = task.module
            self.accuracy = task.metric() if task.full else None

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            inputs, target = batch
            outputs = self.module(inputs)
            loss = F.cross_entropy(outputs, target)
            if self.accuracy is not None:
                self.accuracy.update(outputs.detach(), target)
                self.log("loss", loss, prog_bar=True)
                self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = task.optimizer(self.module)
            if not task.full:
                return optimizer
            schedule = {"scheduler": task.schedule(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    class Count(lightning.Callback):
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            task.count()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    off = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    full = {"callbacks": [Count() for _ in range(NUM_CALLBACKS)], **off}
    accelerator = "gpu" if task.device == "cuda" else task.device
    settings = full if task.full else {"barebones": True}
    lightning.Trainer(max_epochs=1, accelerator=accelerator, devices=1, **settings).fit(Module(), task.loader)


@dataclass(frozen=True)
class Contender:
    """A library in a comparison.

    Attributes:
        title: How the tables name it.
        train: Runs a task.
        module: What it imports.
        only: The only setting in which it takes part; "" for all.
    """

    title: str
    train: Callable[[Task], None]
    module: str
    only: str = ""

    def is_here(self) -> bool:
        """Tell whether it is installed."""
        if self.module == "predecessor":
            return environment.PREDECESSOR.is_dir()
        return environment.has(self.module)

    def load(self) -> None:
        """Import it, so that no measurement includes that."""
        name = "composer" if self.module == "predecessor" else self.module
        module = __import__(name)
        old = getattr(module, "__file__", "").startswith(str(environment.PREDECESSOR))
        if old != (self.module == "predecessor"):
            raise RuntimeError(f"{self.title} was to be measured, but {name} comes from {module.__file__}.")


CONTENDERS = {
    "raw": Contender("hand-written loop", train_raw, "torch"),
    "hand": Contender("the same by hand", train_by_hand, "tqdm", only="full"),
    "composer": Contender("composer", train_composer, "composer"),
    "default": Contender("composer, its own accuracy", train_composer_by_default, "composer", only="full"),
    "accelerate": Contender("Accelerate", train_accelerate, "accelerate"),
    "lightning": Contender("Lightning", train_lightning, "lightning"),
    "predecessor": Contender("predecessor (mosaicml)", train_composer, "predecessor"),
}


def present(names: tuple[str, ...] | list[str] | None = None) -> list[str]:
    """Return those of the contenders, by default of all, that are installed."""
    return [name for name in names or CONTENDERS if CONTENDERS[name].is_here()]


def ask(name: str, target: str, **arguments: Any) -> Any:
    """Call a function, whose first argument is a contender's name, in a process for that contender."""
    is_old = CONTENDERS[name].module == "predecessor"
    return environment.call(target, {"name": name, **arguments}, predecessor=is_old)
