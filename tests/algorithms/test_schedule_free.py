from __future__ import annotations

import io

import pytest
import schedulefree
import torch
from torch import nn

from composer import Callback
from composer.algorithms import ScheduleFree, use_averaged_weights
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.models import ComposerClassifier
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights
from tests.common import At, labeled_data, trainer_of


def make_optimizer(model):
    return schedulefree.SGDScheduleFree(model.parameters(), lr=0.1, momentum=0.9)


def _by_hand(batches):
    model = make_model()
    optimizer = make_optimizer(model)
    optimizer.train()
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    with use_averaged_weights(model, optimizer, batches):
        return parameters_of(model)


def parameters_of(model, algorithm=None):
    """Without the statistics, which are those of the batches that this rank has seen."""
    return {name: value for name, value in weights(model).items() if "running" not in name}


CASE = Case(
    make=ScheduleFree,
    by_hand=_by_hand,
    neutral=None,
    why_not_neutral="it only moves what an optimizer has computed; without one of those it is an error",
    outcome=parameters_of,
    optimizer=make_optimizer,
)


def statistics(model):
    return {name: value for name, value in weights(model).items() if "running" in name}


def trained(algorithm=None, batches=None):
    """A model after four batches, still in training, with its engine."""
    torch.manual_seed(0)
    model = make_model()
    engine = loop.start(model, [algorithm or ScheduleFree()], make_optimizer(model))
    engine.run_event("fit_start")
    for engine.state.batch in make_batches() if batches is None else batches:
        engine.run_event("batch_start")
        loop.step(engine)
        engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=6)
        engine.run_event("batch_end")
    return engine


def test_averages_of_the_paper():
    """x is the mean of the z, and y is between them; the loss is linear, so that z moves by the same each step."""
    weight = nn.Linear(1, 1, bias=False)
    nn.init.constant_(weight.weight, 1.0)
    optimizer = schedulefree.SGDScheduleFree(weight.parameters(), lr=0.1, momentum=0.9)
    optimizer.train()
    for _ in range(4):
        optimizer.zero_grad()
        weight(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    z = [1 - 0.1 * step for step in range(1, 5)]
    x = sum(z) / 4
    assert weight.weight.item() == pytest.approx(0.1 * z[-1] + 0.9 * x)
    with use_averaged_weights(weight, [optimizer]):
        assert weight.weight.item() == pytest.approx(x)


def test_weights_of_training_come_back_bit_for_bit():
    engine = trained()
    model, optimizer = engine.state.model, engine.state.optimizers[0]
    before, data = weights(model), optimizer.param_groups[0]["params"][0].data_ptr()
    with pytest.raises(RuntimeError, match="in the middle"), use_averaged_weights(model, optimizer, make_batches()):
        assert not same(weights(model), before)
        raise RuntimeError("in the middle")
    assert same(weights(model), before)
    assert optimizer.param_groups[0]["train_mode"]
    assert optimizer.param_groups[0]["params"][0].data_ptr() == data


def test_statistics_are_means_over_the_batches_at_the_averages():
    engine = trained()
    model, optimizer = engine.state.model, engine.state.optimizers[0]
    seen = []
    norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    modes = [module.training for module in model.modules()]
    count = norm.num_batches_tracked.item()
    with use_averaged_weights(model, optimizer, make_batches()):
        assert len(seen) == 4
        torch.testing.assert_close(norm.running_mean, torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0))
        variances = [x.var((0, 2, 3), correction=1) for x in seen]
        torch.testing.assert_close(norm.running_var, torch.stack(variances).mean(0))
        assert (norm.momentum, norm.num_batches_tracked.item()) == (0.1, count)
        assert [module.training for module in model.modules()] == modes


