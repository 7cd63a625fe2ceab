"""One training in bfloat16 autocast as the users of each library write it, in eager mode and compiled.

Everything that differs between libraries by default and that is not their loop is off or set alike: no logger, progress
bar, checkpoint, schedule, clipping or metric; the same optimizer, made by the same call; copies from pinned memory that
the host does not wait for, where a library has to be asked for them.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks import contenders, environment
from benchmarks.gpu.workloads import Workload


@dataclass
class Job:
    """What is trained.

    Attributes:
        workload: Model, loss and optimizer.
        module: The model, on the device.
        loader: The batches, each of them once.
        device: "cuda" or "cpu".
        backend: That of ``torch.compile``; "" for eager mode.
        algorithms: Methods of composer's, where that trains.
        updates: Counts the updates of the optimizer.
    """

    workload: Workload
    module: nn.Module
    loader: DataLoader[Any]
    device: str
    backend: str = ""
    algorithms: Sequence[Any] = ()
    updates: list[int] = field(default_factory=lambda: [0])

    def optimizer(self) -> torch.optim.Optimizer:
        """Make the optimizer, whose updates are counted."""
        optimizer = self.workload.optimizer(self.module)

        def count(*_: Any) -> None:
            self.updates[0] += 1

        optimizer.register_step_post_hook(count)
        return optimizer


def train_raw(job: Job) -> None:
    """The loop by hand that all are compared with."""
    model = torch.compile(job.module, backend=job.backend) if job.backend else job.module
    optimizer = job.optimizer()
    device = torch.device(job.device)
    for batch in job.loader:
        batch = _to(batch, device)
        optimizer.zero_grad()
        with torch.autocast(job.device, torch.bfloat16):
            loss = job.workload.loss(model, batch)
        loss.backward()
        optimizer.step()


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, dict):
        return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
    return [tensor.to(device, non_blocking=True) for tensor in batch]


def train_composer(job: Job) -> None:
    """This library; compiled by its argument ``compile_config``."""
    with composer_trainer(job) as trainer:
        trainer.fit()


def train_composer_regional(job: Job) -> None:
    """This library, which compiles the repeated blocks alone."""
    with composer_trainer(job, compile_config={"backend": job.backend, "regional": True}) as trainer:
        trainer.fit()


def train_composer_float8(job: Job) -> None:
    """This library, with the linear layers in float8."""
    emulated = {"precision_config": {"emulate": True}} if job.device == "cpu" else {}
    with composer_trainer(job, precision="amp_fp8", **emulated) as trainer:
        trainer.fit()


def composer_trainer(job: Job, **arguments: Any) -> Any:
    """Return a trainer of composer's that was not yet started.

    Args:
        job: What it trains.
        **arguments: For the trainer, beside the usual ones or in place of them.
    """
    from composer import Trainer

    usual: dict[str, Any] = {
        "model": composer_model(job.module, job.workload.logits, job.workload.loss_of),
        "train_dataloader": job.loader,
        "max_duration": "1ep",
        "optimizers": job.optimizer(),
        "algorithms": list(job.algorithms),
        "progress_bar": False,
        "device": "gpu" if job.device == "cuda" else job.device,
        "precision": "amp_bf16",
        "compile_config": {"backend": job.backend} if job.backend else None,
        "seed": 1,
    }
    return Trainer(**{**usual, **arguments})


def composer_model(
    module: nn.Module, logits: Callable[[nn.Module, Any], Tensor], loss_of: Callable[..., Tensor]
) -> Any:
    """Return the model of composer's that a user would write around a module.

    Args:
        module: The module.
        logits: Its logits on a batch.
        loss_of: The loss of logits and batch, and the reduction where a method asks for another than "mean".
    """
    from composer import ComposerModel

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, batch: Any) -> Tensor:
            return logits(self.module, batch)

        def loss(self, outputs: Tensor, batch: Any, **reduction: str) -> Tensor:
            return loss_of(outputs, batch, **reduction)

    return Model()


def train_lightning(job: Job) -> None:
    """Lightning in its barebones mode."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.compile(job.module, backend=job.backend) if job.backend else job.module

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return job.workload.loss(self.module, batch)

        def configure_optimizers(self) -> Any:
            return job.optimizer()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.Trainer(
        max_epochs=1,
        accelerator="gpu" if job.device == "cuda" else job.device,
        devices=1,
        precision="bf16-mixed",
        barebones=True,
    ).fit(Module(), job.loader)


