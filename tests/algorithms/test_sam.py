from __future__ import annotations

import copy
import io
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from composer import Trainer
from composer.algorithms import SAM, GradientClipping, MixUp, apply_blurpool
from composer.algorithms.sam import SAMOptimizer
from composer.loggers import InMemoryLogger
from composer.models import ComposerClassifier
from composer.optim import LinearScheduler
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights


def _by_hand(batches):
    """Written out: the worst point, the gradient there, the step from where the weights were."""
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        if index % 2 == 1:
            parameters = list(model.parameters())
            norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
            before = copy.deepcopy(model.state_dict())
            for parameter in parameters:
                parameter.data.add_(parameter.grad * (0.5 / (norm + 1e-12)))
            optimizer.zero_grad()
            model.loss(model(batch), batch).backward()
            model.load_state_dict(before)  # the running statistics too
        optimizer.step()
    return weights(model)


_CASE = Case(
    make=lambda: SAM(rho=0.5, interval=2),
    by_hand=_by_hand,
    neutral=lambda: SAM(rho=0.0),
    why_no_function="it wraps the optimizer: use SAMOptimizer in custom loops",
)
_LOOKSAM = Case(
    make=lambda: SAM(rho=0.5, interval=2, reuse=0.7),
    by_hand=None,
    neutral=lambda: SAM(rho=0.0, reuse=0.7),
    why_no_function="it wraps the optimizer; the direction is tested below",
)
CASES = [_CASE, _LOOKSAM]


def quadratic(start, optimizer=lambda p: SGD(p, lr=0.1), **arguments):
    """f(w) = sum(c * w^2) / 2 with c = (1, 2); returns the weight, the optimizer and a closure that counts."""
    weight, scale = nn.Parameter(torch.tensor(start)), torch.tensor([1.0, 2.0])
    sam, seen = SAMOptimizer(optimizer([weight]), **arguments), []

    def closure():
        sam.zero_grad()
        seen.append(weight.detach().clone())
        loss = (scale * weight**2).sum() / 2
        loss.backward()
        return loss

    return weight, sam, closure, seen


def test_closed_form():
    weight, sam, closure, seen = quadratic([3.0, 2.0], rho=0.5)
    loss = sam.step(closure)  # g = (3, 4), e = (0.3, 0.4), g(w + e) = (3.3, 4.8)
    assert loss.item() == 8.5
    torch.testing.assert_close(torch.stack(seen), torch.tensor([[3.0, 2.0], [3.3, 2.4]]))
    torch.testing.assert_close(weight.data, torch.tensor([3 - 0.33, 2 - 0.48]))


def test_adaptive_in_closed_form():
    _, sam, closure, seen = quadratic([3.0, 2.0], rho=1.0, adaptive=True, eta=0.0)
    sam.step(closure)  # T g = (9, 8), T^2 g = (27, 16)
    norm = (81 + 64) ** 0.5
    torch.testing.assert_close(seen[1], torch.tensor([3 + 27 / norm, 2 + 16 / norm]))


def test_adaptive_does_not_notice_how_a_layer_is_scaled():
    """The loss at the worst point is the same for (a w, v / a) as for (w, v): the point of ASAM."""
    losses = []
    for scale in (1.0, 10.0):
        w, v = nn.Parameter(torch.tensor([1.5]) * scale), nn.Parameter(torch.tensor([-0.5]) / scale)
        sam = SAMOptimizer(SGD([w, v], lr=0.0), rho=0.1, adaptive=True, eta=0.0)

        def closure(sam=sam, w=w, v=v):
            sam.zero_grad()
            loss = ((w * v - 1) ** 2).sum()
            loss.backward()
            losses.append(loss.item())

        sam.step(closure)
    assert losses[:2] == pytest.approx(losses[2:])
    assert losses[1] > losses[0]


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_interval(interval):
    _, sam, closure, seen = quadratic([3.0, 2.0], interval=interval)
    for step in range(1, 7):
        before = len(seen)
        sam.step(closure)
        assert len(seen) - before == (2 if step % interval == 0 else 1)


def test_reuse_in_closed_form():
    weight, sam, closure, _ = quadratic([3.0, 2.0], rho=0.5, interval=2, reuse=0.7, optimizer=lambda p: SGD(p, lr=0.0))
    sam.step(closure)
    torch.testing.assert_close(weight.grad, torch.tensor([3.0, 4.0]))  # nothing to use yet
    sam.step(closure)
    plain, sharp = torch.tensor([3.0, 4.0]), torch.tensor([3.3, 4.8])
    across = sharp - plain * (sharp @ plain) / 25
    torch.testing.assert_close(sam.directions[0], across)
    sam.step(closure)
    torch.testing.assert_close(weight.grad, plain + 0.7 * 5 * across / across.norm())


def test_a_loss_of_zero_is_a_loss():
    """A step is a step, whatever the loss: with weight decay it moves the weights."""
    weight = nn.Parameter(torch.tensor([2.0]))
    sam = SAMOptimizer(SGD([weight], lr=0.1, weight_decay=1.0))

    def closure():
        sam.zero_grad()
        loss = (weight * 0).sum()
        loss.backward()
        return loss

    sam.step(closure)
    assert weight.item() == pytest.approx(1.8)


