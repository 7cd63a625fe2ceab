"""SyncFree: a training step reads nothing from the device except what it logs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from composer import Callback, Trainer
from composer.algorithms import EMA
from composer.models import ComposerClassifier
from tests.accelerator import FakeAccelerator
from tests.common import CLASSES, FEATURES, Received, labeled_data

# ---------------------------------------------------------------------------------------------------- the run


class Clip(Callback):
    """Clips gradients as it should be done: the norm stays on the device."""

    def after_train_batch(self, state, logger):
        norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0, foreach=True)
        logger.log_metrics({"grad_norm": norm})


class LogOutputs(Callback):
    def after_loss(self, state, logger):
        logger.log_metrics({"outputs/mean": state.outputs.mean(), "outputs/std": state.outputs.std()})


class LogRate(Callback):
    def batch_start(self, state, logger):
        logger.log_metrics({"lr": state.optimizers[0].param_groups[0]["lr"]})


class SmoothLoss(Callback):
    def __init__(self) -> None:
        self.average: Any = None

    def batch_end(self, state, logger):
        loss = state.total_loss_dict["loss/train/total"]
        self.average = loss if self.average is None else torch.lerp(self.average, loss, 0.1)
        logger.log_metrics({"loss/smooth": self.average})


class CountBatches(Callback):
    def batch_end(self, state, logger):
        logger.log_metrics({"batches": state.timestamp.batch.value, "share": state.get_elapsed_duration().value})


class Step(Callback):
    """Tells the watch which step, counted from 1, is at work; what comes before the next one belongs to it."""

    def __init__(self, tell: Any) -> None:
        self.tell = tell

    def before_dataloader(self, state, logger):
        self.tell(state.timestamp.batch.value + 1)

    def epoch_end(self, state, logger):
        self.tell(None)


def run_of_80_steps(tell: Any, device: str | None = None, **more: Any) -> tuple[Trainer, list[Received]]:
    model = ComposerClassifier(nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES)), CLASSES)
    logs = [Received(flush_interval=50), Received(flush_interval=50)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    trainer = Trainer(
        model=model,
        train_dataloader=labeled_data(80, 8),
        max_duration="1ep",
        algorithms=EMA(half_life="10ba"),
        optimizers=optimizer,
        schedulers=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        step_schedulers_every_batch=True,
        callbacks=[Clip(), LogOutputs(), LogRate(), SmoothLoss(), CountBatches(), Step(tell)],
        loggers=logs,
        progress_bar=False,
        device=device,
        **more,
    )
    return trainer, logs


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 3}, {"precision": "amp_bf16"}])
def test_SyncFree_reads_in_step_50_only(more) -> None:
    with FakeAccelerator() as reads:
        trainer, logs = run_of_80_steps(lambda step: setattr(reads, "step", step), **more)
        trainer.fit()
    steps = [step for step, *_ in reads.found]
    assert set(steps) == {50}, reads.found
    # All that 50 steps logged comes in one transfer for each dtype.
    assert len(steps) <= 3, reads.found
    for log in logs:
        assert [step for step, _ in log.series("loss/train/total")] == list(range(80))
        assert [step for step, _ in log.series("grad_norm")] == list(range(80))
        assert [step for step, _ in log.series("metrics/train/MulticlassAccuracy")] == [49, 80]


def test_SyncFree_of_language_models_weighted_by_tokens() -> None:
    """Counting the tokens that the loss averages over does not wait for the device either."""
    from tests.trainer.test_microbatch import LanguageModel, padded

    model = LanguageModel()
    with FakeAccelerator() as reads:
        trainer = Trainer(
            model=model,
            train_dataloader=[padded([5, 2, 0, 3], 6, seed) for seed in range(5)],
            max_duration="1ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1, foreach=True),
            device_train_microbatch_size=2,
            callbacks=Step(lambda step: setattr(reads, "step", step)),
            loggers=Received(flush_interval=50),
            progress_bar=False,
        )
        trainer.fit()
    assert not reads.found


def test_SyncFree_with_a_metric_that_checks_its_input() -> None:
    """The values of the first batch are checked, which reads them; those of all others are not."""
    from torchmetrics.classification import MulticlassAccuracy

    class Checking(MulticlassAccuracy):
        def update(self, preds, target):
            if self.validate_args:
                assert target.max() < CLASSES
            super().update(preds, target)

    with FakeAccelerator() as reads:
        model = ComposerClassifier(
            nn.Linear(FEATURES, CLASSES), CLASSES, train_metrics=Checking(CLASSES, average="micro")
        )
        trainer = Trainer(
            model=model,
            train_dataloader=labeled_data(10),
            max_duration="1ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1, foreach=True),
            callbacks=Step(lambda step: setattr(reads, "step", step)),
            loggers=Received(flush_interval=50),
            progress_bar=False,
        )
        trainer.fit()
    assert {step for step, *_ in reads.found} == {1}


@pytest.mark.gpu
@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 3}])
def test_SyncFree_on_a_gpu(more) -> None:
    """The driver's own check: a synchronisation in any step but 50 is an error."""
    if torch.accelerator.current_accelerator().type != "cuda":
        pytest.skip("torch.cuda.set_sync_debug_mode needs CUDA")

    def tell(step: int | None) -> None:
        # The first steps load kernels and compile nothing, but cuBLAS may synchronise while it sets itself up.
        torch.cuda.set_sync_debug_mode("default" if step in (None, 1, 2, 50) else "error")

    trainer, logs = run_of_80_steps(tell, device="gpu", **more)
    try:
        trainer.fit()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(len(log.series("loss/train/total")) == 80 for log in logs)