def train_accelerate(job: Job) -> None:
    """Accelerate, which leaves the loop to its user; compiled by its argument ``dynamo_backend``."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=job.device == "cpu",
        mixed_precision="bf16",
        dynamo_backend=job.backend or None,
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )
    model, optimizer, loader = accelerator.prepare(job.module, job.optimizer(), job.loader)
    for batch in loader:
        optimizer.zero_grad()
        loss = job.workload.loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()


def train_transformers(job: Job) -> None:
    """The Trainer of transformers, of a model that returns its loss; compiled by its argument ``torch_compile``."""
    import transformers

    class Model(nn.Module):
        accepts_loss_kwargs = False  # the loss is a mean

        def __init__(self) -> None:
            super().__init__()
            self.module = job.module

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": self.module(input_ids, labels)}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(job.loader)

    arguments = transformers.TrainingArguments(
        output_dir="transformers",
        max_steps=len(job.loader),
        per_device_train_batch_size=job.workload.batch_size,
        bf16=True,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        logging_strategy="no",
        logging_nan_inf_filter=False,  # it waits for the device in every step
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        accelerator_config={"non_blocking": True},
        torch_compile=bool(job.backend),
        torch_compile_backend=job.backend or None,
        use_cpu=job.device == "cpu",
    )
    Trainer(model=Model(), args=arguments, train_dataset=job.loader.dataset, optimizers=(job.optimizer(), None)).train()


@dataclass(frozen=True)
class Contender(contenders.Contender):
    """A loop in a comparison, which runs a :class:`Job`; ``only`` is the only workload that it takes.

    Attributes:
        compiled: Whether the model is compiled.
    """

    compiled: bool = False

    def load(self) -> None:
        """Import it, so that no measurement includes that."""
        super().load()
        if self.module == "transformers":
            _ = importlib.import_module("transformers").Trainer  # is imported when it is asked for


def _both(name: str, title: str, train: Callable[[Job], None], module: str, only: str = "") -> dict[str, Contender]:
    return {
        f"{name} {mode}": Contender(f"{title}, {mode}", train, module, only, mode == "compiled")
        for mode in ("eager", "compiled")
    }


CONTENDERS: dict[str, Contender] = {
    **_both("raw", "hand-written loop", train_raw, "torch"),
    **_both("composer", "composer", train_composer, "composer"),
    "composer regional": Contender(
        "composer, compiled by block", train_composer_regional, "composer", only="gpt2", compiled=True
    ),
    "composer float8": Contender(
        "composer, compiled, amp_fp8", train_composer_float8, "torchao", only="gpt2", compiled=True
    ),
    **_both("lightning", "Lightning", train_lightning, "lightning"),
    **_both("accelerate", "Accelerate", train_accelerate, "accelerate"),
    **_both("transformers", "Trainer of transformers", train_transformers, "transformers", only="gpt2"),
}
"""In the order of importance: where time is short, the last ones are left out."""


def present(workload: str) -> tuple[list[str], list[str]]:
    """Return the names of the contenders that take a workload and are installed, and the packages that are missing.

    Args:
        workload: "gpt2" or "resnet50".
    """
    takes = {name: contender for name, contender in CONTENDERS.items() if contender.only in ("", workload)}
    missing = {contender.module for contender in takes.values() if not _is_here(contender.module)}
    return [name for name, contender in takes.items() if contender.module not in missing], sorted(missing)


def _is_here(module: str) -> bool:
    # The Trainer of transformers stands on Accelerate.
    return environment.has(module) and (module != "transformers" or environment.has("accelerate"))