def test_weights_come_back_bit_for_bit_also_after_an_error():
    weight, sam, closure, seen = quadratic([0.1, 1e5], rho=0.3)

    def failing():
        if seen:
            raise RuntimeError("out of memory")
        return closure()

    with pytest.raises(RuntimeError, match="out of memory"):
        sam.step(failing)
    assert torch.equal(weight.data, torch.tensor([0.1, 1e5]))
    assert not sam.perturbed


def test_state_is_that_of_the_optimizer_inside():
    """A checkpoint of one loads into the other, in both directions; schedules and surgery act on both."""
    weight, sam, closure, _ = quadratic([3.0, 2.0], lambda p: AdamW(p, lr=0.1))
    sam.step(closure)
    saved = copy.deepcopy(sam.state_dict())
    other = AdamW([nn.Parameter(weight.detach().clone())], lr=0.5)
    other.load_state_dict(saved)
    again = SAMOptimizer(AdamW([nn.Parameter(weight.detach().clone())], lr=0.5))
    again.load_state_dict(other.state_dict())
    assert again.param_groups[0]["lr"] == 0.1
    for optimizer in (other, again):
        state = next(iter(optimizer.state.values()))
        assert torch.equal(state["exp_avg"], sam.state[weight]["exp_avg"])
    assert again.param_groups is again.base_optimizer.param_groups
    schedule = torch.optim.lr_scheduler.StepLR(sam, step_size=1, gamma=0.5)
    sam.step(closure)
    schedule.step()
    assert sam.base_optimizer.param_groups[0]["lr"] == 0.05
    added = nn.Parameter(torch.zeros(1))
    sam.add_param_group({"params": [added]})
    assert sam.base_optimizer.param_groups[1]["params"] == [added]


def test_copies_and_hooks():
    _, sam, closure, _ = quadratic([3.0, 2.0], interval=3)
    sam.step(closure)
    for made in (copy.deepcopy(sam), pickle.loads(pickle.dumps(sam))):
        assert (made.steps, made.interval) == (1, 3)
        assert made.param_groups[0]["lr"] == 0.1
    calls = []
    sam.register_step_post_hook(lambda *_: calls.append("after"))
    sam.step(closure)
    assert calls == ["after"]
    assert "interval=3" in repr(sam)


def assert_both_evaluations_sample_the_same(sample):
    weight = nn.Parameter(torch.ones(100))
    sam, sampled = SAMOptimizer(SGD([weight], lr=0.1)), []

    def closure():
        sam.zero_grad()
        sampled.append(sample())
        (weight * sampled[-1]).sum().backward()

    sam.step(closure)
    sam.step(closure)
    assert torch.equal(sampled[0], sampled[1])
    assert torch.equal(sampled[2], sampled[3])
    assert not torch.equal(sampled[1], sampled[2])


def test_both_evaluations_sample_the_same_values():
    assert_both_evaluations_sample_the_same(lambda: torch.rand(100))


@pytest.mark.parametrize("device", ["cuda", "xpu", "mps"])
def test_both_evaluations_sample_the_same_values_on_any_accelerator(device, monkeypatch):
    # As with offloaded parameters: the parameters are on the host, and the device samples.
    generator = torch.Generator().manual_seed(5)
    module = SimpleNamespace(
        get_rng_state=generator.get_state, set_rng_state=lambda state, index=0: generator.set_state(state)
    )
    if device != "mps":
        module.get_rng_state_all = lambda: [generator.get_state()]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device(device))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert_both_evaluations_sample_the_same(lambda: torch.rand(100, generator=generator))


def test_several_optimizers_go_to_the_worst_point_together():
    def both(make):
        torch.manual_seed(3)
        model = make_model()
        optimizers = make(model)
        engine = loop.start(model, [], optimizers[0])
        engine.state.optimizers = optimizers
        engine.state.algorithms = [SAM(rho=0.5)]
        engine.run_event("init")
        loop.fit(engine, make_batches())
        return weights(model)

    one = both(lambda model: [SGD(model.parameters(), lr=0.1)])
    two = both(lambda model: [SGD(model.net[0].parameters(), lr=0.1), SGD(model.net[1:].parameters(), lr=0.1)])
    for name, value in one.items():
        torch.testing.assert_close(value, two[name])


def fit(algorithms=(), seed=1, **arguments):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = ComposerClassifier(module, num_classes=3)
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(4)]
    memory = InMemoryLogger()
    arguments = {"optimizers": SGD(model.parameters(), lr=0.1), "device": "cpu", **arguments}
    trainer = Trainer(
        model=model, train_dataloader=batches, max_duration="4ba", algorithms=list(algorithms), seed=seed,
        loggers=[memory], progress_bar=False, **arguments,
    )  # fmt: skip
    trainer.fit()
    return trainer, memory


