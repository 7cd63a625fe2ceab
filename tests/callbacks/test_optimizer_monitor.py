from __future__ import annotations

import pytest
import torch

from composer import Algorithm, Callback
from composer.callbacks import OptimizerMonitor
from composer.optim import DecoupledAdamW
from tests.accelerator import FakeAccelerator
from tests.callbacks.cases import Case, run_with
from tests.common import At, Received, TwoLayers, classifier, regression_data
from tests.trainer.test_sync_free import Step

CASE = Case(
    make=lambda folder: OptimizerMonitor(batch_log_interval=2),
    logs=("l2_norm/grad/*", "l2_norm/param/*", "l2_norm/moment/*"),
)


def norms(parameters) -> dict[str, float]:
    """Return the norm of each tensor, and the global norm, computed one by one."""
    found = {name: tensor.detach().norm().item() for name, tensor in parameters}
    return found | {"global": sum(value**2 for value in found.values()) ** 0.5}


def logged(run, group: str, index: int = -1) -> dict[str, float]:
    """Return the norms of a group at one of the logged steps."""
    prefix = f"l2_norm/{group}/"
    return {name.removeprefix(prefix): run.values(name)[index] for name in run.names if name.startswith(prefix)}


def gradients(model) -> list[tuple[str, torch.Tensor]]:
    return [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]


class AtTheEndOf(At):
    """Collects the result of a function at the end of each batch."""

    def __init__(self, function):
        super().__init__("batch_end", function)


def test_gradients_of_the_step():
    seen = AtTheEndOf(lambda state: norms(gradients(state.model)))
    run = run_with(OptimizerMonitor(log_optimizer_metrics=False, batch_log_interval=1), seen)
    run.trainer.fit()
    for index in range(4):
        assert logged(run, "grad", index) == pytest.approx(seen.found[index])
    assert not any(name.startswith(("l2_norm/param", "l2_norm/moment")) for name in run.names)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), "momentum_buffer"),
        (lambda ps: torch.optim.SGD(ps, lr=0.1), None),
        (lambda ps: torch.optim.AdamW(ps, lr=0.1), "exp_avg"),
        (lambda ps: torch.optim.LBFGS(ps, max_iter=2), None),
    ],
    ids=["SGD with momentum", "SGD", "AdamW", "LBFGS"],
)
def test_any_optimizer(make, key):
    def state_of(state):
        kept = state.optimizers[0].state
        found = [(name, kept[p].get(key)) for name, p in state.model.named_parameters() if p in kept]
        moments = norms((name, m) for name, m in found if m is not None) if key else {}
        return norms(gradients(state.model)), norms(state.model.named_parameters()), moments

    model, seen = classifier(), AtTheEndOf(state_of)
    run = run_with(OptimizerMonitor(batch_log_interval=1), seen, model=model, optimizers=make(model.parameters()))
    run.trainer.fit()
    for index, expected in enumerate(seen.found):
        for group, values in zip(("grad", "param", "moment"), expected, strict=True):
            assert logged(run, group, index) == pytest.approx(values), group


def test_metrics_reported_by_an_optimizer():
    before = {}

    class Remember(Callback):
        def batch_start(self, state, logger):
            before.update({name: p.detach().clone() for name, p in state.model.named_parameters()})

    def state_of(state):
        kept, named = state.optimizers[0].state, list(state.model.named_parameters())
        return {
            "grad": norms(gradients(state.model)),
            "param": norms(named),
            "moment": norms((name, kept[p]["exp_avg"]) for name, p in named),
            "update": norms((name, before[name] - p.detach()) for name, p in named),
        }

    model, seen = classifier(), AtTheEndOf(state_of)
    optimizer = DecoupledAdamW(model.parameters(), lr=0.1, weight_decay=1e-4)
    run = run_with(OptimizerMonitor(batch_log_interval=1), Remember(), seen, model=model, optimizers=optimizer)
    run.trainer.fit()
    for index, expected in enumerate(seen.found):
        for group, values in expected.items():
            assert logged(run, group, index) == pytest.approx(values, rel=1e-3), group


def test_several_optimizers():
    """One reports its metrics, the other is measured; an untrained parameter is skipped."""
    model = TwoLayers()
    model.unused = torch.nn.Parameter(torch.ones(3))
    first = DecoupledAdamW(model.first.parameters(), lr=0.1)
    second = torch.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9)
    run = run_with(
        OptimizerMonitor(batch_log_interval=1), model=model, data=regression_data(), optimizers=[first, second]
    )
    run.trainer.fit()
    names = {"first.weight", "first.bias", "second.weight", "second.bias", "global"}
    for group in ("grad", "param", "moment"):
        found = logged(run, group)
        assert set(found) == names
        assert found["global"] == pytest.approx(sum(found[name] ** 2 for name in names - {"global"}) ** 0.5)
    assert set(logged(run, "update")) == {"first.weight", "first.bias", "global"}


def test_a_report_may_be_a_new_mapping_of_anything():
    class Reports(torch.optim.SGD):
        def report_per_parameter_metrics(self, param, name, optimizer_metrics):
            return {**optimizer_metrics, f"cosine/{name}": param.sum(), f"size/{name}": param.numel()}

    model = classifier()
    run = run_with(OptimizerMonitor(batch_log_interval=4), model=model, optimizers=Reports(model.parameters(), lr=0.1))
    run.trainer.fit()
    weight = model.module.weight
    assert run.values("size/module.weight") == [weight.numel()]
    assert run.values("cosine/module.weight") == pytest.approx([weight.sum().item()])
    assert set(logged(run, "grad")) == {"module.weight", "module.bias", "global"}
    assert logged(run, "param") == {}


def test_gradients_after_algorithms():
    class Halve(Algorithm):
        def after_train_batch(self, state, logger):
            for p in state.model.parameters():
                p.grad.mul_(0.5)

    ends = []
    for algorithms in ([], [Halve()]):
        run = run_with(OptimizerMonitor(batch_log_interval=1), algorithms=algorithms)
        run.trainer.fit()
        ends.append(logged(run, "grad", 0)["global"])
    assert ends[1] == pytest.approx(ends[0] / 2)


def test_interval():
    run = run_with(OptimizerMonitor(batch_log_interval=3), max_duration="2ep")
    run.trainer.fit()
    assert run.steps("l2_norm/grad/global") == [3, 6]


def test_nothing_is_trained():
    class Drop(Algorithm):
        def after_train_batch(self, state, logger):
            for p in state.model.parameters():
                p.grad = None

    run = run_with(OptimizerMonitor(batch_log_interval=1), algorithms=Drop())
    run.trainer.fit()
    assert not any(name.startswith("l2_norm") for name in run.names)


def test_SyncFree_with_an_optimizer_that_reports_metrics():
    """The monitor adds no synchronization."""
    found = []
    for watching in ([], [OptimizerMonitor(batch_log_interval=1)]):
        model = classifier()
        with FakeAccelerator() as reads:
            tell = Step(lambda step, reads=reads: setattr(reads, "step", step))
            optimizer = DecoupledAdamW(model.parameters(), lr=0.1)
            log = Received(flush_interval=50)
            run_with(*watching, tell, model=model, optimizers=optimizer, loggers=log).trainer.fit()
        found.append(reads.found)
        assert any("l2_norm/update/global" in metrics for _, metrics in log.metrics) == bool(watching)
    assert found[0] == found[1]


@pytest.mark.parametrize("interval", [0, -10])
def test_bad_interval(interval):
    with pytest.raises(ValueError, match="batch_log_interval must be greater than 0"):
        OptimizerMonitor(batch_log_interval=interval)
