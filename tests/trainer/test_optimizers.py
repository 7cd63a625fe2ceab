"""Multiple optimizers with schedules: Muon with AdamW, a GAN."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)

from composer import ComposerModel
from tests.common import At, Received, Recorder, Regression, TwoLayers, regression_data, trainer_of


def rates(state) -> list[float]:
    """The learning rate of each optimizer's first group."""
    return [optimizer.param_groups[0]["lr"] for optimizer in state.optimizers]


# ---------------------------------------------------------------------------------------------------- schedules

SCHEDULES = {
    "lambda": lambda o: LambdaLR(o, lambda k: 1 / (k + 1)),
    "cosine": lambda o: CosineAnnealingLR(o, 12),
    "onecycle": lambda o: OneCycleLR(o, 0.5, total_steps=13),
    "warmup": lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=3), ExponentialLR(o, 0.9)], milestones=[3]),
    "chained": lambda o: ChainedScheduler([ConstantLR(o, 0.5, 4), ExponentialLR(o, 0.9)], optimizer=o),
}


def closed_form(make, steps: int) -> list[float]:
    """The learning rate that a schedule gives at 0, 1, ..., steps - 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rate_of_step_k_is_the_schedule_at_k(name: str) -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    used = At("after_train_batch", rates)
    trainer_of(
        model,
        optimizers=optimizer,
        schedulers=SCHEDULES[name](optimizer),
        step_schedulers_every_batch=True,
        max_duration="3ep",
        callbacks=used,
    ).fit()
    assert [rate for (rate,) in used.found] == closed_form(SCHEDULES[name], 12)


@pytest.mark.parametrize("every_batch", [None, False])
def test_schedules_step_every_epoch_by_default(every_batch) -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    used, ends = At("after_train_batch", rates), At("epoch_end", rates)
    trainer_of(
        model,
        optimizers=optimizer,
        schedulers=[LambdaLR(optimizer, lambda k: 2.0**k)],
        step_schedulers_every_batch=every_batch,
        max_duration="3ep",
        callbacks=[used, ends],
    ).fit()
    assert [rate for (rate,) in used.found] == [1e-3] * 4 + [2e-3] * 4 + [4e-3] * 4
    assert [rate for (rate,) in ends.found] == [2e-3, 4e-3, 8e-3]


def test_fit_takes_new_schedules() -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    used = At("after_train_batch", rates)
    trainer = trainer_of(model, optimizers=optimizer, callbacks=used)
    trainer.fit()
    schedule = LambdaLR(optimizer, lambda k: 1 / (k + 1))
    trainer.fit(duration="4ba", schedulers=schedule, step_schedulers_every_batch=True)
    assert [rate for (rate,) in used.found] == [0.1] * 4 + [0.1, 0.1 / 2, 0.1 / 3, 0.1 / 4]
    with pytest.raises(ValueError, match="step_schedulers_every_batch requires schedulers"):
        trainer.fit(duration="1ba", step_schedulers_every_batch=True)


# ---------------------------------------------------------------------------------------------------- optimizers


def test_TwoOptimizers_muon_and_adamw() -> None:
    """One update by both is one step; each follows its own schedule; the result is that of a hand-written loop."""
    model = TwoLayers()
    twin = copy.deepcopy(model)
    muon, adamw = model.optimizers()
    used = At("after_train_batch", rates)
    recorder = Recorder()
    trainer = trainer_of(
        model,
        optimizers=[muon, adamw],
        schedulers=[LambdaLR(muon, lambda k: 1 - k / 20), LambdaLR(adamw, lambda k: 1 / (k + 1))],
        step_schedulers_every_batch=True,
        max_duration="3ep",
        callbacks=[used, recorder],
    )
    trainer.fit()
    assert trainer.state.timestamp.batch == 12
    assert recorder.events.count("before_train_batch") == recorder.events.count("before_forward") == 12
    for k, found in enumerate(used.found):
        assert found == pytest.approx([0.02 * (1 - k / 20), 0.01 / (k + 1)], rel=1e-12)

    optimizers = twin.optimizers()
    for k, batch in enumerate(regression_data() * 3):
        for optimizer, rate in zip(optimizers, [0.02 * (1 - k / 20), 0.01 / (k + 1)], strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
        twin.loss(twin(batch), batch).backward()
        for optimizer in optimizers:
            optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


class GAN(ComposerModel):
    """Generator and discriminator of one dimension; each loss reaches its own network only."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(1, 1)
        self.discriminator = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, batch):
        noise, _ = batch
        return self.generator(noise)

    def loss(self, outputs, batch):
        real = batch[1]
        judge = nn.functional.binary_cross_entropy_with_logits
        yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        frozen = {name: p.detach() for name, p in self.discriminator.named_parameters()}
        verdict = functional_call(self.discriminator, frozen, (outputs,))
        of_real, of_fake = self.discriminator(real), self.discriminator(outputs.detach())
        return {"generator": judge(verdict, yes), "discriminator": judge(of_real, yes) + judge(of_fake, no)}


def test_TwoOptimizers_gan() -> None:
    """A GAN in one model equals the usual loop with two backward passes, and both networks learn."""
    generator = torch.Generator().manual_seed(3)
    data = [
        (torch.randn(32, 1, generator=generator), 3 + 0.5 * torch.randn(32, 1, generator=generator)) for _ in range(10)
    ]
    model = GAN()
    twin = copy.deepcopy(model)

    def optimizers(gan: GAN) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(gan.generator.parameters(), lr=0.03),
            torch.optim.Adam(gan.discriminator.parameters(), lr=0.02),
        ]

    ours = optimizers(model)
    log = Received()
    trainer = trainer_of(
        model,
        data,
        optimizers=ours,
        schedulers=[ExponentialLR(ours[0], 0.99), ExponentialLR(ours[1], 0.995)],
        step_schedulers_every_batch=True,
        max_duration="20ep",
        loggers=log,
    )
    trainer.fit()
    assert trainer.state.timestamp.batch == 200
    assert rates(trainer.state) == pytest.approx([0.03 * 0.99**200, 0.02 * 0.995**200])

    theirs = optimizers(twin)
    for k in range(200):
        batch = data[k % 10]
        for optimizer, rate in zip(theirs, [0.03 * 0.99**k, 0.02 * 0.995**k], strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
        losses = twin.loss(twin(batch), batch)
        losses["generator"].backward()
        losses["discriminator"].backward()
        for optimizer in theirs:
            optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    made = model.generator(torch.randn(1000, 1)).mean()
    assert abs(made - 3) < 0.5
    parts = [
        dict(zip(("g", "d", "t"), (s[1] for s in entry), strict=True))
        for entry in zip(
            log.series("loss/train/generator"),
            log.series("loss/train/discriminator"),
            log.series("loss/train/total"),
            strict=True,
        )
    ]
    assert all(p["t"] == pytest.approx(p["g"] + p["d"], rel=1e-5) for p in parts)