def test_in_the_trainer():
    plain, plain_log = fit()
    sharp, log = fit([SAM(rho=0.5)])
    assert not same(weights(plain.state.model), weights(sharp.state.model))
    first = [memory.data["loss/train/total"][0][1] for memory in (plain_log, log)]
    assert first[0] == first[1]  # the loss that is logged is that at the weights
    statistics = [t.state.model.module[1] for t in (plain, sharp)]
    assert statistics[0].num_batches_tracked == statistics[1].num_batches_tracked == 4
    metric = sharp.state.train_metrics["MulticlassAccuracy"]
    assert metric.update_called
    assert sharp.state.optimizers[0].steps == 4


def test_microbatches_give_the_same():
    """The loss is a mean over examples, without batch normalization: microbatches make no difference."""

    def train(**arguments):
        torch.manual_seed(0)
        model = ComposerClassifier(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), num_classes=3)
        batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(3)]
        trainer = Trainer(
            model=model, train_dataloader=batches, max_duration="3ba", optimizers=SGD(model.parameters(), lr=0.1),
            algorithms=[SAM(rho=0.5)], device="cpu", progress_bar=False, **arguments,
        )  # fmt: skip
        trainer.fit()
        return weights(trainer.state.model)

    full, in_microbatches = train(), train(device_train_microbatch_size=3)
    for name, value in full.items():
        torch.testing.assert_close(value, in_microbatches[name])


def test_schedules_and_a_missing_optimizer():
    from torch.optim.lr_scheduler import StepLR

    def schedule(optimizer):
        return StepLR(optimizer, 1, 0.5)

    with pytest.warns(UserWarning, match="No optimizers"):
        trainer, _ = fit([SAM()], optimizers=None)
    assert isinstance(trainer.state.optimizers[0], SAMOptimizer)
    model = make_model()
    engine = loop.start(model, [SAM()])
    made = schedule(engine.state.optimizers[0])
    engine.state.batch = make_batches()[0]
    loop.step(engine)
    made.step()
    assert engine.state.optimizers[0].base_optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("inside", [True, False], ids=["of the optimizer", "of SAM"])
@pytest.mark.parametrize("kind", ["torch", "assigned", "later"])
def test_a_schedule_of_the_optimizer_belongs_to_sam(kind, inside):
    from torch.optim.lr_scheduler import ExponentialLR

    model, used = make_model(), []
    sgd = SGD(model.parameters(), lr=0.1)
    optimizer = sgd if inside else SAMOptimizer(sgd)
    schedule = LinearScheduler().assign(optimizer=optimizer) if kind == "assigned" else ExponentialLR(optimizer, 0.5)
    sgd.register_step_pre_hook(lambda *_: used.append(sgd.param_groups[0]["lr"] / 0.1))
    given = {"schedulers": schedule, "step_schedulers_every_batch": True}
    trainer = Trainer(
        model=model,
        optimizers=optimizer,
        train_dataloader=make_batches()[:4],
        max_duration="4ba",
        algorithms=SAM(rho=0.1),
        progress_bar=False,
        **({} if kind == "later" else given),
    )
    trainer.fit(**(given if kind == "later" else {}))
    assert used == pytest.approx([1.0, 0.75, 0.5, 0.25] if kind == "assigned" else [1.0, 0.5, 0.25, 0.125])


def test_a_schedule_of_the_optimizer_leaves_no_rate_to_others():
    model = make_model()
    sgd = SGD(model.parameters(), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.ConstantLR(sgd), LinearScheduler()]
    with pytest.raises(ValueError, match="LinearScheduler has nothing to set, because ConstantLR"):
        Trainer(model=model, optimizers=sgd, schedulers=schedulers, algorithms=SAM(), progress_bar=False)
    schedule = torch.optim.lr_scheduler.ConstantLR(SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(ValueError, match="ConstantLR sets the learning rate of an optimizer that was not passed"):
        Trainer(model=model, optimizers=sgd, schedulers=schedule, algorithms=SAM(), progress_bar=False)


def test_composes_with_surgery_clipping_and_mixup():
    torch.manual_seed(0)
    model = make_model()
    engine = loop.start(model, [SAM(rho=0.1), GradientClipping("norm", 0.1), MixUp(0.2)])
    apply_blurpool(model, optimizers=engine.state.optimizers)
    loop.fit(engine, make_batches())
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norm <= 0.1001


def test_direction_is_saved():
    engine = loop.fit(loop.start(make_model(), [SAM(interval=2, reuse=0.5)]), make_batches())
    file = io.BytesIO()
    torch.save(engine.state.algorithms[0].state_dict(), file)
    file.seek(0)
    fresh = SAM(interval=2, reuse=0.5)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    other = loop.start(make_model(), [fresh])
    other.run_event("fit_start")
    pairs = zip(other.state.optimizers[0].directions, engine.state.optimizers[0].directions, strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_an_optimizer_that_evaluates_gradients_itself_is_rejected():
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="so does LBFGS, whose step requires a closure"):
        loop.start(model, [SAM()], optimizer=optimizer)


@pytest.mark.parametrize(
    "argument", [{"rho": -0.1}, {"epsilon": -1.0}, {"interval": 0}, {"eta": -1.0}, {"reuse": -1.0}]
)
def test_wrong_arguments(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        SAM(**argument)