def test_evaluation_sees_the_averages_and_changes_nothing():
    plain = trained()
    seen = []

    class Watch(loop.Algorithm):
        def eval_batch_start(self, state, logger):
            seen.append(weights(state.model))

    torch.manual_seed(0)
    model, algorithm = make_model(), ScheduleFree()
    engine = loop.start(model, [algorithm, Watch()], make_optimizer(model))
    engine.run_event("fit_start")
    for batch in make_batches():
        engine.state.batch = batch
        engine.run_event("batch_start")
        loop.step(engine)
        engine.run_event("batch_end")
        loop.evaluation(engine, make_batches(1))
        assert not algorithm.is_averaged
    assert same(weights(model), weights(plain.state.model))
    with use_averaged_weights(model, engine.state.optimizers, make_batches()):
        assert same(seen[-1], weights(model))


def test_a_failed_evaluation_is_undone_by_the_next_batch():
    engine = trained()
    before = weights(engine.state.model)
    engine.run_event("eval_start")
    assert not same(weights(engine.state.model), before)
    engine.run_event("batch_start")
    assert same(weights(engine.state.model), before)


def test_statistics_can_be_left_alone_and_models_may_have_none():
    engine = trained(ScheduleFree(calibration_batches=0))
    before = statistics(engine.state.model)
    engine.run_event("eval_start")
    assert same(statistics(engine.state.model), before)
    assert not engine.state.algorithms[0]._batches

    model = nn.Linear(2, 1)
    engine = loop.start(model, [ScheduleFree()], make_optimizer(model))
    engine.run_event("fit_start")
    engine.run_event("before_forward")
    assert not engine.state.algorithms[0]._batches  # nothing is kept that nobody needs


def test_the_last_batches_count():
    engine = trained(ScheduleFree(calibration_batches=2))
    model = engine.state.model
    engine.run_event("eval_start")
    found = statistics(model)
    engine.run_event("eval_end")
    with use_averaged_weights(model, engine.state.optimizers, make_batches()[2:]):
        assert same(statistics(model), found)


class Saver(Callback):
    """Keeps what a checkpoint would hold."""

    def __init__(self, interval=None):
        if interval is not None:
            self.save_interval = create_interval_scheduler(interval)
        self.saved = []

    def batch_checkpoint(self, state, logger):
        if not hasattr(self, "save_interval") or self.save_interval(state, Event.BATCH_CHECKPOINT):
            self._save(state)

    def epoch_checkpoint(self, state, logger):
        if hasattr(self, "save_interval") and self.save_interval(state, Event.EPOCH_CHECKPOINT):
            self._save(state)

    def _save(self, state):
        file = io.BytesIO()
        content = {
            "model": state.model.state_dict(),
            "optimizer": state.optimizers[0].state_dict(),
            "algorithm": state.algorithms[0].state_dict(),
        }
        torch.save(content, file)
        self.saved.append(file.getvalue())


def classifier():
    torch.manual_seed(4)
    return ComposerClassifier(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), num_classes=3)


def fit(saver=None, **arguments):
    model = classifier()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)
    callbacks = [saver] if saver else []
    trainer = trainer_of(
        model,
        labeled_data(num_batches=6),
        optimizers=optimizer,
        algorithms=ScheduleFree(),
        callbacks=callbacks,
        max_duration="1ep",
        seed=1,
        **arguments,
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("interval", [None, "2ba", "1ep"])
def test_checkpoints_have_the_averages_and_training_is_as_without(interval):
    saver = Saver(interval)
    trainer = fit(saver, eval_dataloader=labeled_data(1), eval_interval="1ba")
    assert same(parameters_of(trainer.state.model), parameters_of(fit().state.model))
    assert len(saver.saved) == {None: 6, "2ba": 3, "1ep": 1}[interval]
    saved = torch.load(io.BytesIO(saver.saved[0]), weights_only=True)
    model = classifier()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)
    model.load_state_dict(saved["algorithm"]["training"])
    optimizer.load_state_dict(saved["optimizer"])
    # The statistics come from the batches, which this rank has not seen.
    optimizer.param_groups[0]["train_mode"] = True
    with use_averaged_weights(model, optimizer):
        assert same(parameters_of(model), {n: v for n, v in saved["model"].items() if "running" not in n})


