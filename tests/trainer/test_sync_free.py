"""SyncFree: nothing is read from the device in a training step, but for what is logged in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from composer import Callback, Trainer
from composer.algorithms import EMA
from composer.core import first_draws
from composer.models import ComposerClassifier
from tests.common import CLASSES, FEATURES, Received, labelled_data

READING_OPERATORS = {
    "aten::_local_scalar_dense",  # item, float, int, bool, and indexing by a tensor on the device
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",  # also behind masks as indices: the size of the result must be known
    "aten::masked_select",
    "aten::_unique2",
    "aten::allclose",
}
READING_METHODS = ("item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__")


class Reads(TorchDispatchMode):
    """Notes each read of a tensor's values by the host, with the step in which it happens.

    Operators that must wait for the device are caught where they are dispatched. On the CPU some methods read memory
    without dispatching anything, so these are caught by name. What only happens on the CPU would be a read on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step: int | None = None
        self.found: list[tuple[int, str]] = []

    def note(self, what: str) -> None:
        if self.step is not None:
            self.found.append((self.step, what))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().partition(".")[0]
        masks = name in ("aten::index", "aten::index_put_", "aten::index_put") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in READING_OPERATORS or masks:
            self.note(name)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def watched(monkeypatch) -> Iterator[Reads]:
    """Watch for reads of tensors inside the block."""
    reads = Reads()

    def noting(name: str, original: Any) -> Any:
        def method(self, *args, **kwargs):
            reads.note(f"Tensor.{name}")
            return original(self, *args, **kwargs)

        return method

    def compared(*states: Any) -> bool:
        """States of generators, which lie on the host, whatever device the generator is for."""
        step, reads.step = reads.step, None
        try:
            return are_same(*states)
        finally:
            reads.step = step

    are_same = first_draws._are_same
    with monkeypatch.context() as patch, reads:
        patch.setattr(first_draws, "_are_same", compared)
        for name in READING_METHODS:
            patch.setattr(torch.Tensor, name, noting(name, getattr(torch.Tensor, name)))
        yield reads


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: bool(x[0] > 0),
        lambda x: float(x[0]),
        lambda x: int(x[0]),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: torch.equal(x, x),
        lambda x: 1 if x[0] else 0,
        lambda x: list(range(10))[x[0].long()],
    ],
)
def test_SyncFree_the_watch_sees_every_kind_of_read(read, monkeypatch) -> None:
    with watched(monkeypatch) as reads:
        reads.step = 7
        read(torch.ones(3))
    assert {step for step, _ in reads.found} == {7}


def test_SyncFree_the_watch_lets_plain_arithmetic_pass(monkeypatch) -> None:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, foreach=True)
    with watched(monkeypatch) as reads:
        reads.step = 7
        layer(torch.ones(3, 2)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, foreach=True)
        optimizer.step()
        torch.where(torch.ones(2) > 0, 1.0, 0.0)[torch.tensor([0, 1])].sum()
    assert not reads.found


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


def run_of_80_steps(tell: Any, device: str = "cpu", **more: Any) -> tuple[Trainer, list[Received]]:
    model = ComposerClassifier(nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES)), CLASSES)
    logs = [Received(flush_interval=50), Received(flush_interval=50)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    trainer = Trainer(
        model=model,
        train_dataloader=labelled_data(80, 8),
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
def test_SyncFree_reads_in_step_50_only(more, monkeypatch) -> None:
    with watched(monkeypatch) as reads:
        trainer, logs = run_of_80_steps(lambda step: setattr(reads, "step", step), **more)
        trainer.fit()
    steps = [step for step, _ in reads.found]
    assert set(steps) == {50}, reads.found
    # All that 50 steps logged comes in one transfer for each dtype.
    assert len(steps) <= 3, reads.found
    for log in logs:
        assert [step for step, _ in log.series("loss/train/total")] == list(range(80))
        assert [step for step, _ in log.series("grad_norm")] == list(range(80))
        assert [step for step, _ in log.series("metrics/train/MulticlassAccuracy")] == [49, 80]


def test_SyncFree_of_language_models_weighted_by_tokens(monkeypatch) -> None:
    """Counting the tokens that the loss averages over does not wait for the device either."""
    from tests.trainer.test_microbatch import LanguageModel, padded

    model = LanguageModel()
    with watched(monkeypatch) as reads:
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


def test_SyncFree_with_a_metric_that_checks_its_input(monkeypatch) -> None:
    """The values of the first batch are checked, which reads them; those of all others are not."""
    from torchmetrics.classification import MulticlassAccuracy

    class Checking(MulticlassAccuracy):
        def update(self, preds, target):
            if self.validate_args:
                assert target.max() < CLASSES
            super().update(preds, target)

    with watched(monkeypatch) as reads:
        model = ComposerClassifier(
            nn.Linear(FEATURES, CLASSES), CLASSES, train_metrics=Checking(CLASSES, average="micro")
        )
        trainer = Trainer(
            model=model,
            train_dataloader=labelled_data(10),
            max_duration="1ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1, foreach=True),
            callbacks=Step(lambda step: setattr(reads, "step", step)),
            loggers=Received(flush_interval=50),
            progress_bar=False,
        )
        trainer.fit()
    assert {step for step, _ in reads.found} == {1}


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