@pytest.mark.parametrize("name", ["save_interval", "check_interval"])
def test_weights_are_swapped_only_when_a_callback_is_due(name, monkeypatch):
    class Reader(Callback):
        def batch_checkpoint(self, state, logger):
            pass

    reader, steps = Reader(), []
    setattr(reader, name, create_interval_scheduler("4ba", include_end_of_training=False))
    swap_in = ScheduleFree._swap_in
    monkeypatch.setattr(
        ScheduleFree,
        "_swap_in",
        lambda self, state: (steps.append(state.timestamp.batch.value), swap_in(self, state)),
    )
    fit(reader)
    assert steps == [4, 6]  # and when training ends


def test_resumes_from_a_checkpoint_with_averages():
    saver = Saver("2ba")
    expected = fit(saver)
    saved = torch.load(io.BytesIO(saver.saved[0]), weights_only=True)
    model = classifier()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)
    algorithm = ScheduleFree()
    trainer = trainer_of(
        model, labeled_data(num_batches=6)[2:], optimizers=optimizer, algorithms=algorithm, max_duration="1ep", seed=1
    )
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    algorithm.load_state_dict(saved["algorithm"])
    assert algorithm.is_averaged
    trainer.fit()
    assert same(parameters_of(model), parameters_of(expected.state.model))


def test_a_run_resumes_from_its_own_checkpoints(tmp_path):
    def trainer(**arguments):
        model = classifier()
        optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)
        data = labeled_data(num_batches=6)
        settings = {"optimizers": optimizer, "algorithms": ScheduleFree(), "max_duration": "1ep", "seed": 1}
        return trainer_of(model, data, **settings, **arguments)

    straight = trainer(save_folder=str(tmp_path), save_interval="2ba")
    straight.fit()
    resumed = trainer(load_path=str(tmp_path / "ep0-ba4-rank0.pt"))
    loaded = parameters_of(resumed.state.model)
    assert resumed.state.algorithms[0].is_averaged
    resumed.fit()
    assert same(parameters_of(resumed.state.model), parameters_of(straight.state.model))
    weights_only = trainer(load_path=str(tmp_path / "ep0-ba4-rank0.pt"), load_weights_only=True)
    assert same(parameters_of(weights_only.state.model), loaded)


def test_after_training_the_averages_stay_and_another_fit_goes_on():
    straight = fit()
    twice = fit()
    straight_again = fit()
    assert same(weights(straight.state.model), weights(twice.state.model))
    algorithm = twice.state.algorithms[0]
    assert algorithm.is_averaged
    before = weights(twice.state.model)
    twice.eval(labeled_data(1))
    twice.predict(labeled_data(1))
    assert same(weights(twice.state.model), before)  # the averages stay after an evaluation, too
    assert algorithm.is_averaged

    # Two runs of one epoch equal one run of two.
    model = classifier()
    long = trainer_of(
        model,
        labeled_data(num_batches=6),
        optimizers=schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01),
        algorithms=ScheduleFree(),
        max_duration="2ep",
        seed=1,
    )
    long.fit()
    for trainer in (twice, straight_again):
        trainer.fit(duration="1ep")
        assert same(parameters_of(trainer.state.model), parameters_of(long.state.model))


def test_with_microbatches_and_other_optimizers():
    model = classifier()
    optimizers = [
        schedulefree.AdamWScheduleFree(model.module[0].parameters(), lr=0.01),
        torch.optim.SGD(model.module[2].parameters(), lr=0.01),
    ]
    shapes = At("eval_end", lambda state: [batch[0].shape[0] for batch in state.algorithms[0]._batches])
    trainer = trainer_of(
        model,
        labeled_data(num_batches=3, batch_size=4),
        optimizers=optimizers,
        algorithms=ScheduleFree(),
        eval_dataloader=labeled_data(1),
        callbacks=shapes,
        device_train_microbatch_size=2,
    )
    trainer.fit()
    assert shapes.found[-1] == [2] * 6


def test_wrong_arguments():
    with pytest.raises(ValueError, match="calibration_batches must be 0 or greater"):
        ScheduleFree(calibration_batches=-1)
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"but got SGD\. Use one such as schedulefree\.AdamWScheduleFree"):
        loop.start(model, [ScheduleFree()])
    with pytest.raises(ValueError, match="but got none"), use_averaged_weights(model, []):
        pass
